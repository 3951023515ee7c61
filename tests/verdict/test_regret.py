"""Regret over scale, against what scaling gains."""

from __future__ import annotations

import math

import pytest
from there import there

from hpxfer.verdict.regret import regret_trend


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
    assert regret_trend([1, 2], [3.0, 2.9], [0.0, None], [0.0, None]) is None


def test_no_share_of_no_gain() -> None:
    trend = there(regret_trend([1, 2], [3.0, 3.1], [0.0, 0.01], [0.0, 0.01]))
    assert trend.share_of_gain is None


def test_the_error_of_the_base_enters_as_every_other_does() -> None:
    """That of one cell compared with itself is that of the comparison."""
    exact, noisy = (regret_trend([1, 2, 4], [3.0, 2.9, 2.8], [0.0, 0.01, 0.02], [se, 0.01, 0.01]) for se in (0.0, 0.01))
    assert exact is not None
    assert noisy is not None
    assert exact.regret_nats_per_doubling == noisy.regret_nats_per_doubling
    assert exact.regret_se == pytest.approx(0.01 / 2)
    assert noisy.regret_se == pytest.approx(0.01 / math.sqrt(2))


def test_the_order_of_shapes_does_not_matter() -> None:
    scales, best, regret, se = [1, 2, 4], [3.0, 2.9, 2.85], [0.0, 0.02, 0.01], [0.01, 0.01, 0.02]
    one = regret_trend(scales, best, regret, se)
    other = there(regret_trend(scales[::-1], best[::-1], regret[::-1], se[::-1]))
    assert one is not None
    assert other.regret_nats_per_doubling == pytest.approx(one.regret_nats_per_doubling)
    assert other.regret_se == pytest.approx(one.regret_se)
    assert other.share_of_gain == pytest.approx(one.share_of_gain)


def test_one_scale_has_no_trend() -> None:
    assert regret_trend([2, 2], [3.0, 3.1], [0.0, 0.01], [0.0, 0.01]) is None
    assert regret_trend([], [], [], []) is None
