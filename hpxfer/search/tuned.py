"""Tuned: the point that a search leaves a recipe. Of a grid and of refine the report on the judged line tells it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import HPs
from hpxfer.search.replay import hps_of_row, outcomes_of, replayed
from hpxfer.search.rounds import Played, SeedLosses, lowest_point, mean
from hpxfer.spec import SweepSpec
from hpxfer.trial import base_hps

if TYPE_CHECKING:
    from hpxfer.results import Results

# What they leave is a point, not the bottom of a line.
TUNES_POINTS = ("random", "optuna", "coordinate", "staged-grid")


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The best point of one parameterization at the base."""

    hps: HPs
    losses: SeedLosses  # nats, of each seed
    num_points: int  # that ended with every seed, in its arm
    num_trials: int
    why: str


def tuned(results: Results, label: str) -> Tuned:
    """Return the tuned point; raise HpxferError if the search has none yet.

    Random and optuna: the lowest mean over the seeds. Coordinate: what it kept, which need not be the lowest by luck.
    Staged grid: the best of its last stage.
    """
    kind = results.spec.search.kind
    where, fix = f"{results.folder}: no point tuned by {kind} for {label}", "run the sweep again"
    points = points_at_base(results, label)
    if kind in ("random", "optuna"):
        # What a sweep that was edited left elsewhere was not in the box that the budget was for.
        points = {hps: losses for hps, losses in points.items() if _is_in_box(results.spec, hps)}
        best, why = lowest_point(list(points.items())), f"the lowest mean of {len(points)} points"
    else:
        played = _track(replayed(results), label)
        if played.end is None:
            raise HpxferError(f"{where}: the search must have ended, got trials still to train; {fix}")
        best, why = played.end.best, played.end.why
    if best is None or mean(points.get(best, (math.inf,))) == math.inf:
        raise HpxferError(f"{where}: a point must have finished with every seed, got none; {fix}")
    num_trials = sum(map(len, points.values()))
    return Tuned(hps=best, losses=points[best], num_points=len(points), num_trials=num_trials, why=why)


def points_at_base(results: Results, label: str) -> dict[HPs, SeedLosses]:
    """Return point -> losses of its seeds, for each point at the base that ended with all of them."""
    cells = results.cells
    ids = set(cells.loc[cells["is_base"] & (cells["parameterization"] == label), "trial_id"])
    rows = results.trials[results.trials["trial_id"].isin(ids)]
    outcomes = outcomes_of(rows, results.spec.judge.loss)
    found: dict[HPs, dict[int, float]] = {}
    for row in rows.to_dict("records"):
        if row["trial_id"] in outcomes:
            hps = hps_of_row(row)
            found.setdefault(hps, {})[int(row["seed"])] = outcomes[row["trial_id"]].value
    seeds = results.spec.seeds
    return {hps: tuple(of[seed] for seed in seeds) for hps, of in found.items() if of.keys() >= set(seeds)}


def _is_in_box(spec: SweepSpec, hps: HPs) -> bool:
    """Return whether a point lies between the ends of the grid and has all else at its base value."""
    inside = base_hps(spec)
    for name, values in spec.grid.items():
        low, high = values.numbers()[0], values.numbers()[-1]
        if not low <= hps.get(name) <= high:
            return False
        inside = inside.with_value(name, hps.get(name))
    return inside == hps


def _track(played: tuple[Played, ...], label: str) -> Played:
    return next(one for one in played if one.track.arm.is_base and label in one.track.arm.labels)
