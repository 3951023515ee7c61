"""Points that the arms of a search tried: the best of each arm at equal budgets, and the tuned point of a recipe."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from hpxfer.errors import HpxferError
from hpxfer.intervals import equal_lowest
from hpxfer.scaling.hps import HPs
from hpxfer.search.kinds import kind_of
from hpxfer.search.protocol import Arm, arms_of
from hpxfer.search.rounds import End, lowest_point, mean
from hpxfer.search.stored import Searched, box_bounds, is_in_box, outcomes_of, replayed, stored_trials
from hpxfer.search.values import SeedLosses, gain, pooled, values_text
from hpxfer.spec import SweepSpec, axes_of


def is_base_alone(spec: SweepSpec) -> bool:
    """Return whether no axis has a shape beyond the base, so that nothing transfers."""
    return all(point.shape == spec.base_shape for axis in axes_of(spec) for point in axis.points)


def tunes_points(spec: SweepSpec) -> bool:
    """Return whether a sweep's recipe is its best point instead of the best of a line.

    A product grid at the base alone has every combination of its HPs there. The best one counts, and not the best of
    the line through base values.
    """
    kind = kind_of(spec)
    is_product = spec.product and len(spec.grid) > 1 and kind.lists_trials
    return kind.tunes == "points" or (is_product and is_base_alone(spec))


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A point that ended with every seed."""

    hps: HPs
    losses: SeedLosses  # nats; +inf diverged
    num_trials: int  # of its arm, that had ended by then, its own included
    mean: float  # over the seeds; +inf if one diverged
    lowest: float  # mean of its arm's points so far; +inf while all have diverged


@dataclass(frozen=True, kw_only=True)
class ArmPoints:
    """The points that one arm tried, in the order in which they ended. The base may be the arm of several tables."""

    arm: Arm
    shape: str
    hps: tuple[str, ...]  # that the search varies
    points: tuple[Tried, ...]
    end: End | None = None  # what the search said in the end, if it can be replayed

    @property
    def is_base(self) -> bool:
        return self.arm.is_base

    @property
    def parameterization(self) -> str:
        """The names of its tables."""
        return self.arm.parameterization

    @property
    def num_trials(self) -> int:
        """The trials of its points."""
        return self.points[-1].num_trials if self.points else 0

    def best(self, num_trials: int | None = None) -> Tried | None:
        """Return the best point of the first `num_trials` trials, or of all; None if none of them finished.

        Of equally low points it is that which the search ended with, or else the middle one, as the recipe has it.
        """
        known = [point for point in self.points if num_trials is None or point.num_trials <= num_trials]
        if not known or known[-1].lowest == math.inf:
            return None
        equal = {known[i].hps: known[i] for i in equal_lowest([point.mean for point in known])}
        said = self.end.best if self.end is not None else None
        if said is None or said not in equal:
            said = lowest_point([(hps, point.losses) for hps, point in equal.items()])
        assert said is not None, "one of them finished"
        return equal[said]


def arm_points(results: Searched) -> tuple[ArmPoints, ...]:
    """Return the points that each arm of a search tried.

    () for lines, which do not choose points, and for a search that trains some seeds of a point only.
    """
    spec, kind, expansion = results.spec, kind_of(results.spec), results.expansion
    if kind.splits_seeds or (kind.lists_trials and not tunes_points(spec)):
        return ()
    outcomes = outcomes_of(results.trials, spec.judge.loss)
    found: dict[Arm, _Ended] = {}
    for arm, trial, row in stored_trials(expansion, results.trials):
        if trial.id in outcomes:
            ended = (str(row["finished_at"] or ""), outcomes[trial.id].value)
            found.setdefault(arm, {}).setdefault(trial.hps, {})[trial.seed] = ended
    ends = {strategy.arm: history.end for strategy, history in replayed(results)}
    shapes = {point.shape: axis.label(point.shape) for axis in expansion.axes for point in axis.points}
    return tuple(
        ArmPoints(
            arm=arm,
            shape=shapes[arm.shape],
            hps=kind.hps(spec),
            points=tuple(_in_order(found.get(arm, {}), spec.seeds)),
            end=ends.get(arm),
        )
        for arm in arms_of(expansion)
    )


_Ended = dict[HPs, dict[int, tuple[str, float]]]  # point -> seed -> (when it ended, loss)


def _in_order(found: _Ended, seeds: tuple[int, ...]) -> Iterator[Tried]:
    """Yield the points that have every seed, by the time at which the last one ended."""
    complete = {hps: by_seed for hps, by_seed in found.items() if by_seed.keys() >= set(seeds)}
    lowest = math.inf
    in_order = sorted(complete, key=lambda hps: max(complete[hps][seed][0] for seed in seeds))
    for number, hps in enumerate(in_order, start=1):
        losses = tuple(complete[hps][seed][1] for seed in seeds)
        lowest = min(lowest, mean(losses))
        yield Tried(hps=hps, losses=losses, num_trials=number * len(seeds), mean=mean(losses), lowest=lowest)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The best point of one parameterization at the base."""

    hps: HPs
    losses: SeedLosses  # nats, of each seed
    num_points: int  # of its arm, that ended with every seed
    num_trials: int
    why: str
    bounds: tuple[str, ...]  # e.g. `init_scale >= 16`: HPs whose best value lies on an edge of what was tried


def tuned(results: Searched, label: str) -> Tuned:
    """Return the tuned point. Raise HpxferError if the search has none yet.

    In a box or a product grid it is the point of the lowest mean over the seeds. Otherwise it is the point that the
    search ended with: for coordinate what it kept, for a staged grid the best of its last stage.
    """
    kind = kind_of(results.spec)
    where = f"{results.folder}: no point tuned by {kind.name} for {label}"
    nothing = HpxferError(f"{where}: a point must have finished with every seed, got none; run the sweep again")
    found = next((found for found in arm_points(results) if found.is_base and label in found.arm.labels), None)
    if found is None:
        raise nothing
    points, end = {point.hps: point.losses for point in found.points}, found.end
    if kind.is_box or kind.lists_trials:
        # The budget was for the box, so points outside it, which an edited sweep left, do not count.
        box = found.arm.spec
        points = {hps: losses for hps, losses in points.items() if is_in_box(box, hps)}
        best = lowest_point(list(points.items()))
        bounds = () if best is None else box_bounds(box, best)
        end = End(why=f"the lowest mean of {len(points)} points", best=best, bounds=bounds)
    if end is None:
        raise HpxferError(f"{where}: the search must have ended, got trials still to train; run the sweep again")
    if end.best is None or mean(points.get(end.best, (math.inf,))) == math.inf:
        raise nothing
    return Tuned(
        hps=end.best,
        losses=points[end.best],
        num_points=len(points),
        num_trials=sum(map(len, points.values())),
        why=end.why,
        bounds=end.bounds,
    )


@dataclass(frozen=True, kw_only=True)
class ArmBest:
    """The best point of one arm. Arms of a shape are compared over as many trials as each of them has had."""

    shape: str
    parameterization: str
    num_trials: int  # compared: the same for all arms of the shape
    num_trials_in_all: int  # of this arm
    num_diverged: int | None = None  # points among those compared
    best_nats: float | None = None  # mean over seeds
    se_nats: float | None = None
    behind_nats: float | None = None  # its loss over that of the shape's best arm, paired over seeds; 0 for that arm
    behind_se_nats: float | None = None
    at: str = ""  # the HPs
    kept: str = ""  # what the search ended with, if it is another point: coordinate keeps what beats the noise
    on_edge: str = ""  # e.g. `lr >= 0.1, init_scale <= 0.5`: bounds, at an end of what was tried, and no optima
    why_not: str | None = None


def best_of_arms(arms: Sequence[ArmPoints], spec: SweepSpec) -> tuple[ArmBest, ...]:
    """Return the best of each arm, shape by shape."""
    out = []
    for _, group in groupby(arms, key=lambda arm: arm.shape):
        members = list(group)
        num = min(arm.num_trials for arm in members)
        found = [arm.best(num) for arm in members]
        lowest = min((best for best in found if best is not None), key=lambda best: best.mean, default=None)
        out += [_arm_best(arm, best, lowest, num, spec) for arm, best in zip(members, found, strict=True)]
    return tuple(out)


def _arm_best(arm: ArmPoints, best: Tried | None, lowest: Tried | None, num: int, spec: SweepSpec) -> ArmBest:
    blank = ArmBest(
        shape=arm.shape, parameterization=arm.parameterization, num_trials=num, num_trials_in_all=arm.num_trials
    )
    if best is None or lowest is None:
        why = "none of its points has ended with every seed" if not arm.points else "all of its points diverged"
        return replace(blank, why_not=why if arm.num_trials == 0 or num else "an arm of its shape has no point yet")
    compared = [point for point in arm.points if point.num_trials <= num]
    others = [gain(point.losses, lowest.losses) for point in compared if point is not lowest]
    (behind,) = pooled([gain(best.losses, lowest.losses)], others)
    several, kind, end = len(best.losses) > 1, kind_of(spec), arm.end
    # A search that moves on from an edge says itself at which edges it ended.
    bounds = box_bounds(spec, best.hps) if kind.is_box or kind.lists_trials else end.bounds if end else ()
    return replace(
        blank,
        num_diverged=sum(math.isinf(point.mean) for point in compared),
        best_nats=best.mean,
        se_nats=statistics.stdev(best.losses) / math.sqrt(len(best.losses)) if several else None,
        behind_nats=behind.mean,
        behind_se_nats=None if math.isnan(behind.error) or best is lowest else behind.error,
        at=values_text(arm.hps, best.hps),
        kept=values_text(arm.hps, end.best) if end and end.best not in (None, best.hps) else "",
        on_edge=", ".join(bounds),
    )
