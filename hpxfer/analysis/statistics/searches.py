"""Searches: the best point of each arm, and what the rounds came to, as each search reports it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.search import ArmPoints, arm_points, best_of_arms, kind_of


def points_of(inputs: Inputs) -> tuple[ArmPoints, ...]:
    """Return the points that each arm tried."""
    return arm_points(inputs.results)


def _rows_of(inputs: Inputs, form: str) -> tuple[Any, ...]:
    """Return the rows of the search's report if it has this form, else ()."""
    kind = kind_of(inputs.results.spec)
    return tuple(kind.report(inputs.results)) if kind.form == form else ()


SEARCH_BEST = Statistic(
    name="search_best",
    title="The best of each arm, at equal budgets",
    note="Arms of a shape are compared over as many trials as each of them has had, in the order in which they ended. "
    "Mean and standard error over seeds; behind: over the shape's best arm, paired over seeds. The best of many points "
    "is partly luck: its loss is too low by about the noise of a point. An HP on the edge of its range is a bound.",
    compute=lambda inputs: best_of_arms(inputs.once(points_of), inputs.results.spec),
)

SEARCH_STEPS = Statistic(
    name="search_steps",
    title="Constant multipliers, one after the other",
    note="Each ratio's gain over what was kept before, paired over seeds, with its standard error (arXiv 2601.20205, "
    "Appendix D.1).",
    compute=lambda inputs: _rows_of(inputs, "steps"),
)


@dataclass(frozen=True, kw_only=True)
class PairOptimum:
    """Two dimensions of one stage of one arm."""

    parameterization: str
    shape: str
    stage: str  # broad | fine
    first: str
    second: str
    best_first: float  # of the whole stage
    best_second: float
    alone_first: float  # of the pair, all other dimensions at the center of the grid
    alone_second: float
    differ: bool
    alone_nats: float | None  # the loss there, in the plane through the center; None if the whole plane diverged
    cost_nats: float | None  # what is lost if the other dimensions are tuned after the pair; None as `alone_nats`


def pair_optima(inputs: Inputs) -> tuple[PairOptimum, ...]:
    """Return every pair of every stage, arm by arm; () for another search."""
    out = []
    for _, cells in groupby(_rows_of(inputs, "heatmaps"), key=lambda cell: (cell.arm, cell.stage, cell.x, cell.y)):
        rows = list(cells)
        best = next(cell for cell in rows if cell.is_best)
        alone = next(cell for cell in rows if cell.is_best_at_center)
        known = alone.at_center_nats is not None and alone.lowest_nats is not None
        out.append(
            PairOptimum(
                parameterization=best.parameterization,
                shape=best.shape,
                stage=best.stage,
                first=best.x,
                second=best.y,
                best_first=best.x_value,
                best_second=best.y_value,
                alone_first=alone.x_value,
                alone_second=alone.y_value,
                differ=best != alone,
                alone_nats=alone.at_center_nats,
                cost_nats=alone.lowest_nats - best.lowest_nats if known else None,
            )
        )
    return tuple(out)


PAIR_OPTIMA = Statistic(
    name="pair_optima",
    title="A pair tuned by itself against all dimensions together",
    note="best: the values of the stage's best point. alone: the best values with all other dimensions at the center "
    "of the grid, where the stage before ended. cost: what is lost if the other dimensions are tuned after the pair. A "
    "cost within the noise of seeds says nothing.",
    compute=pair_optima,
)
