"""Number of experts against their size: at equal parameters, are many small experts better than few large ones?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.scaling_fit import pooled_noise
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.analysis.statistics.transferred import TrainedShape, transferred
from hpxfer.scaling.shape import Shape
from hpxfer.verdict import mean_interval


@dataclass(frozen=True, kw_only=True)
class SizePoint:
    """One shape. `loss` is nats, mean over seeds at the transferred HP."""

    shape: str
    num_experts: int
    num_active: int
    expert_width: int
    loss: float
    se: float | None  # from seeds, pooled over shapes; None with one seed
    num_seeds: int


@dataclass(frozen=True, kw_only=True)
class EqualSize:
    """Shapes with equal expert parameters that differ only in the number and size of experts, by num_experts."""

    width: int
    depth: int
    expert_features: int  # num_experts * expert_width
    active_features: int  # num_active * expert_width
    points: tuple[SizePoint, ...]
    slope: float | None  # nats per doubling of num_experts at equal parameters
    low: float | None  # 95%; None with one seed
    high: float | None


@dataclass(frozen=True, kw_only=True)
class ExpertsAgainstSize:
    """The groups of equal size of one parameterization, over all axes."""

    parameterization: str
    hp: str
    value: float | None = None
    groups: tuple[EqualSize, ...] = ()
    why_not: str | None = None


def experts_against_size(
    every: Sequence[TrainedShape], *, parameterization: str, hp: str, value: float | None
) -> ExpertsAgainstSize:
    """Return the groups of equal expert parameters among distinct shapes."""
    groups: dict[Shape, list[TrainedShape]] = defaultdict(list)
    for trained in every:
        if trained.shape.num_experts and trained.cell.mean is not None:
            groups[_rest(trained.shape)].append(trained)
    found = [
        _equal_size(sorted(group, key=lambda trained: trained.shape.num_experts))
        for group in groups.values()
        if len(group) > 1
    ]
    return ExpertsAgainstSize(
        parameterization=parameterization,
        hp=hp,
        value=value,
        groups=tuple(
            sorted(found, key=lambda size: (size.width, size.depth, size.expert_features, size.active_features))
        ),
        why_not=None if found else "no two shapes with finite losses hold the same expert parameters in other experts",
    )


def _rest(shape: Shape) -> Shape:
    """Return the shape with all its experts merged, which the members of a group have in common."""
    return replace(
        shape,
        num_experts=1,
        num_active=shape.num_active * shape.expert_width,
        expert_width=shape.num_experts * shape.expert_width,
        num_groups=1,
    )


def _equal_size(group: Sequence[TrainedShape]) -> EqualSize:
    shape = group[0].shape
    noise, _ = pooled_noise([trained.cell.losses for trained in group])
    slope, low, high = _slope(group)
    return EqualSize(
        width=shape.width,
        depth=shape.depth,
        expert_features=shape.num_experts * shape.expert_width,
        active_features=shape.num_active * shape.expert_width,
        points=tuple(
            SizePoint(
                shape=trained.row.shape,
                num_experts=trained.shape.num_experts,
                num_active=trained.shape.num_active,
                expert_width=trained.shape.expert_width,
                loss=trained.cell.mean or 0.0,
                se=None if noise is None else noise / math.sqrt(len(trained.cell.losses)),
                num_seeds=len(trained.cell.losses),
            )
            for trained in group
        ),
        slope=slope,
        low=low,
        high=high,
    )


def _slope(group: Sequence[TrainedShape]) -> tuple[float | None, float | None, float | None]:
    """Return the slope over log2 num_experts and its 95% interval, from the slopes of seeds that all shapes have."""
    x = np.log2([trained.shape.num_experts for trained in group])
    dx = x - x.mean()
    losses = [trained.cell.by_seed for trained in group]
    seeds = [seed for seed in losses[0] if all(seed in by_seed for by_seed in losses)]
    if not seeds or not dx.any():
        return None, None, None
    slopes = np.array([[by_seed[seed] for by_seed in losses] for seed in seeds]) @ dx / float(dx @ dx)
    return mean_interval(slopes)


def _experts_sizes(inputs: Inputs) -> list[ExpertsAgainstSize]:
    return [
        ExpertsAgainstSize(parameterization=label, hp=inputs.hp, why_not=NO_BASE_VALUE)
        if value is None
        else experts_against_size(every, parameterization=label, hp=inputs.hp, value=value)
        for label, (value, every) in inputs.once(transferred).over_all.items()
    ]


EXPERTS_SIZE = Statistic(
    name="experts_size",
    title="Many small experts or few large ones?",
    note="At equal parameters: nats per doubling of the number of experts.",
    compute=_experts_sizes,
    parts="groups",
)
