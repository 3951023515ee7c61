"""What the arms of a search came to, compared at equal budgets: the best point of each, with its error over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from hpxfer.analysis.search_progress import ArmProgress, Tried
from hpxfer.search.compare import gain, pooled
from hpxfer.search.kinds import kind_of
from hpxfer.spec import SweepSpec


@dataclass(frozen=True, kw_only=True)
class ArmBest:
    """The best point of one arm within as many trials as every arm of its shape has had."""

    shape: str
    parameterization: str
    num_trials: int  # compared: the same for all arms of the shape
    num_trials_in_all: int
    num_diverged: int | None = None  # points of those compared
    best_nats: float | None = None  # mean over seeds
    se_nats: float | None = None
    behind_nats: float | None = None  # the shape's best arm, paired over seeds; 0 for itself
    behind_se_nats: float | None = None
    at: str = ""  # the HPs
    on_edge: str = ""  # HPs at an end of the box: a bound, no optimum
    why_not: str | None = None


def search_best(arms: Sequence[ArmProgress], spec: SweepSpec) -> tuple[ArmBest, ...]:
    """Return the best of each arm, shape by shape."""
    out = []
    for _, group in groupby(arms, key=lambda one: one.shape):
        members = list(group)
        num = min(one.num_trials for one in members)
        found = [one.best(num) for one in members]
        known = [one for one in found if one is not None]
        lowest = min(known, key=lambda one: one.mean, default=None)
        out += [_arm_best(one, best, lowest, num, spec) for one, best in zip(members, found, strict=True)]
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
    beside = [gain(one.losses, lowest.losses) for one in arm.points if one.num_trials <= num and one is not lowest]
    (behind,) = pooled([gain(best.losses, lowest.losses)], beside)
    return ArmBest(
        shape=arm.shape,
        parameterization=arm.parameterization,
        num_trials=num,
        num_trials_in_all=arm.num_trials,
        num_diverged=sum(math.isinf(one.mean) for one in arm.points if one.num_trials <= num),
        best_nats=best.mean,
        se_nats=best.se,
        behind_nats=behind.mean,
        behind_se_nats=None if math.isnan(behind.error) or best is lowest else behind.error,
        at=", ".join(f"{name} {best.hps.get(name):.4g}" for name in arm.hps),
        on_edge=", ".join(_on_edge(best, spec)),
    )


def _on_edge(best: Tried, spec: SweepSpec) -> list[str]:
    """Return the HPs of the grid that the point has at an end of its box, to a hundredth of an octave."""
    out: list[str] = []
    if not kind_of(spec).is_box:  # other searches move on from an edge
        return out
    for name, values in spec.grid.items():
        ends = (values.numbers()[0], values.numbers()[-1])
        value = best.hps.get(name)
        if ends[0] < ends[1] and value > 0 and any(abs(math.log2(value / end)) < 0.01 for end in ends if end > 0):
            out.append(name)
    return out
