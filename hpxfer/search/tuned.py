"""Tuned: the best point of a search that tunes points. A search that scans lines leaves it to the transfer report."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import HPs
from hpxfer.search.kinds import kind_of
from hpxfer.search.replay import replayed
from hpxfer.search.rounds import ArmHistory, SeedLosses, lowest_point, mean
from hpxfer.search.stored import StoredCells, box_bounds, hps_of_row, is_in_box, outcomes_of
from hpxfer.spec import SweepSpec, axes_of


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The best point of one parameterization at the base."""

    hps: HPs
    losses: SeedLosses  # nats, of each seed
    num_points: int  # of its arm, that ended with every seed
    num_trials: int
    why: str
    bounds: tuple[str, ...]  # e.g. `init_scale >= 16`: HPs whose best value lies on an edge of what was tried


def is_base_alone(spec: SweepSpec) -> bool:
    """Return whether no axis has a shape beyond the base, so that nothing transfers."""
    return all(point.shape == spec.base_shape for axis in axes_of(spec) for point in axis.points)


def tunes_points(spec: SweepSpec) -> bool:
    """Return whether a sweep's recipe is its best point instead of the best of a line.

    A product grid at the base alone has every combination of its HPs there. The best one counts, and not the best of
    the line through base values.
    """
    return kind_of(spec).tunes == "points" or _is_product_at_base(spec)


def _is_product_at_base(spec: SweepSpec) -> bool:
    return spec.product and len(spec.grid) > 1 and kind_of(spec).lists_trials and is_base_alone(spec)


def tuned(results: StoredCells, label: str) -> Tuned:
    """Return the tuned point. Raise HpxferError if the search has none yet.

    In a box or a product grid it is the point of the lowest mean over the seeds. Otherwise it is the point that the
    search ended with: for coordinate what it kept, for a staged grid the best of its last stage.
    """
    kind = kind_of(results.spec)
    where, fix = f"{results.folder}: no point tuned by {kind.name} for {label}", "run the sweep again"
    points = points_at_base(results, label)
    if kind.is_box or kind.lists_trials:
        # The budget was for the box, so points outside it, which an edited sweep left, do not count.
        box = results.expansion.arms[label][0].spec
        points = {hps: losses for hps, losses in points.items() if is_in_box(box, hps)}
        best, why = lowest_point(list(points.items())), f"the lowest mean of {len(points)} points"
        bounds = () if best is None else box_bounds(box, best)
    else:
        played = _history(replayed(results), label)
        if played.end is None:
            raise HpxferError(f"{where}: the search must have ended, got trials still to train; {fix}")
        best, why, bounds = played.end.best, played.end.why, played.end.bounds
    if best is None or mean(points.get(best, (math.inf,))) == math.inf:
        raise HpxferError(f"{where}: a point must have finished with every seed, got none; {fix}")
    num_trials = sum(map(len, points.values()))
    return Tuned(hps=best, losses=points[best], num_points=len(points), num_trials=num_trials, why=why, bounds=bounds)


def points_at_base(results: StoredCells, label: str) -> dict[HPs, SeedLosses]:
    """Return point -> losses of its seeds, for each point at the base that ended with every seed."""
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


def _history(played: tuple[ArmHistory, ...], label: str) -> ArmHistory:
    return next(each for each in played if each.strategy.arm.is_base and label in each.strategy.arm.labels)
