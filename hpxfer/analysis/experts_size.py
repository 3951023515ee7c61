"""Experts against expert size: with the experts' parameters held, are many small experts better than few large ones?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from hpxfer.analysis.gather import Place
from hpxfer.analysis.scaling_fit import pooled_noise
from hpxfer.analysis.thresholds import CONFIDENCE
from hpxfer.scaling.shape import Shape


@dataclass(frozen=True, kw_only=True)
class SizePoint:
    """One shape. `loss` is nats, mean over seeds at the transferred HP."""

    shape: str
    num_experts: int
    num_active: int
    expert_width: int
    loss: float
    se: float | None  # from seeds, pooled over the shapes; None with one seed
    num_seeds: int


@dataclass(frozen=True, kw_only=True)
class EqualSize:
    """Shapes that differ in nothing but experts and their size, with equal expert parameters, by num_experts."""

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
    every: Sequence[tuple[Place, Shape]], *, parameterization: str, hp: str, value: float | None
) -> ExpertsAgainstSize:
    """Return the groups of equal expert parameters among distinct shapes."""
    groups: dict[Shape, list[tuple[Place, Shape]]] = defaultdict(list)
    for place, shape in every:
        if shape.num_experts and place.mean is not None:
            groups[_rest(shape)].append((place, shape))
    found = [_equal_size(sorted(one, key=lambda pair: pair[1].num_experts)) for one in groups.values() if len(one) > 1]
    return ExpertsAgainstSize(
        parameterization=parameterization,
        hp=hp,
        value=value,
        groups=tuple(sorted(found, key=lambda one: (one.width, one.depth, one.expert_features, one.active_features))),
        why_not=None if found else "no two shapes with finite losses hold the same expert parameters in other experts",
    )


def _rest(shape: Shape) -> Shape:
    """Return what a group has in common: experts as one, which hold all features, and what a token meets of them."""
    return replace(
        shape,
        num_experts=1,
        num_active=shape.num_active * shape.expert_width,
        expert_width=shape.num_experts * shape.expert_width,
        num_groups=1,
    )


def _equal_size(group: list[tuple[Place, Shape]]) -> EqualSize:
    shape = group[0][1]
    noise, _ = pooled_noise([list(place.losses.values()) for place, _ in group])
    slope, half = _slope(group)
    return EqualSize(
        width=shape.width,
        depth=shape.depth,
        expert_features=shape.num_experts * shape.expert_width,
        active_features=shape.num_active * shape.expert_width,
        points=tuple(
            SizePoint(
                shape=place.shape,
                num_experts=one.num_experts,
                num_active=one.num_active,
                expert_width=one.expert_width,
                loss=place.mean or 0.0,
                se=None if noise is None else noise / math.sqrt(len(place.runs)),
                num_seeds=len(place.runs),
            )
            for place, one in group
        ),
        slope=slope,
        low=None if slope is None or half is None else slope - half,
        high=None if slope is None or half is None else slope + half,
    )


def _slope(group: list[tuple[Place, Shape]]) -> tuple[float | None, float | None]:
    """Return the slope over log2 num_experts and half its interval, from the slopes of seeds that all shapes have."""
    x = np.log2([shape.num_experts for _, shape in group])
    dx = x - x.mean()
    seeds = [seed for seed in group[0][0].losses if all(seed in place.losses for place, _ in group)]
    if not seeds or not dx.any():
        return None, None
    slopes = np.array([[place.losses[seed] for place, _ in group] for seed in seeds]) @ dx / float(dx @ dx)
    if len(seeds) < 2:
        return float(slopes.mean()), None
    t = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(seeds) - 1))
    return float(slopes.mean()), t * float(slopes.std(ddof=1)) / math.sqrt(len(seeds))
