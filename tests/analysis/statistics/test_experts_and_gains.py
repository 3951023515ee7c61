"""Improvement with size, load balance, and experts against their size."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from there import there

from hpxfer.analysis.statistics.experts_size import ExpertsAgainstSize, experts_against_size
from hpxfer.analysis.statistics.improvement import improvement
from hpxfer.analysis.statistics.routers import load_balance
from hpxfer.analysis.statistics.transferred import Curve, TrainedShape, curves_by_trial
from hpxfer.scaling.shape import Shape
from hpxfer.verdict.loss_grid import LossGrid, SeedLosses, ShapeLosses, loss_grids


def test_paired_steps_see_what_unpaired_ones_would_not() -> None:
    lucky = {0: 3.0, 1: 3.5, 2: 4.0}
    found = improvement([64, 32], [{seed: loss - 0.1 + 0.001 * seed for seed, loss in lucky.items()}, lucky])
    (step,) = found.steps
    assert (step.scale, step.next_scale, step.num_seeds) == (32, 64, 3)
    assert step.gain_nats == pytest.approx(0.099)
    assert found.monotone is True


def test_a_larger_shape_that_is_surely_worse_is_told_from_noise() -> None:
    base = {0: 3.0, 1: 3.1, 2: 3.05}
    worse = improvement([32, 64], [base, {seed: loss + 0.1 + 0.001 * seed for seed, loss in base.items()}])
    assert worse.monotone is False
    assert improvement([32, 64], [base, {0: 3.1, 1: 3.0, 2: 3.05}]).monotone is None


def test_one_seed_tells_nothing_and_divergence_leaves_a_step_out() -> None:
    single = improvement([32, 64], [{0: 3.0}, {0: 2.9}])
    assert (single.steps[0].low, single.monotone) == (None, None)
    gone = improvement([32, 64, 128], [{0: 3.0, 1: 3.0}, {0: math.inf, 1: 2.9}, {2: 2.8}])
    assert gone.left_out == ((32, 64), (64, 128))
    assert gone.monotone is None
    assert gone.losses == (3.0, None, 2.8)
    assert gone.why_not is not None


SHAPE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=32, head_dim=32)
DENSE = Shape(width=32, depth=2, head_dim=32, dense_width=32)
SHAPES = {("width", "w32"): SHAPE, ("width", "dense"): DENSE}


def cells(*rows: tuple[str, str, float, str]) -> LossGrid:
    """Return the grid of (trial, shape, value, status)."""
    frame = pd.DataFrame(rows, columns=["trial_id", "shape", "value", "status"])
    frame = frame.assign(axis="width", scale_name="width", scale=32.0, is_base=True, parameterization="planted")
    (grid,) = loss_grids(frame.assign(seed=range(len(frame)), loss=3.0))
    return grid


def curves(*rows: tuple[str, int, int, float]) -> dict[str, Curve]:
    """Return the curves of (trial, layer, step, value), read from a frame as a store has it: names are categories."""
    frame = pd.DataFrame(rows, columns=["trial_id", "layer", "step", "value"]).assign(metric="load_deviation")
    frame = frame.astype({"trial_id": "category", "metric": "category"})
    return curves_by_trial(frame, "load_deviation", {row[0] for row in rows})


def test_the_worst_layer_counts_and_seeds_are_averaged() -> None:
    balance = load_balance(
        cells(("a", "w32", 0.1, "finished"), ("b", "w32", 0.1, "finished"), ("c", "w32", 0.2, "finished")),
        curves(
            *[("a", 0, 0, 0.1), ("a", 1, 0, 0.3), ("a", 1, 5, 0.1), ("a", 0, 5, 0.2)],
            *[("b", 0, 0, 0.5), ("b", 0, 5, 0.4), ("c", 0, 0, 0.9)],
        ),
        SHAPES,
        "lr",
    )
    first, second = balance.lines
    assert (first.value, first.steps, first.num_seeds, first.fair_share) == (0.1, (0, 5), 2, 0.25)
    assert first.max_deviation == pytest.approx((0.4, 0.3))
    assert (first.peak, first.final) == pytest.approx((0.4, 0.3))
    assert (second.value, second.max_deviation) == (0.2, (0.9,))


def test_a_diverged_seed_ends_the_mean_and_is_counted() -> None:
    balance = load_balance(
        cells(("a", "w32", 0.1, "finished"), ("b", "w32", 0.1, "diverged")),
        curves(("a", 0, 0, 0.1), ("a", 0, 5, 0.2), ("b", 0, 0, 0.3)),
        SHAPES,
        "lr",
    )
    assert (balance.lines[0].steps, balance.lines[0].num_diverged) == ((0,), 1)


def test_dense_models_and_missing_curves_say_why() -> None:
    none = curves()
    assert load_balance(cells(("a", "dense", 0.1, "finished")), none, SHAPES, "lr").why_not == "no shape has experts"
    missing = load_balance(cells(("a", "w32", 0.1, "missing")), none, SHAPES, "lr")
    assert missing.why_not == "no trial has a curve of its load"


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
