"""Drift: published optima give the published slopes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpxfer.verdict.drift import Drift, Observed, fit_drift, fit_observed


def test_published_learning_rates_over_width() -> None:
    widths = [128.0, 256.0, 512.0, 1024.0, 2048.0]
    optima = [math.log2(lr) for lr in (9.77e-4, 9.77e-4, 9.77e-4, 9.77e-4, 1.95e-3)]
    drift = fit_drift(widths, optima)
    assert drift is not None
    assert drift.octaves_per_doubling == pytest.approx(0.20, abs=0.001)
    assert drift.se == pytest.approx(math.sqrt(0.4 / 3 / 10), abs=0.001)  # residuals of a step at the end
    assert drift.low is not None
    assert drift.low < 0 < drift.octaves_per_doubling  # five bare optima, one of them a step off, prove no drift


def test_two_octaves_down_over_eight_times_the_width() -> None:
    drift = fit_drift([32.0, 256.0], [-9.0, -11.0])
    assert drift is not None
    assert drift.octaves_per_doubling == pytest.approx(-2 / 3)
    assert drift.se is None


def test_no_slope_through_one_scale() -> None:
    assert fit_drift([], []) is None
    assert fit_drift([32.0], [-9.0]) is None
    assert fit_drift([32.0, 32.0], [-9.0, -8.0]) is None


@given(slope=st.floats(-2, 2), start=st.floats(-12, -2), scales=st.sets(st.integers(1, 4096), min_size=3, max_size=6))
@settings(deadline=None, max_examples=40)
def test_a_planted_slope_is_found(slope: float, start: float, scales: set[int]) -> None:
    order = [float(scale) for scale in sorted(scales)]
    drift = fit_drift(order, [start + slope * float(np.log2(scale)) for scale in order])
    assert drift is not None
    assert drift.octaves_per_doubling == pytest.approx(slope, abs=1e-6)
    assert drift.se == pytest.approx(0.0, abs=1e-5)


def seen(*optima: float | None, se: float = 0.1, low: float = -math.inf, high: float = math.inf) -> list[Observed]:
    """Return optima at a doubling each; None is a bound [low, high]."""
    return [
        Observed(
            name=f"width {k}",
            doublings=float(k),
            value=value,
            se=se,
            low=-math.inf if value is not None else low,
            high=math.inf if value is not None else high,
        )
        for k, value in enumerate(optima)
    ]


def fitted_to(observed: list[Observed], freedom: int = 1000) -> Drift | None:
    points = [point for point in observed if point.value is not None]
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((4000, len(points))) * [point.se for point in points]
    return fit_observed(observed, noise + [point.value for point in points], freedom, ())


def test_the_interval_of_known_errors() -> None:
    drift = fitted_to(seen(0.0, 0.5, 1.0, 1.5, 2.0))
    assert drift is not None
    assert drift.octaves_per_doubling == pytest.approx(0.5)
    assert drift.se == pytest.approx(0.1 / math.sqrt(10), rel=0.05)
    assert drift.low is not None
    assert drift.high is not None
    assert (drift.high - drift.low) / 2 == pytest.approx(1.96 * 0.1 / math.sqrt(10), rel=0.05)
    wide = drift.interval(0.98)
    assert wide is not None
    assert (wide[1] - wide[0]) / (drift.high - drift.low) == pytest.approx(2.326 / 1.96, rel=0.01)


def test_few_degrees_of_freedom_widen_the_interval() -> None:
    many, few = fitted_to(seen(0.0, 0.0, 0.0)), fitted_to(seen(0.0, 0.0, 0.0), freedom=3)
    assert many is not None
    assert few is not None
    assert many.high is not None
    assert few.high is not None
    assert few.high / many.high == pytest.approx(3.18 / 1.96, rel=0.05)


def test_an_optimum_with_a_large_error_counts_little() -> None:
    observed = [*seen(0.0, 0.0, 0.0, 0.0), replace(seen(3.0, se=10.0)[0], doublings=4.0)]
    drift = fitted_to(observed)
    assert drift is not None
    assert drift.octaves_per_doubling == pytest.approx(0.0, abs=0.01)


def test_scatter_beyond_the_errors_widens_the_interval() -> None:
    drift = fitted_to(seen(0.0, 1.0, -1.0, 1.0, 0.0, se=0.01))
    assert drift is not None
    assert drift.freedom == 3
    assert drift.low is not None
    assert drift.low < -0.5


def test_a_bound_pulls_the_slope_and_a_needless_one_does_not() -> None:
    free = fitted_to(seen(0.0, -0.1, -0.2))
    idle = fitted_to(seen(0.0, -0.1, -0.2, None, high=5.0))
    pulled = fitted_to(seen(0.0, -0.1, -0.2, None, high=-2.0))
    assert free is not None
    assert idle is not None
    assert pulled is not None
    assert idle.octaves_per_doubling == pytest.approx(free.octaves_per_doubling, abs=0.01)
    assert idle.low == pytest.approx(free.low, abs=0.01)
    assert idle.bounds == ("width 3",)
    assert pulled.octaves_per_doubling < -0.3
    assert pulled.high is not None
    assert pulled.high < free.octaves_per_doubling


def test_a_range_is_a_bound_on_both_sides() -> None:
    drift = fitted_to(seen(0.0, 0.0, None, low=3.9, high=4.1))
    assert drift is not None
    assert drift.octaves_per_doubling > 1.0


def test_two_estimates_at_different_scales_are_needed() -> None:
    assert fitted_to(seen(0.0, None, None, high=-1.0)) is None
    assert fitted_to([]) is None


def test_a_bound_far_in_the_tail_stays_finite() -> None:
    drift = fitted_to(seen(0.0, 0.0, None, se=1e-3, high=-300.0))
    assert drift is not None
    assert math.isfinite(drift.octaves_per_doubling)
