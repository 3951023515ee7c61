"""The optimum: planted ones are found, bounds are bounds, and the laws of a minimum hold."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_lines import GRID, STAYS, line

from hpxfer.verdict.loss_grid import ShapeLosses, loss_grids
from hpxfer.verdict.optimum import find_optimum, measured_optimum

INF = math.inf
VALUES = [2.0**-4, 2.0**-3, 2.0**-2, 2.0**-1, 1.0]
LOSSES = st.lists(st.floats(1.0, 10.0).map(lambda x: round(x, 6)), min_size=5, max_size=5)


def first_row(frame: pd.DataFrame) -> ShapeLosses:
    return loss_grids(frame)[0].rows[0]


@pytest.mark.parametrize("planted", [-7.5, -6.0, -5.9, -5.51])
def test_a_parabola_gives_back_its_vertex(planted: float) -> None:
    found = find_optimum([2.0**e for e in GRID], [3 + 0.1 * (e - planted) ** 2 for e in GRID])
    assert found.kind == "interior"
    assert found.bracketed
    assert found.log2_value == pytest.approx(planted, abs=1e-9)


def test_a_parabola_on_an_uneven_grid_gives_back_its_vertex() -> None:
    xs = [-9.0, -7.0, -6.5, -4.0]
    found = find_optimum([2.0**x for x in xs], [(x + 6.9) ** 2 for x in xs])
    assert found.log2_value == pytest.approx(-6.9, abs=1e-9)


@pytest.mark.parametrize(
    ("losses", "kind", "log2_value", "bracketed"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], "lower_edge", -4.0, False),
        ([5.0, 4.0, 3.0, 2.0, 1.0], "upper_edge", 0.0, False),
        ([5.0, 4.0, 3.0, 2.0, INF], "at_divergence", -1.0, True),
        ([INF, 2.0, 3.0, 4.0, 5.0], "at_divergence", -3.0, True),
        ([1.0, 2.0, 3.0, INF, INF], "lower_edge", -4.0, False),
        ([3.0, 2.0, INF, INF, INF], "none", None, False),
        ([INF] * 5, "none", None, False),
        ([None] * 5, "none", None, False),
        ([3.0, 3.0, 3.0, 3.0, 3.0], "lower_edge", -4.0, False),
        ([4.0, 3.0, 3.0, 4.0, 5.0], "interior", -2.5, True),
        ([4.0, 3.0, None, 4.0, 5.0], "interior", None, False),
        ([None, 3.0, 4.0, 5.0, 6.0], "lower_edge", -3.0, False),
    ],
)
def test_kinds(losses: list[float | None], kind: str, log2_value: float | None, bracketed: bool) -> None:
    found = find_optimum(VALUES, losses)
    assert found.kind == kind
    assert found.bracketed == bracketed
    if log2_value is not None or kind == "none":
        assert found.log2_value == (None if log2_value is None else pytest.approx(log2_value))


def test_too_few_points_say_so() -> None:
    assert (
        find_optimum(VALUES, [3.0, 2.0, INF, None, INF]).open_because == "2 HP values have a finite loss, 3 are needed"
    )


def test_a_neighbor_without_a_result_leaves_the_optimum_open() -> None:
    found = find_optimum(VALUES, [4.0, 3.0, None, 4.0, 5.0])
    assert found.open_because == "HP 0.25 next to the best one has no result"
    assert find_optimum(VALUES, [None, 4.0, 3.0, 4.0, 5.0]).bracketed


@given(losses=LOSSES, shift=st.floats(-0.5, 5.0))
@settings(deadline=None, max_examples=60)
def test_a_constant_on_all_losses_does_not_move_the_optimum(losses: list[float], shift: float) -> None:
    found, shifted = find_optimum(VALUES, losses), find_optimum(VALUES, [loss + shift for loss in losses])
    assert (shifted.kind, shifted.grid_value) == (found.kind, found.grid_value)
    assert shifted.log2_value == pytest.approx(found.log2_value, abs=1e-6)


@given(losses=LOSSES, octaves=st.integers(-20, 20))
@settings(deadline=None, max_examples=60)
def test_scaling_the_hp_moves_the_optimum_with_it(losses: list[float], octaves: int) -> None:
    found = find_optimum(VALUES, losses)
    moved = find_optimum([value * 2.0**octaves for value in VALUES], losses)
    assert moved.kind == found.kind
    assert moved.log2_value == pytest.approx((found.log2_value or 0.0) + octaves, abs=1e-9)


@given(losses=st.lists(st.one_of(st.floats(1.0, 10.0), st.just(INF), st.none()), min_size=5, max_size=5))
@settings(deadline=None, max_examples=100)
def test_the_optimum_is_no_further_than_halfway_to_a_neighbor(losses: list[float | None]) -> None:
    found = find_optimum(VALUES, losses)
    if found.grid_value is None or found.log2_value is None:
        return
    at = VALUES.index(found.grid_value)
    measured = [math.log2(value) for value, loss in zip(VALUES, losses, strict=True) if loss is not None]
    here = math.log2(found.grid_value)
    low = max((x for x in measured if x < here), default=here)
    high = min((x for x in measured if x > here), default=here)
    assert (low + here) / 2 - 1e-9 <= found.log2_value <= (here + high) / 2 + 1e-9
    assert losses[at] == min(loss for loss in losses if loss is not None)


def test_the_spread_is_over_the_optima_of_single_seeds() -> None:
    frame = line(STAYS, scales=(32.0,), noise=0.0)
    exponent = np.log2(frame["value"])
    frame["loss"] = 3 + 0.1 * (exponent - np.where(frame["seed"] == 0, -6.4, -6.1)) ** 2
    found = measured_optimum(first_row(frame))
    assert found.log2_value == pytest.approx(-6.25, abs=1e-9)
    assert (found.seed_low_log2, found.seed_high_log2) == (pytest.approx(-6.4), pytest.approx(-6.1))


def test_one_seed_has_no_spread() -> None:
    found = measured_optimum(first_row(line(STAYS, scales=(32.0,), seeds=1)))
    assert found.seed_low_log2 is None


def test_a_better_loss_off_the_axis_leaves_the_optimum_open() -> None:
    frame = line(STAYS, scales=(32.0,))
    zero = frame["value"] == 2.0**-9
    frame.loc[zero, "value"] = 0.0
    assert measured_optimum(first_row(frame)).bracketed
    frame.loc[zero, "loss"] = 1.0
    assert "HP 0, which a log2 axis cannot show" in str(measured_optimum(first_row(frame)).open_because)
