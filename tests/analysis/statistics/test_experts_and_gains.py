"""Gains with size, load balance, and experts against their size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from found_rows import rows

from hpxfer.analysis import Found
from hpxfer.analysis.statistics.experts_size import EXPERTS_SIZE, NO_GROUP, experts_against_size
from hpxfer.analysis.statistics.gains import gain_rows
from hpxfer.analysis.statistics.routers import BALANCE
from hpxfer.analysis.statistics.transferred import TrainedShape
from hpxfer.scaling.shape import Shape
from hpxfer.verdict.loss_grid import SeedLosses, ShapeLosses, loss_grids


def gains(*losses: Mapping[int, float]) -> list[SimpleNamespace]:
    """Return the rows of shapes, each twice as large as the one before."""
    return rows(gain_rows([(f"w{2**i}", 2.0**i, of) for i, of in enumerate(losses)]))


LUCKY = {0: 3.0, 1: 3.5, 2: 4.0}
FALLS = tuple({seed: loss - 0.1 * i + 0.001 * seed * i for seed, loss in LUCKY.items()} for i in range(3))


def test_gains_and_their_slope_are_paired_by_seed_and_ordered_by_scale() -> None:
    first, second, last = gains(*FALLS)
    assert (first.shape, last.shape, last.num_seeds) == ("w1", "w4", 3)
    assert (first.loss_nats, first.lowest_nats, first.highest_nats) == pytest.approx((3.5, 3.0, 4.0))
    assert first.gain_nats is None
    assert (second.gain_nats, last.slope_nats) == pytest.approx((0.099, -0.099))
    assert first.slope_low_nats < -0.099 < first.slope_high_nats < 0, "luck, which all shapes share, is no noise"
    assert 0 < second.gain_low_nats < 0.099 < second.gain_high_nats
    assert {row.monotone for row in (first, second, last)} == {True}
    assert rows(gain_rows([("w2", 2.0, FALLS[1]), ("w1", 1.0, LUCKY)]))[1].gain_nats == pytest.approx(0.099)


def test_a_larger_shape_that_is_surely_worse_is_told_from_noise() -> None:
    base = {0: 3.0, 1: 3.1, 2: 3.05}
    worse = gains(base, {seed: loss + 0.1 + 0.001 * seed for seed, loss in base.items()})
    noise = gains(base, {0: 3.1, 1: 3.0, 2: 3.05})
    assert (worse[0].monotone, noise[0].monotone) == (False, None)


def test_one_seed_tells_nothing_and_divergence_leaves_gains_out() -> None:
    _, single = gains({0: 3.0}, {0: 2.9})
    assert single.gain_nats == pytest.approx(0.1)
    assert (single.gain_low_nats, single.slope_low_nats, single.monotone) == (None, None, None)
    _, gone, other = gains({0: 3.0, 1: 3.0}, {0: math.inf, 1: 2.9}, {2: 2.8})
    assert (gone.loss_nats, gone.gain_nats, other.gain_nats, other.monotone) == (None, None, None, None)
    assert (other.loss_nats, other.slope_nats) == (2.8, None)
    *_, worst = gains(*FALLS, {**FALLS[2], 0: math.inf}, LUCKY, {seed: loss + 1 for seed, loss in LUCKY.items()})
    assert worst.monotone is False, "one sure loss is enough, whatever diverged before it"


SHAPE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=32, head_dim=32)
DENSE = Shape(width=32, depth=2, head_dim=32, dense_width=32)
SHAPES = {("width", "w32"): SHAPE, ("width", "dense"): DENSE}


Cell = tuple[str, str, float, str]  # trial, shape, value, status
Point = tuple[str, int, int, float]  # trial, layer, step, value


def balance(cells: list[Cell], *points: Point) -> Found:
    """Return the load balance of cells whose curves lie in a frame as a store has it: names are categories."""
    frame = pd.DataFrame(cells, columns=["trial_id", "shape", "value", "status"])
    frame = frame.assign(axis="width", scale_name="width", scale=32.0, is_base=True, parameterization="planted")
    (grid,) = loss_grids(frame.assign(seed=range(len(frame)), loss=3.0))
    curves = pd.DataFrame(points, columns=["trial_id", "layer", "step", "value"]).assign(metric="load_deviation")
    inputs: Any = SimpleNamespace(
        judged=SimpleNamespace(estimates=[SimpleNamespace(grid=grid)]),
        results=SimpleNamespace(curves=curves.astype({"trial_id": "category", "metric": "category"})),
        shapes=SHAPES,
        hp="lr",
    )
    return BALANCE.compute(inputs)


def test_the_worst_layer_counts_and_seeds_are_averaged() -> None:
    """Deviations of the layers of two seeds, over the fair share of a quarter."""
    found = balance(
        [("a", "w32", 0.1, "finished"), ("b", "w32", 0.1, "finished"), ("c", "w32", 0.2, "finished")],
        *[("a", 0, 0, 0.1), ("a", 1, 0, 0.3), ("a", 1, 5, 0.1), ("a", 0, 5, 0.2)],
        *[("b", 0, 0, 0.5), ("b", 0, 5, 0.4), ("c", 0, 0, 0.9)],
    )
    first, second = rows(found.frame)
    assert (first.value, first.num_seeds, first.fair_share) == (0.1, 2, 0.25)
    assert (first.peak, first.final) == pytest.approx((0.4 / 0.25, 0.3 / 0.25))
    assert (second.value, second.peak) == (0.2, pytest.approx(0.9 / 0.25))


def test_a_diverged_seed_ends_the_mean_and_is_counted() -> None:
    found = balance(
        [("a", "w32", 0.1, "finished"), ("b", "w32", 0.1, "diverged")],
        *[("a", 0, 0, 0.1), ("a", 0, 5, 0.2), ("b", 0, 0, 0.3)],
    )
    (only,) = rows(found.frame)
    assert (only.peak, only.final) == pytest.approx((0.2 / 0.25, 0.2 / 0.25)), "the first step, which both have"
    assert only.num_diverged == 1


def test_dense_models_and_missing_curves_say_why() -> None:
    dense, missing = (balance([cell]) for cell in (("a", "dense", 0.1, "finished"), ("a", "w32", 0.1, "missing")))
    assert dense.unknown == (("width planted lr", "no shape has experts"),)
    assert missing.unknown == (("width planted lr", "no trial has a curve of its load"),)
    assert dense.frame.empty
    assert missing.frame.empty


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


def planted(slope: float, *, seeds: int = 3, noise: float = 0.002, seed: int = 0) -> list[SimpleNamespace]:
    """Return the rows of the one group of equal parameters."""
    rng = np.random.default_rng(seed)
    luck = 0.05 * rng.standard_normal(seeds)  # a seed's, at every shape: no noise of a difference
    every = [
        trained(split(k), {s: 3 + slope * math.log2(k) + luck[s] + noise * rng.standard_normal() for s in range(seeds)})
        for k in (1, 2, 4)
    ]
    every.append(trained(replace(BASE, width=128, expert_width=128), {0: 2.5}))
    every.append(trained(replace(BASE, num_experts=8), {0: 2.7}))
    found = rows(experts_against_size(every))
    assert {row.group for row in found} == {0}
    return found


@pytest.mark.parametrize("slope", [-0.03, 0.02])
def test_the_slope_per_doubling_of_experts_is_found(slope: float) -> None:
    group = planted(slope)
    assert [row.num_experts for row in group] == [4, 8, 16]
    assert {(row.expert_features, row.active_features) for row in group} == {(256, 128)}
    found, low, high = group[0].slope_nats_per_doubling, group[0].slope_low, group[0].slope_high
    assert found == pytest.approx(slope, abs=0.004)
    assert low < found < high
    assert low * high > 0


def test_no_slope_is_not_seen_where_there_is_none() -> None:
    seen = 0
    for seed in range(100):
        first, *_ = planted(0.0, seed=seed)
        seen += not first.slope_low <= 0 <= first.slope_high
    assert seen <= 12


def test_other_parameters_other_group() -> None:
    every = [trained(BASE, {0: 3.0}), trained(replace(BASE, num_experts=8), {0: 2.9}), trained(split(2), {0: math.inf})]
    inputs: Any = SimpleNamespace(hp="lr", once=lambda _: SimpleNamespace(over_all={"planted": (0.01, every)}))
    found = EXPERTS_SIZE.compute(inputs)
    assert found.frame.empty
    assert found.unknown == (("planted lr", NO_GROUP),)


def test_one_seed_has_no_interval() -> None:
    for row in planted(0.02, seeds=1):
        assert row.slope_nats_per_doubling is not None
        assert (row.slope_low, row.se_nats) == (None, None)
