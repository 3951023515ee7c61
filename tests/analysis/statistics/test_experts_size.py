"""Experts against expert size: groups of equal parameters, and the slope that was planted in them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from there import there

from hpxfer.analysis.statistics.experts_size import ExpertsAgainstSize, experts_against_size
from hpxfer.analysis.statistics.transferred import TrainedShape
from hpxfer.scaling.shape import Shape
from hpxfer.verdict.loss_grid import SeedLosses, ShapeLosses

BASE = Shape(width=64, depth=2, num_experts=4, num_active=2, expert_width=64, head_dim=32)


def trained(shape: Shape, losses: dict[int, float]) -> TrainedShape:
    cell = SeedLosses(value=0.01, seeds=tuple(losses), losses=tuple(losses.values()), num_missing=0)
    row = ShapeLosses(
        axis="granularity",
        scale_name="num_active",
        scale=float(shape.num_active),
        shape=shape.label(),
        is_base=shape == BASE,
        parameterization="planted",
        cells=(cell,),
    )
    return TrainedShape(row=row, cell=cell, shape=shape)


def split(factor: int) -> Shape:
    """Return the base with experts cut into `factor` parts: as many parameters, as many active."""
    return replace(
        BASE,
        num_experts=BASE.num_experts * factor,
        num_active=BASE.num_active * factor,
        expert_width=BASE.expert_width // factor,
    )


def planted(slope: float, *, seeds: int = 3, noise: float = 0.002, seed: int = 0) -> ExpertsAgainstSize:
    rng = np.random.default_rng(seed)
    luck = 0.05 * rng.standard_normal(seeds)  # a seed's, at every shape: no noise of a difference
    every = [
        trained(split(k), {s: 3 + slope * math.log2(k) + luck[s] + noise * rng.standard_normal() for s in range(seeds)})
        for k in (1, 2, 4)
    ]
    every.append(trained(replace(BASE, width=128, expert_width=128), {0: 2.5}))
    every.append(trained(replace(BASE, num_experts=8), {0: 2.7}))
    return experts_against_size(every, parameterization="planted", hp="lr", value=0.01)


@pytest.mark.parametrize("slope", [-0.03, 0.02])
def test_the_slope_per_doubling_of_experts_is_found(slope: float) -> None:
    (group,) = planted(slope).groups
    assert [point.num_experts for point in group.points] == [4, 8, 16]
    assert (group.expert_features, group.active_features) == (256, 128)
    assert group.slope == pytest.approx(slope, abs=0.004)
    assert there(group.low) < group.slope < there(group.high)
    assert there(group.low) * there(group.high) > 0


def test_no_slope_is_not_seen_where_there_is_none() -> None:
    seen = 0
    for seed in range(100):
        (group,) = planted(0.0, seed=seed).groups
        seen += not there(group.low) <= 0 <= there(group.high)
    assert seen <= 12


def test_other_parameters_other_group() -> None:
    found = experts_against_size(
        [trained(BASE, {0: 3.0}), trained(replace(BASE, num_experts=8), {0: 2.9}), trained(split(2), {0: math.inf})],
        parameterization="planted",
        hp="lr",
        value=0.01,
    )
    assert found.groups == ()
    assert found.why_not is not None


def test_one_seed_has_no_interval() -> None:
    (group,) = planted(0.02, seeds=1).groups
    assert group.slope is not None
    assert (group.low, group.points[0].se) == (None, None)
