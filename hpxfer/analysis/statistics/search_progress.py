"""The progress of a search: the points that each arm tried, in the order in which they ended, and the best so far."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from hpxfer.scaling.hps import HPs
from hpxfer.search.arms import Arm, arms_of
from hpxfer.search.kinds import kind_of
from hpxfer.search.replay import replayed
from hpxfer.search.rounds import End, lowest_point, mean
from hpxfer.search.stored import outcomes_of, stored_trials
from hpxfer.search.tuned import tunes_points
from hpxfer.verdict.tied import equal_lowest

if TYPE_CHECKING:
    from hpxfer.results import Results


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A point that ended with every seed."""

    hps: HPs
    losses: tuple[float, ...]  # nats, one per seed; +inf if it diverged
    num_trials: int  # of its arm, that had ended by then, its own included

    @property
    def mean(self) -> float:
        """The mean over the seeds in nats; +inf if one diverged."""
        return mean(self.losses)

    @property
    def se(self) -> float | None:
        """The standard error of the mean over seeds; None with one seed or a diverged one."""
        if len(self.losses) < 2 or not math.isfinite(self.mean):
            return None
        return statistics.stdev(self.losses) / math.sqrt(len(self.losses))


@dataclass(frozen=True, kw_only=True)
class ArmProgress:
    """The points that one arm tried. The base may be the arm of several parameterizations."""

    parameterization: str
    labels: tuple[str, ...]
    shape: str
    is_base: bool
    hps: tuple[str, ...]  # that the search varies
    points: tuple[Tried, ...]  # in the order in which they ended
    end: End | None = None  # what the search said in the end, if it can be replayed

    @property
    def num_trials(self) -> int:
        return self.points[-1].num_trials if self.points else 0

    @cached_property
    def best_so_far(self) -> tuple[Tried | None, ...]:
        """The best point after each point; None while all have diverged."""
        out: list[Tried | None] = []
        for point in self.points:
            last = out[-1] if out else None
            better = math.isfinite(point.mean) and (last is None or point.mean < last.mean)
            out.append(point if better else last)
        return tuple(out)

    def best(self, num_trials: int) -> Tried | None:
        """Return the best point of the first `num_trials` trials."""
        pairs = zip(self.points, self.best_so_far, strict=True)
        known = [best for point, best in pairs if point.num_trials <= num_trials]
        lowest = known[-1] if known else None
        return lowest if lowest is None else self._as_said(lowest, num_trials)

    def _as_said(self, lowest: Tried, num_trials: int) -> Tried:
        """Return of equally low points that which the search ended with, or else the middle one, as the recipe does."""
        known = [point for point in self.points if point.num_trials <= num_trials]
        equal = {known[i].hps: known[i] for i in equal_lowest([point.mean for point in known])}
        said = self.end.best if self.end is not None else None
        if said is None or said not in equal:
            said = lowest_point([(hps, point.losses) for hps, point in equal.items()])
        return lowest if said is None else equal[said]


def search_progress(results: Results) -> tuple[ArmProgress, ...]:
    """Return the points that each arm of a search tried.

    () for lines, which do not choose points, and for a search that trains some seeds of a point only.
    """
    kind = kind_of(results.spec)
    if kind.splits_seeds or (kind.lists_trials and not tunes_points(results.spec)):
        return ()
    expansion, hps = results.expansion, kind_of(results.spec).hps(results.spec)
    found = _by_arm(results)
    ends = {history.strategy.arm: history.end for history in replayed(results)}
    shapes = {point.shape: axis.label(point.shape) for axis in expansion.axes for point in axis.points}
    return tuple(
        ArmProgress(
            parameterization=" = ".join(arm.labels),
            labels=arm.labels,
            shape=shapes[arm.shape],
            is_base=arm.is_base,
            hps=hps,
            points=tuple(_in_order(found.get(arm, {}), results.spec.seeds)),
            end=ends.get(arm),
        )
        for arm in arms_of(expansion)
    )


_Ended = dict[HPs, dict[int, tuple[str, float]]]  # point -> seed -> (when it ended, loss)


def _by_arm(results: Results) -> dict[Arm, _Ended]:
    """Return the stored trials of the sweep that ended, by arm."""
    outcomes = outcomes_of(results.trials, results.spec.judge.loss)
    out: dict[Arm, _Ended] = {}
    for arm, trial, row in stored_trials(results.expansion, results.trials):
        if trial.id in outcomes:
            ended = (str(row["finished_at"] or ""), outcomes[trial.id].value)
            out.setdefault(arm, {}).setdefault(trial.hps, {})[trial.seed] = ended
    return out


def _in_order(found: _Ended, seeds: tuple[int, ...]) -> Iterator[Tried]:
    """Yield the points that have every seed, by the time at which the last one ended."""
    complete = [
        (max(by_seed[seed][0] for seed in seeds), hps, by_seed)
        for hps, by_seed in found.items()
        if by_seed.keys() >= set(seeds)
    ]
    complete.sort(key=lambda point: point[0])
    for number, (_, hps, by_seed) in enumerate(complete, start=1):
        yield Tried(hps=hps, losses=tuple(by_seed[seed][1] for seed in seeds), num_trials=number * len(seeds))
