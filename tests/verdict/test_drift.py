"""Drift and move: published optima give the published slopes; intervals follow from joint draws of the optima."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from there import there

from hpxfer.verdict.drift import DrawnOptima, Drift, Move, draw_drift, draw_move, fit_drift


def test_published_learning_rates_over_width() -> None:
    widths = [128.0, 256.0, 512.0, 1024.0, 2048.0]
    optima = [math.log2(lr) for lr in (9.77e-4, 9.77e-4, 9.77e-4, 9.77e-4, 1.95e-3)]
    drift = there(fit_drift(widths, optima))
    assert drift.octaves_per_doubling == pytest.approx(0.20, abs=0.001)
    assert drift.se == pytest.approx(math.sqrt(0.4 / 3 / 10), abs=0.001)  # residuals of a step at the end
    assert there(drift.low) < 0 < drift.octaves_per_doubling  # five bare optima, one of them a step off, prove no drift


def test_two_octaves_down_over_eight_times_the_width() -> None:
    drift = there(fit_drift([32.0, 256.0], [-9.0, -11.0]))
    assert drift.octaves_per_doubling == pytest.approx(-2 / 3)
    assert drift.se is None


def test_no_slope_through_one_scale() -> None:
    assert fit_drift([], []) is None
    assert fit_drift([32.0], [-9.0]) is None
    assert fit_drift([32.0, 32.0], [-9.0, -8.0]) is None


@given(slope=st.floats(-2, 2), start=st.floats(-12, -2), scales=st.sets(st.integers(1, 4096), min_size=3, max_size=6))
@settings(deadline=None, max_examples=examples(40))
def test_a_planted_slope_is_found(slope: float, start: float, scales: set[int]) -> None:
    order = [float(scale) for scale in sorted(scales)]
    drift = there(fit_drift(order, [start + slope * float(np.log2(scale)) for scale in order]))
    assert drift.octaves_per_doubling == pytest.approx(slope, abs=1e-6)
    assert drift.se == pytest.approx(0.0, abs=1e-5)


def drawn(
    *optima: float, se: float = 0.1, first: float = -100.0, last: float = 100.0, num: int = 4000, luck: int = 0
) -> DrawnOptima:
    """Return independent normal draws of optima, which were measured between `first` and `last`."""
    rng = np.random.default_rng(luck)
    size = len(optima)
    return DrawnOptima(
        optimum_BI=np.array(optima) + se * rng.standard_normal((num, size)),
        first_I=np.full(size, first),
        last_I=np.full(size, last),
    )


def scales_of(found: DrawnOptima) -> list[float]:
    return [2.0**i for i in range(found.optimum_BI.shape[1])]


def drift_of(found: DrawnOptima) -> Drift:
    """Return the drift of shapes a doubling apart."""
    return there(draw_drift(scales_of(found), found, (), ()))


def move_of(found: DrawnOptima) -> Move:
    return draw_move(drift_of(found), found, scales_of(found))


def test_the_interval_of_known_errors() -> None:
    drift = drift_of(drawn(0.0, 0.5, 1.0, 1.5, 2.0))
    assert drift.octaves_per_doubling == pytest.approx(0.5, abs=0.005)
    assert drift.se == pytest.approx(0.1 / math.sqrt(10), rel=0.05)
    assert (there(drift.high) - there(drift.low)) / 2 == pytest.approx(1.96 * 0.1 / math.sqrt(10), rel=0.07)
    wide = there(drift.interval(0.98))
    assert (wide[1] - wide[0]) / (there(drift.high) - there(drift.low)) == pytest.approx(2.326 / 1.96, rel=0.01)


@given(
    slope=st.floats(-1, 1),
    start=st.floats(-9, -3),
    octaves=st.floats(-5, 5),
    num=st.integers(2, 5),
)
@settings(deadline=None, max_examples=examples(30))
def test_a_shift_of_all_optima_changes_no_drift_and_no_move(
    slope: float, start: float, octaves: float, num: int
) -> None:
    found = drawn(*(start + slope * i for i in range(num)), num=500)
    shifted = DrawnOptima(
        optimum_BI=found.optimum_BI + octaves, first_I=found.first_I + octaves, last_I=found.last_I + octaves
    )
    assert drift_of(shifted).octaves_per_doubling == pytest.approx(drift_of(found).octaves_per_doubling, abs=1e-9)
    one, other = move_of(found), move_of(shifted)
    assert (other.octaves, other.low, other.high) == pytest.approx((one.octaves, one.low, one.high), abs=1e-9)


@given(optima=st.lists(st.floats(-9, -3), min_size=3, max_size=5))
@settings(deadline=None, max_examples=examples(30))
def test_a_move_covers_its_ends_the_widest_pair_and_the_line(optima: list[float]) -> None:
    found = drawn(*optima, se=0.05, num=500)
    move = move_of(found)
    widest = max(((b - a) for i, a in enumerate(optima) for b in optima[i:]), key=abs)
    slope = float(np.polyfit(range(len(optima)), optima, 1)[0]) * (len(optima) - 1)
    for octaves in (optima[-1] - optima[0], widest, slope):
        assert there(move.low) - 0.15 <= octaves <= there(move.high) + 0.15  # three errors of a difference
    assert move.octaves == pytest.approx(optima[-1] - optima[0], abs=0.02)


def test_a_move_that_stops_is_no_line_and_its_interval_holds_the_first_step() -> None:
    found = drawn(-6.4, -5.1, -5.1, -5.1, -5.1)
    drift, move = drift_of(found), move_of(found)
    assert (drift.is_line, move.is_line) == (False, False)
    assert there(move.low) < 1.3 < there(move.high)
    first, *others = drift.steps
    assert first.octaves == pytest.approx(1.3, abs=0.02)
    assert there(first.low) > 0.9
    for step in others:
        assert step.octaves == pytest.approx(0.0, abs=0.02)
        assert there(step.low) < 0.0 < there(step.high)


def test_lines_are_called_lines_and_bent_ones_are_not() -> None:
    """The test for a line is one of 1%. The optima that it sees scatter by their errors."""
    rng = np.random.default_rng(0)
    straight = [drawn(*(0.5 * np.arange(4.0) + 0.1 * rng.standard_normal(4)), luck=i) for i in range(100)]
    bent = [drawn(*(np.array([0.0, 0.8, 0.0, 0.8]) + 0.1 * rng.standard_normal(4)), luck=i) for i in range(100)]
    assert sum(not drift_of(found).is_line for found in straight) <= 4
    assert sum(not drift_of(found).is_line for found in bent) >= 95


def test_draws_that_share_their_error_move_exactly() -> None:
    """What is wrong alike at all shapes cancels."""
    shared = 0.5 * np.random.default_rng(0).standard_normal((4000, 1))
    found = DrawnOptima(
        optimum_BI=shared + np.array([-6.0, -5.5, -5.0]), first_I=np.full(3, -99.0), last_I=np.full(3, 99.0)
    )
    move = move_of(found)
    assert (move.low, move.high) == pytest.approx((1.0, 1.0))
    assert move.is_line


def test_an_optimum_beyond_the_grid_leaves_its_side_open() -> None:
    below = drawn(-6.0, -7.0, -9.5, first=-9.0, last=-3.0)
    drift, move = drift_of(below), move_of(below)
    assert (drift.low, move.low) == (None, None)
    assert there(drift.high) < -1.0
    assert there(move.high) < -1.0
    inside = move_of(drawn(-6.0, -7.0, -8.5, first=-9.0, last=-3.0))
    assert inside.low is not None
    above = move_of(drawn(-6.0, -5.0, -2.5, first=-9.0, last=-3.0))
    assert there(above.low) > 1.0
    assert above.high is None


def test_a_sum_without_the_open_optimum_is_bounded() -> None:
    found = drawn(-6.0, -6.0, -9.5, first=-9.0, last=-3.0)
    low_BQ, high_BQ = found.sums(np.array([[-1.0], [1.0], [0.0]]))
    assert np.isfinite(low_BQ).all()
    assert low_BQ == pytest.approx(high_BQ)
    steps = drift_of(found).steps
    assert (steps[0].low is None, steps[1].low is None) == (False, True)


def test_two_different_scales_are_needed() -> None:
    assert draw_drift([32.0], drawn(0.0), (), ()) is None
    assert draw_drift([32.0, 32.0], drawn(0.0, 1.0), (), ()) is None
    assert draw_drift([], drawn(), (), ()) is None


def test_parts_of_joint_draws_stay_joint() -> None:
    found = drawn(-6.0, -5.0, -4.0)
    parts = DrawnOptima.together([found.of([0]), found.of([2])])
    assert np.array_equal(parts.optimum_BI, found.optimum_BI[:, [0, 2]])
