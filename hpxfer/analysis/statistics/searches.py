"""Searches: the best point of each arm, and what the rounds came to, as each search reports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import pandas as pd

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Found, Statistic, frame_of, listed
from hpxfer.search import ArmPoints, CoordinateStep, HeatmapCell, arm_points, best_of_arms, kind_of

BEST = {
    "shape": "that the arms of a shape are compared at",
    "parameterization": "the arm",
    "num_trials": "compared: the same for all arms of the shape",
    "num_trials_in_all": "of this arm",
    "num_diverged": "points among those compared",
    "best_nats": "mean over seeds",
    "se_nats": "its standard error",
    "behind_nats": "its loss over that of the shape's best arm, paired over seeds; 0 for that arm",
    "behind_se_nats": "its standard error",
    "at": "the HPs",
    "kept": "what the search ended with, if it is another point",
    "on_edge": "HPs at an end of what was tried: bounds, and no optima",
}
STEPS = {
    "parameterization": "the arm",
    "shape": "that it is tuned at",
    "step": "from 1",
    "multiplier": "the HP that is changed",
    "ratio": "by which it is changed",
    "gain_nats": "over what was kept before; None if either diverged",
    "se_nats": "its standard error, paired over seeds",
    "diverged": "whether a seed did",
    "kept": "whether the search goes on with it",
    "needed": "how many standard errors a change must gain to be kept",
}
PAIRS = {
    "parameterization": "the arm",
    "shape": "that it is tuned at",
    "stage": "broad | fine | pairs",
    "first": "one HP",
    "second": "the other HP",
    "best_first": "of the whole stage; of pairs that of the best random point",
    "best_second": "of the whole stage; of pairs that of the best random point",
    "alone_first": "of the pair, all other dimensions at the center of the grid",
    "alone_second": "of the pair",
    "differ": "whether the two are different points",
    "alone_nats": "the loss there, in the plane through the center; None if the whole plane diverged",
    "cost_nats": "what is lost if the other dimensions are tuned after the pair; None as alone_nats. Of pairs it is "
    "below zero: what moving to the best of the plane gains",
}


def points_of(inputs: Inputs) -> tuple[ArmPoints, ...]:
    """Return the points that each arm tried."""
    return arm_points(inputs.results)


def _report_of(inputs: Inputs, form: str) -> tuple[Any, ...]:
    """Return the rows of the search's report if it has this form, else ()."""
    kind = kind_of(inputs.results.spec)
    return tuple(kind.report(inputs.results)) if kind.form == form else ()


def _best(inputs: Inputs) -> Found:
    found = best_of_arms(inputs.once(points_of), inputs.results.spec)
    frame = frame_of((asdict(arm) for arm in found if arm.why_not is None), BEST)
    unknown = [(f"{arm.parameterization} {arm.shape}", arm.why_not) for arm in found if arm.why_not is not None]
    leaders = frame.sort_values("best_nats", kind="stable").drop_duplicates("shape")
    said = [f"{row.parameterization} at {row.shape}, {row.at}" for row in leaders.itertuples()]
    return Found(frame=frame, title="; ".join(said), unknown=tuple(unknown))


def _steps(inputs: Inputs) -> Found:
    found: Sequence[CoordinateStep] = _report_of(inputs, "steps")
    frame = frame_of(map(asdict, found), STEPS)
    return Found(
        frame=frame,
        title=listed([_kept(of) for _, of in frame.groupby(["parameterization", "shape"], sort=False)]),
    )


def _kept(steps: pd.DataFrame) -> str:
    first, num = steps.iloc[0], steps["step"].max()
    return f"{first['parameterization']} at {first['shape']} kept {int(steps['kept'].sum())} of {num} changes"


def _pairs(inputs: Inputs) -> Found:
    """Return every pair of every stage, arm by arm; nothing for another search."""
    rows = []
    cells: Sequence[HeatmapCell] = _report_of(inputs, "heatmaps")
    for _, group in groupby(cells, key=lambda cell: (cell.arm, cell.stage, cell.x, cell.y)):
        of = list(group)
        best = next(cell for cell in of if cell.is_best)
        alone = next(cell for cell in of if cell.is_best_at_center)
        level = None if alone.at_center_nats is None else alone.lowest_nats
        rows.append(
            {
                "parameterization": best.parameterization,
                "shape": best.shape,
                "stage": best.stage,
                "first": best.x,
                "second": best.y,
                "best_first": best.x_value,
                "best_second": best.y_value,
                "alone_first": alone.x_value,
                "alone_second": alone.y_value,
                "differ": best != alone,
                "alone_nats": alone.at_center_nats,
                "cost_nats": None if level is None else level - (best.lowest_nats or 0.0),
            }
        )
    frame = frame_of(rows, PAIRS)
    if len(frame) and (frame["stage"] == "pairs").all():
        gain, moved = -frame["cost_nats"].min(), int(frame["differ"].sum())
        return Found(frame=frame, title=f"{moved} of {len(frame)} pairs have a lower point, by at most {gain:.2g} nats")
    worst = frame["cost_nats"].max()
    return Found(frame=frame, title="" if pd.isna(worst) else f"tuning a pair by itself costs at most {worst:.2g} nats")


SEARCH_BEST = Statistic(
    name="search_best",
    title="Which point is best, at equal budgets?",
    note="Arms of a shape are compared over as many trials as each of them has had, in the order in which they ended. "
    "Mean and standard error over seeds; behind: over the shape's best arm, paired over seeds. The best of many points "
    "is partly luck: its loss is too low by about the noise of a point. An HP on the edge of its range is a bound.",
    compute=_best,
    columns=BEST,
)
SEARCH_STEPS = Statistic(
    name="search_steps",
    title="Which constant multipliers won by more than the noise?",
    note="Each ratio's gain over what was kept before, paired over seeds, with its standard error (arXiv 2601.20205, "
    "Appendix D.1).",
    compute=_steps,
    columns=STEPS,
)
PAIR_OPTIMA = Statistic(
    name="pair_optima",
    title="What does a pair tuned by itself cost, against all dimensions together?",
    note="best: the values of the stage's best point. alone: the best values with all other dimensions at the center "
    "of the grid, where the stage before ended. Of random-pairs, best is the best random point, and alone the lowest "
    "point of the plane. cost: what is lost if the other dimensions are tuned after the pair. A "
    "cost within the noise of seeds says nothing.",
    compute=_pairs,
    columns=PAIRS,
)
