"""Regret over scale, against what scaling gains."""

from __future__ import annotations

import math

import pytest

from hpxfer.verdict.regret import regret_trend


def test_a_regret_that_grows_by_a_share_of_the_gain() -> None:
    trend = regret_trend([1, 2, 4, 8], [3.0, 2.9, 2.8, 2.7], [0.0, 0.01, 0.02, 0.03], [0.0, 0.01, 0.01, 0.01])
    assert trend is not None
    assert trend.regret_nats_per_doubling == pytest.approx(0.01)
    assert trend.gain_nats_per_doubling == pytest.approx(0.1)
    assert trend.share_of_gain == pytest.approx(0.1)
    assert trend.regret_se == pytest.approx(0.01 * math.sqrt(0.5**2 + 0.5**2 + 1.5**2) / 5)


def test_what_is_not_measured_is_left_out() -> None:
    trend = regret_trend([1, 2, 4, 8], [3.0, 2.9, None, 2.7], [0.0, 0.01, 0.02, math.inf], [0.0, None, 0.01, None])
    assert trend is not None
    assert (trend.num_shapes, trend.regret_se) == (2, None)
    assert regret_trend([1, 2], [3.0, 2.9], [0.0, None], [0.0, None]) is None


def test_no_share_of_no_gain() -> None:
    trend = regret_trend([1, 2], [3.0, 3.1], [0.0, 0.01], [0.0, 0.01])
    assert trend is not None
    assert trend.share_of_gain is None
