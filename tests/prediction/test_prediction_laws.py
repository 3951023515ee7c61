"""The mixture of laws: right where it is easy, wider where less is known, and blind to units."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from hpxfer.prediction.laws import LAWS, Forecast, forecast

X = (5.0, 6.0, 7.0, 8.0)


def power(x: float) -> float:
    return 2.0 + 0.8 * 2.0 ** (-0.5 * (x - 5))


def line(x: float) -> float:
    return 3.0 - 0.1 * (x - 5)


def ahead(
    law: Callable[[float], float] = power,
    x: tuple[float, ...] = X,
    *,
    at: float = 9.0,
    noise: float = 0.001,
    seeds: int = 3,
    level: float = 0.9,
    times: float = 1.0,
    plus: float = 0.0,
) -> Forecast:
    y = [times * law(each) + plus for each in x]
    return forecast(x, y, [seeds] * len(x), times * noise, (seeds - 1) * len(x), at, level)


def width(found: Forecast) -> float:
    return found.high - found.low


@pytest.mark.parametrize("law", [power, line])
@pytest.mark.parametrize("at", [4.2, 6.5, 8.4, 9.0])
def test_a_law_without_noise_lies_inside_and_close(law: Callable[[float], float], at: float) -> None:
    found = ahead(law, at=at)
    assert found.low < law(at) < found.high
    assert found.mean_low < law(at) < found.mean_high
    assert found.loss == pytest.approx(law(at), abs=0.3 * found.gain)


def test_what_was_measured_exactly_is_known() -> None:
    found = ahead(at=7.0, noise=1e-5)
    assert found.loss == pytest.approx(power(7.0), abs=1e-4)
    assert width(found) < 1e-3


def test_less_is_known_further_away_and_with_more_noise_and_with_fewer_seeds() -> None:
    widths = [width(ahead(at=at)) for at in (8.0, 8.25, 8.5, 9.0)]
    assert widths == sorted(widths)
    assert width(ahead(noise=0.02)) > 1.5 * width(ahead(noise=0.002))
    assert width(ahead(noise=0.02, seeds=2)) > width(ahead(noise=0.02, seeds=10))
    assert width(ahead(level=0.95)) > width(ahead(level=0.9))


def test_a_run_is_less_certain_than_the_mean_of_many() -> None:
    found = ahead(noise=0.02)
    assert found.low < found.mean_low < found.mean_high < found.high


def test_units_and_levels_of_the_loss_do_not_matter() -> None:
    one, other = ahead(), ahead(times=10.0, plus=-7.0)
    for name in ("loss", "low", "high", "mean_low", "mean_high"):
        assert getattr(other, name) == pytest.approx(10 * getattr(one, name) - 7, abs=1e-5)
    assert [law.weight for law in other.laws] == pytest.approx([law.weight for law in one.laws], rel=1e-6)


def test_where_the_scale_starts_does_not_matter() -> None:
    moved = ahead(lambda x: power(x - 3), tuple(x + 3 for x in X), at=12.0)
    assert (moved.low, moved.high) == pytest.approx((ahead().low, ahead().high), abs=1e-7)


def test_a_loss_that_rises_is_the_mirror_of_one_that_falls() -> None:
    up = ahead(lambda x: 5 - power(x))
    assert (up.low, up.high) == pytest.approx((5 - ahead().high, 5 - ahead().low), abs=1e-7)


def test_the_weights_of_the_laws_sum_to_one_and_follow_the_losses() -> None:
    of_power, of_line, of_growth = (
        {law.law: law.weight for law in ahead(law, x=(*X, 9.0, 10.0), at=11.0).laws}
        for law in (power, line, lambda x: 3 - 0.1 * 2 ** (0.4 * (x - 5)))
    )
    for weights in (of_power, of_line, of_growth):
        assert tuple(weights) == LAWS
        assert sum(weights.values()) == pytest.approx(1)
    assert of_power["shrinking gain"] > 0.95
    assert of_line["constant gain"] > 3 * of_power["constant gain"]
    assert of_growth["growing gain"] > 0.5


def test_a_constant_gain_alone_is_surer_and_wrong() -> None:
    """The twin: the line through the losses of a power law misses the next one, with an interval that is as wide."""
    found = ahead(x=X[:3], at=8.0)
    constant = next(law for law in found.laws if law.law == "constant gain")
    assert abs(constant.loss - power(8.0)) > 2 * abs(found.loss - power(8.0))


def test_shapes_that_scatter_more_than_seeds_widen_the_interval() -> None:
    scattered = ahead(lambda x: power(x) + 0.02 * math.cos(math.pi * x))
    assert width(scattered) > 1.5 * width(ahead())


def test_seeds_that_agree_to_the_last_digit_are_no_error() -> None:
    assert math.isfinite(width(ahead(noise=0.0)))
    assert math.isfinite(width(ahead(lambda _: 2.0, noise=0.0)))
