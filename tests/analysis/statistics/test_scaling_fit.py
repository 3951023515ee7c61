"""Scaling fits: planted lines and power laws, and what is neither."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from there import there

from hpxfer.analysis.statistics.power_law_fit import fit_power
from hpxfer.analysis.statistics.scaling_fit import FitPoint, LossFit, PowerLaw, loss_fit, pooled_noise, power_law

LINE = LossFit(parameterization="planted", hp="lr", value=0.01, count="total")
LAW = PowerLaw(parameterization="planted", hp="lr", value=0.01, count="total")
SIZES = tuple(2.0**x for x in (14, 15.5, 17, 18.5, 20, 21.5))


def points(loss: Callable[[float], float], *, noise: float = 0.0, seed: int = 0, seeds: int = 3) -> list[FitPoint]:
    rng = np.random.default_rng(seed)
    se = noise / math.sqrt(seeds)
    return [
        FitPoint(
            shape=f"n{size:g}",
            axis="width",
            params=size,
            loss=loss(size) + se * rng.standard_normal(),
            se=se or None,
            num_seeds=seeds,
        )
        for size in SIZES
    ]


def saturating(params: float) -> float:
    return 2.0 + (2.0**12 / params) ** 0.4


def test_a_line_in_log_parameters_is_found_and_its_interval_covers() -> None:
    exact = loss_fit(points(lambda n: 5 - 0.1 * math.log2(n)), LINE)
    assert (exact.slope, exact.intercept, exact.r2) == pytest.approx((-0.1, 5.0, 1.0))
    covered = 0
    for seed in range(200):
        fitted = loss_fit(points(lambda n: 5 - 0.1 * math.log2(n), noise=0.02, seed=seed), LINE)
        covered += there(fitted.slope_low) <= -0.1 <= there(fitted.slope_high)
    assert 182 <= covered <= 198


def test_r2_falls_where_the_losses_are_no_line() -> None:
    bent = loss_fit(points(saturating), LINE)
    wild = loss_fit(points(lambda n: 3.0 + 0.3 * math.sin(n)), LINE)
    assert there(wild.r2) < 0.6 < there(bent.r2) < 0.99


def test_a_law_gives_back_its_floor_and_its_exponent() -> None:
    law = power_law(points(saturating), 12, LAW)
    assert law.why_not is None
    assert law.floor == pytest.approx(2.0, abs=2e-3)
    assert law.exponent == pytest.approx(0.4, rel=0.01)
    assert law.log2_scale == pytest.approx(12.0, abs=0.05)
    assert law.loss(2.0**18) == pytest.approx(saturating(2.0**18), abs=1e-4)


def test_the_intervals_of_a_law_cover_about_as_often_as_they_say() -> None:
    floor = exponent = 0
    for seed in range(120):
        law = power_law(points(saturating, noise=0.004, seed=seed), 12, LAW)
        floor += there(law.floor_low) <= 2.0 <= there(law.floor_high)
        exponent += there(law.exponent_low) <= 0.4 <= there(law.exponent_high)
    assert 0.88 <= floor / 120 <= 1.0
    assert 0.88 <= exponent / 120 <= 1.0


def test_losses_that_rise_or_are_too_few_are_no_law() -> None:
    rising = power_law(points(lambda n: 2 + 0.1 * math.log2(n)), 12, LAW)
    assert rising.why_not == "the losses do not fall off like a power of the parameters"
    assert rising.loss(2.0**18) is None
    few = power_law(points(saturating)[:3], 12, LAW)
    assert few.why_not == "3 different sizes have a finite loss, 4 are needed"
    assert loss_fit(points(saturating)[:1], LINE).why_not is not None
    assert loss_fit([], LINE).slope is None
    two = loss_fit(points(saturating)[:2], LINE)
    assert (two.r2, two.slope_low) == (None, None)


def test_without_seeds_the_draws_are_as_wide_as_the_scatter() -> None:
    x = np.arange(7.0)
    rng = np.random.default_rng(0)
    wide = fit_power(x, 2 + 2.0 ** (-0.5 * x) + 0.01 * rng.standard_normal(7), None, 0)
    tight = fit_power(x, 2 + 2.0 ** (-0.5 * x) + 0.001 * rng.standard_normal(7), None, 0)
    spreads = [float(np.ptp(np.quantile(fit.floor_R[1:], [0.16, 0.84]))) for fit in (wide, tight)]
    assert spreads[0] > 3 * spreads[1] > 0


def test_noise_is_pooled_over_shapes_and_unknown_with_one_seed() -> None:
    assert pooled_noise([[1.0, 3.0], [5.0, 5.0, 5.0]]) == (pytest.approx(math.sqrt(2 / 3)), 3)
    assert pooled_noise([[1.0], [], [2.0]]) == (None, 0)


@pytest.mark.parametrize("exponent", [0.1, 0.37, 0.43, 0.7])
def test_a_law_without_noise_is_found_to_the_last_digits(exponent: float) -> None:
    x = np.arange(8.0) + 15
    fit = fit_power(x, 2 + 2.0 ** (-exponent * (x - 15)), None, 0)
    assert fit.exponent_R[0] == pytest.approx(exponent, abs=1e-5)
    assert fit.floor_R[0] == pytest.approx(2, abs=2e-5)
