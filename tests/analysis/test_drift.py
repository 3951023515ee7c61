"""Drift: published optima give the published slopes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpxfer.analysis.drift import fit_drift


def test_published_learning_rates_over_width() -> None:
    widths = [128.0, 256.0, 512.0, 1024.0, 2048.0]
    optima = [math.log2(lr) for lr in (9.77e-4, 9.77e-4, 9.77e-4, 9.77e-4, 1.95e-3)]
    drift = fit_drift(widths, optima)
    assert drift is not None
    assert drift.octaves_per_doubling == pytest.approx(0.20, abs=0.001)
    assert drift.se == pytest.approx(math.sqrt(0.4 / 3 / 10), abs=0.001)  # residuals of a step at the end


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
    order = [float(one) for one in sorted(scales)]
    drift = fit_drift(order, [start + slope * float(np.log2(one)) for one in order])
    assert drift is not None
    assert drift.octaves_per_doubling == pytest.approx(slope, abs=1e-6)
    assert drift.se == pytest.approx(0.0, abs=1e-5)
