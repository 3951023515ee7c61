"""Drift, move and regret over scale, and the bases that follow from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_lines import line, with_status
from there import there

from hpxfer.analysis.statistics.bases import BaseReading, from_base, read_bases
from hpxfer.verdict.drift import DrawnOptima, Drift, Move, draw_drift, draw_move, fit_drift, regret_trend
from hpxfer.verdict.estimate import estimate_all
from hpxfer.verdict.findings import Rules
from hpxfer.verdict.loss_grid import loss_grids
from hpxfer.verdict.transfer import find, finding_of


def test_published_learning_rates_over_width() -> None:
    widths = [128.0, 256.0, 512.0, 1024.0, 2048.0]
    optima = [math.log2(lr) for lr in (9.77e-4, 9.77e-4, 9.77e-4, 9.77e-4, 1.95e-3)]
    drift = there(fit_drift(widths, optima))
    assert drift.octaves_per_doubling == pytest.approx(0.20, abs=0.001)
    assert drift.se == pytest.approx(math.sqrt(0.4 / 3 / 10), abs=0.001)  # residuals of a step at the end
    assert there(drift.low) < 0 < drift.octaves_per_doubling  # five bare optima, one of them a step off, prove no drift


@given(slope=st.floats(-2, 2), start=st.floats(-12, -2), scales=st.sets(st.integers(1, 4096), min_size=3, max_size=6))
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


@given(slope=st.floats(-1, 1), start=st.floats(-9, -3), octaves=st.floats(-5, 5), num=st.integers(2, 5))
def test_a_shift_of_optima_changes_no_drift_and_no_move(slope: float, start: float, octaves: float, num: int) -> None:
    found = drawn(*(start + slope * i for i in range(num)), num=500)
    shifted = DrawnOptima(
        optimum_BI=found.optimum_BI + octaves, first_I=found.first_I + octaves, last_I=found.last_I + octaves
    )
    assert drift_of(shifted).octaves_per_doubling == pytest.approx(drift_of(found).octaves_per_doubling, abs=1e-9)
    one, other = move_of(found), move_of(shifted)
    assert (other.octaves, other.low, other.high) == pytest.approx((one.octaves, one.low, one.high), abs=1e-9)


@given(optima=st.lists(st.floats(-9, -3), min_size=3, max_size=5))
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


@pytest.mark.parametrize("scales", [[], [32.0], [32.0, 32.0]])
def test_two_different_scales_are_needed(scales: list[float]) -> None:
    numbers = [float(number) for number in range(len(scales))]
    assert fit_drift(scales, numbers) is None
    assert draw_drift(scales, drawn(*numbers), (), ()) is None
    assert regret_trend(scales, numbers, numbers, numbers) is None


def test_parts_of_joint_draws_stay_joint() -> None:
    found = drawn(-6.0, -5.0, -4.0)
    parts = DrawnOptima.together([found.of([0]), found.of([2])])
    assert np.array_equal(parts.optimum_BI, found.optimum_BI[:, [0, 2]])


def test_a_regret_that_grows_by_a_share_of_the_gain() -> None:
    trend = there(regret_trend([1, 2, 4, 8], [3.0, 2.9, 2.8, 2.7], [0.0, 0.01, 0.02, 0.03], [0.0, 0.01, 0.01, 0.01]))
    assert trend.regret_nats_per_doubling == pytest.approx(0.01)
    assert trend.gain_nats_per_doubling == pytest.approx(0.1)
    assert trend.share_of_gain == pytest.approx(0.1)
    assert trend.regret_se == pytest.approx(0.01 * math.sqrt(0.5**2 + 0.5**2 + 1.5**2) / 5)


def test_what_is_not_measured_is_left_out() -> None:
    trend = there(
        regret_trend([1, 2, 4, 8], [3.0, 2.9, None, 2.7], [0.0, 0.01, 0.02, math.inf], [0.0, None, 0.01, None])
    )
    assert (trend.num_shapes, trend.regret_se) == (2, None)
    no_gain = there(regret_trend([1, 2], [3.0, 3.1], [0.0, 0.01], [0.0, 0.01]))
    assert no_gain.share_of_gain is None
    assert regret_trend([1, 2], [3.0, 2.9], [0.0, None], [0.0, None]) is None


def test_the_error_of_the_base_enters_as_every_other_does() -> None:
    """That of one cell compared with itself is that of the comparison."""
    exact, noisy = (regret_trend([1, 2, 4], [3.0, 2.9, 2.8], [0.0, 0.01, 0.02], [se, 0.01, 0.01]) for se in (0.0, 0.01))
    assert exact is not None
    assert noisy is not None
    assert exact.regret_nats_per_doubling == noisy.regret_nats_per_doubling
    assert exact.regret_se == pytest.approx(0.01 / 2)
    assert noisy.regret_se == pytest.approx(0.01 / math.sqrt(2))


NUM_SWEEPS = 20
STOPS = (-6.3, -5.1, -5.1, -5.1)


def planted_line(optima: Sequence[float], luck: int = 7) -> pd.DataFrame:
    """Return a line of widths from 32, each twice the last, with these log2 optima."""
    return line(
        {"mup": lambda doublings: optima[round(doublings)]},
        scales=[32.0 * 2**i for i in range(len(optima))],
        grid=range(-9, -2),
        seeds=3,
        noise=0.004,
        curvature=0.014,
        luck=luck,
    )


def reading(frame: pd.DataFrame) -> BaseReading:
    estimates = estimate_all(loss_grids(frame))
    (found,) = read_bases(estimates, [finding_of(each) for each in estimates], "lr", Rules())
    return found


@cache
def readings(optima: tuple[float, ...]) -> list[BaseReading]:
    """Return what is read in sweeps of equal optima and different noise, computed once."""
    return [reading(planted_line(optima, luck)) for luck in range(NUM_SWEEPS)]


@pytest.mark.slow
def test_a_drift_that_stops_recommends_the_shape_at_which_it_stops() -> None:
    for found in readings(STOPS):
        assert found.recommended == found.transfers_from == "width 64"
        assert found.trend == "shrinking"
        assert found.in_brief == "width 64, steps shrinking"
        assert found.advice == "tune at width 64, not at width 32, as lr transfers from there"


@pytest.mark.slow
@pytest.mark.parametrize("octaves", [0.5, 0.7, 1.0, 1.2])
def test_a_drift_that_never_stops_recommends_no_base(octaves: float) -> None:
    found = readings(tuple(-7.0 + octaves * i for i in range(4)))
    assert {each.recommended for each in found} == {None}
    # A trend is a statement at 95%: one in twenty may be wrong.
    assert sum(each.trend not in ("constant", "unknown") for each in found) <= NUM_SWEEPS * 0.05


def test_a_short_rest_of_an_axis_is_no_stop() -> None:
    """Over the last doubling a drift of 0.7 octaves stays within the limit of one, and is the same drift."""
    found = reading(planted_line([-7.0, -6.3, -5.6, -4.9]))
    assert found.transfers_from == "width 128"
    assert found.recommended is None
    assert found.advice == (
        "no base is recommended, as the optimum is not seen to stop, "
        "although lr transfers from width 128 up to width 256"
    )


def test_an_optimum_that_stays_needs_no_larger_base() -> None:
    found = reading(planted_line([-6.2, -6.2, -6.2]))
    assert found.recommended == found.transfers_from == "width 32"
    assert found.trend == "constant"
    assert found.advice == "width 32 is large enough, as lr transfers from there"


@pytest.mark.slow
def test_steps_hold_the_difference_of_neighbors() -> None:
    found = readings(STOPS)
    planted_steps = [0.0 if i else 1.2 for i in range(3)]
    held = [
        row.octaves_low <= true <= row.octaves_high
        for each in found
        for row, true in zip(each.bases, planted_steps, strict=False)
        if row.octaves_low is not None and row.octaves_high is not None
    ]
    assert len(held) == 3 * NUM_SWEEPS
    assert sum(held) >= 0.85 * len(held)
    assert all(each.bases[-1].octaves_to_next is None for each in found)


@pytest.mark.slow
def test_steps_that_grow_and_steps_that_turn_are_named() -> None:
    assert {found.trend for found in readings((-6.8, -6.8, -6.8, -5.4))} == {"growing"}
    assert {found.trend for found in readings((-6.2, -5.2, -6.2))} == {"turning"}


def test_a_row_is_the_verdict_on_the_shapes_from_its_base_on() -> None:
    grids, found = loss_grids(planted_line(STOPS)), reading(planted_line(STOPS))
    for row in found.bases[:-1]:
        (finding,) = find(from_base(grids, row.shape))
        assert (finding.verdict, finding.base_value) == (row.verdict, row.tuned_value)
        assert finding.shapes[-1].regret_nats == row.loss_given_up_nats
    first, *others = (row.verdict for row in found.bases)
    assert first != "transfers"
    assert others == ["transfers", "transfers", None]
    assert found.bases[0].loss_given_up_nats == pytest.approx(0.014 * 1.2**2, abs=0.012)


def test_an_optimum_that_is_not_known_leaves_its_steps_open() -> None:
    frame = planted_line(STOPS)
    lost = frame[frame["scale"] == 128]["value"].unique()[:-1]
    for value in lost:
        frame = with_status(frame, "failed", scale=128.0, value=value)
    found = reading(frame)
    assert [row.octaves_to_next is None for row in found.bases] == [False, True, True, True]
    assert found.recommended is None


def test_one_shape_has_no_base_to_choose() -> None:
    found = reading(planted_line([-6.2]))
    assert (found.why_not, found.in_brief, found.advice) == ("no shape beyond the base", "", "")
