"""The best point of each arm of a search, the trials that led to it, and what each step of a search gained."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.scaling.hps import HPs
from hpxfer.search.compare import gain, pooled
from hpxfer.search.coordinate import CoordinateSettings, decisions_of
from hpxfer.search.kinds import kind_of
from hpxfer.search.protocol import Arm, arms_of
from hpxfer.search.replay import replayed
from hpxfer.search.rounds import End, lowest_point, mean
from hpxfer.search.stored import box_bounds, outcomes_of, stored_trials
from hpxfer.search.tuned import tunes_points
from hpxfer.spec import SweepSpec
from hpxfer.verdict.tied import equal_lowest

if TYPE_CHECKING:
    from hpxfer.results import Results


@dataclass(frozen=True, kw_only=True)
class CoordinateStep:
    """One ratio that was tried. `gain_nats` is over the multipliers kept before; None if either diverged."""

    parameterization: str
    shape: str
    step: int  # from 1
    multiplier: str
    ratio: float
    gain_nats: float | None
    se_nats: float | None
    diverged: bool
    kept: bool
    needed: float  # how many standard errors a change must gain to be kept


def coordinate_steps(inputs: Inputs) -> tuple[CoordinateStep, ...]:
    """Return every ratio of every step, in the order tried; () for another search."""
    results = inputs.results
    if kind_of(results.spec).shows != "steps":
        return ()
    noise = results.spec.search.settings(CoordinateSettings).noise
    out = []
    for played in replayed(results):
        for number, step in enumerate(decisions_of(played, results.spec), start=1):
            for at, (ratio, change) in enumerate(zip(step.ratios, step.gains, strict=True)):
                out.append(
                    CoordinateStep(
                        parameterization=" = ".join(played.strategy.arm.labels),
                        shape=played.strategy.arm.shape.label(),
                        step=number,
                        multiplier=step.entry,
                        ratio=ratio,
                        gain_nats=change.mean if math.isfinite(change.mean) else None,
                        se_nats=change.error if math.isfinite(change.error) else None,
                        diverged=change.mean == -math.inf,
                        kept=at == step.kept,
                        needed=noise,
                    )
                )
    return tuple(out)


SEARCH_STEPS = Statistic(
    name="search_steps",
    title="Constant multipliers, one after the other",
    note="Each ratio's gain over what was kept before, paired over seeds, with its standard error (arXiv 2601.20205, "
    "Appendix D.1).",
    compute=coordinate_steps,
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


def search_best(arms: Sequence[ArmProgress], spec: SweepSpec) -> tuple[ArmBest, ...]:
    """Return the best of each arm, shape by shape."""
    out = []
    for _, group in groupby(arms, key=lambda arm: arm.shape):
        members = list(group)
        num = min(arm.num_trials for arm in members)
        found = [arm.best(num) for arm in members]
        lowest = min((best for best in found if best is not None), key=lambda best: best.mean, default=None)
        out += [_arm_best(arm, best, lowest, num, spec) for arm, best in zip(members, found, strict=True)]
    return tuple(out)


def _arm_best(arm: ArmProgress, best: Tried | None, lowest: Tried | None, num: int, spec: SweepSpec) -> ArmBest:
    if best is None or lowest is None:
        why = "none of its points has ended with every seed" if not arm.points else "all of its points diverged"
        return ArmBest(
            shape=arm.shape,
            parameterization=arm.parameterization,
            num_trials=num,
            num_trials_in_all=arm.num_trials,
            why_not=why if arm.num_trials == 0 or num else "an arm of its shape has no point yet",
        )
    compared = [point for point in arm.points if point.num_trials <= num]
    others = [gain(point.losses, lowest.losses) for point in compared if point is not lowest]
    (behind,) = pooled([gain(best.losses, lowest.losses)], others)
    return ArmBest(
        shape=arm.shape,
        parameterization=arm.parameterization,
        num_trials=num,
        num_trials_in_all=arm.num_trials,
        num_diverged=sum(math.isinf(point.mean) for point in compared),
        best_nats=best.mean,
        se_nats=best.se,
        behind_nats=behind.mean,
        behind_se_nats=None if math.isnan(behind.error) or best is lowest else behind.error,
        at=_spelled(arm, best.hps),
        kept=_spelled(arm, arm.end.best) if arm.end and arm.end.best not in (None, best.hps) else "",
        on_edge=", ".join(_bounds(arm, best, spec)),
    )


def _spelled(arm: ArmProgress, hps: HPs | None) -> str:
    return "" if hps is None else ", ".join(f"{name} {hps.get(name):.4g}" for name in arm.hps)


def _bounds(arm: ArmProgress, best: Tried, spec: SweepSpec) -> tuple[str, ...]:
    """Return the HPs that are bounds. A search that moves on from an edge says itself at which edges it ended."""
    kind = kind_of(spec)
    if kind.is_box or kind.lists_trials:
        return box_bounds(spec, best.hps)
    return arm.end.bounds if arm.end is not None else ()


def _best_of_arms(inputs: Inputs) -> tuple[ArmBest, ...]:
    return search_best(inputs.once(progress_of), inputs.results.spec)


def progress_of(inputs: Inputs) -> tuple[ArmProgress, ...]:
    """Return the points that each arm tried."""
    return search_progress(inputs.results)


SEARCH_BEST = Statistic(
    name="search_best",
    title="The best of each arm, at equal budgets",
    note="Arms of a shape are compared over as many trials as each of them has had, in the order in which they ended. "
    "Mean and standard error over seeds; behind: over the shape's best arm, paired over seeds. The best of many points "
    "is partly luck: its loss is too low by about the noise of a point. An HP on the edge of its range is a bound.",
    compute=_best_of_arms,
)


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
