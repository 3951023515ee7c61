"""Scaling fits and joint drift: planted lines, power laws, slopes of two dimensions, and what is neither."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from there import there
from world_basins import BasinKind, Parabola, RandomExponential

from hpxfer.analysis.statistics.joint_drift import DistinctShapes, JointDrift, joint_drift, moving
from hpxfer.analysis.statistics.scaling_fit import (
    FitPoint,
    LossFit,
    PowerLaw,
    fit_power,
    loss_fit,
    pooled_noise,
    power_law,
)
from hpxfer.scaling.shape import Shape
from hpxfer.verdict.estimate import estimate_all
from hpxfer.verdict.loss_grid import LossGrid, loss_grids

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
    for seed in range(60):
        law = power_law(points(saturating, noise=0.004, seed=seed), 12, LAW)
        floor += there(law.floor_low) <= 2.0 <= there(law.floor_high)
        exponent += there(law.exponent_low) <= 0.4 <= there(law.exponent_high)
    assert 0.88 <= floor / 60 <= 1.0
    assert 0.88 <= exponent / 60 <= 1.0


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


BASE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=32, head_dim=32)
WIDER = tuple(replace(BASE, width=32 * k, expert_width=32 * k) for k in (2, 4, 8))
DEEPER = tuple(replace(BASE, depth=2 * k) for k in (2, 4, 8))
GRID = range(-10, -2)
PARABOLA = Parabola()


def planted(
    shapes: tuple[Shape, ...],
    width: float,
    depth: float,
    *,
    seed: int = 0,
    noise: float = 0.003,
    seeds: int = 3,
    start: float = -6.2,
    basin: BasinKind = PARABOLA,
) -> JointDrift:
    """Return the joint drift where the optimum moves by so many octaves per doubling of the width and the depth."""
    rng = np.random.default_rng(seed)
    rises = basin.draw(rng, len(shapes))
    doublings = np.array([[math.log2(shape.width / 32), math.log2(shape.depth / 2)] for shape in shapes])
    at_I = start + doublings @ [width, depth]
    loss_IK = 3 + rises(np.array(GRID) - at_I[:, None], np.full((len(shapes), 1), 0.03))
    rows = []
    for number, shape in enumerate(shapes):
        trials = [
            {"value": 2.0**x, "seed": s, "loss": loss_IK[number, k] + noise * rng.standard_normal()}
            for k, x in enumerate(GRID)
            for s in range(seeds)
        ]
        frame = pd.DataFrame(trials).assign(
            axis="all", scale_name="n", scale=number + 1.0, shape=shape.label(), is_base=number == 0
        )
        (grid,) = loss_grids(frame.assign(parameterization="planted", status="finished"))
        rows += grid.rows
    (estimates,) = estimate_all([LossGrid(rows=tuple(rows))])
    distinct = DistinctShapes(
        parameterization="planted",
        names=tuple(shape.label() for shape in shapes),
        shapes=shapes,
        optima=estimates.optima,
        drawn=estimates.drawn(range(len(shapes))),
        has_noise=estimates.has_noise,
    )
    return joint_drift(distinct, "lr")


def slopes(found: JointDrift) -> dict[str, float]:
    return {slope.dimension: slope.octaves_per_doubling for slope in found.slopes}


@pytest.mark.parametrize(("width", "depth"), [(0.0, 0.0), (-0.5, 0.25)])
def test_each_dimension_gets_its_own_slope(width: float, depth: float) -> None:
    found = planted((BASE, *WIDER, *DEEPER), width, depth, noise=1e-5)
    assert slopes(found) == pytest.approx({"width": width, "depth": depth}, abs=0.004)
    assert found.base_log2 == pytest.approx(-6.2, abs=0.01)
    assert [point.fitted_log2 for point in found.points] == pytest.approx(
        [point.log2_value for point in found.points], abs=0.01
    )


def drawn(basin: BasinKind) -> tuple[float, float]:
    """Return how often the 95% intervals hold the true slope, and how much wider they are than slopes scatter."""
    true = {"width": -0.3, "depth": 0.2}
    errors, covered, widths = [], [], []
    for seed in range(40):
        for slope in planted((BASE, *WIDER, *DEEPER), *true.values(), seed=seed, noise=0.01, basin=basin).slopes:
            errors.append(slope.octaves_per_doubling - true[slope.dimension])
            covered.append(there(slope.low) <= true[slope.dimension] <= there(slope.high))
            widths.append(there(slope.high) - there(slope.low))
    return float(np.mean(covered)), float(np.median(widths) / (2 * 1.96 * np.std(errors)))


@pytest.mark.slow
def test_the_intervals_cover_where_every_shape_has_an_asymmetry_of_its_own() -> None:
    covered, _ = drawn(RandomExponential(0.5, 2.0))
    assert 0.89 <= covered <= 0.995


@pytest.mark.slow
def test_the_intervals_of_parabolas_allow_for_an_asymmetry_and_are_not_much_wider() -> None:
    covered, wider = drawn(PARABOLA)
    assert covered >= 0.89
    assert wider < 2


def test_a_drift_of_one_dimension_is_not_the_other_s() -> None:
    found = planted((BASE, *WIDER, *DEEPER), -0.7, 0.0)
    by_name = {slope.dimension: slope for slope in found.slopes}
    assert (by_name["width"].high or 0.0) < -0.6
    assert (by_name["depth"].low or 1.0) < 0.0 < (by_name["depth"].high or -1.0)


def test_dimensions_that_move_together_are_named_and_not_told_apart() -> None:
    both = tuple(replace(BASE, width=32 * k, expert_width=32 * k, depth=2 * k) for k in (2, 4, 8))
    found = planted((BASE, *both), -0.3, 0.1, noise=1e-5)
    assert slopes(found) == pytest.approx({"width": -0.2}, abs=0.01)
    assert found.confounded == ("depth",)


def test_a_bound_counts_on_its_side_only() -> None:
    """The widest optimum is beyond the grid's lower edge, so all that is known is that it fell far."""
    found = planted((BASE, *WIDER, *DEEPER), -1.5, 0.0, start=-5.4)
    assert [point.shape for point in found.points if point.log2_value is None] == [WIDER[-1].label()]
    by_name = {slope.dimension: slope for slope in found.slopes}
    assert by_name["width"].octaves_per_doubling == pytest.approx(-1.5, abs=0.1)
    assert by_name["depth"].octaves_per_doubling == pytest.approx(0.0, abs=0.1)
    assert all(slope.se is not None and slope.se > 0 for slope in found.slopes)


def test_what_cannot_be_said_says_why() -> None:
    assert planted((BASE, *WIDER), 0.0, 0.0).why_not == (
        "fewer than two dimensions move: the drift along the axis says it all"
    )
    assert "one seed" in (planted((BASE, *WIDER, *DEEPER), 0.0, 0.0, seeds=1).why_not or "")
    lost = planted((BASE, *WIDER, *DEEPER), 0.0, 0.0, start=-30.0)
    assert lost.why_not is not None
    assert lost.slopes == ()


def test_dimensions_without_a_logarithm_are_left_out() -> None:
    dense = Shape(width=32, depth=2, head_dim=32, dense_width=64)
    assert moving([dense, replace(BASE, depth=4)]) == ("depth", "kappa")
