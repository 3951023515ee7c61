"""The best point of each arm of a search, with its error over seeds; arms are compared at equal budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.search_progress import ArmProgress, Tried, search_progress
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.scaling.hps import HPs
from hpxfer.search.compare import gain, pooled
from hpxfer.search.kinds import kind_of
from hpxfer.search.stored import box_bounds
from hpxfer.spec import SweepSpec


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
