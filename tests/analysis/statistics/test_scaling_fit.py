"""Scaling fits and joint drift: planted lines, power laws, slopes of two dimensions, and what is neither."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from found_rows import rows
from there import of, there
from world_basins import BasinKind, Parabola, RandomExponential

from hpxfer.analysis.statistics.joint_drift import DistinctShapes, joint_drift, moving
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
from hpxfer.verdict.loss_grid import LossGrid, ShapeLosses, loss_grids

SIZES = tuple(2.0**x for x in (14, 15.5, 17, 18.5, 20, 21.5))


def points(loss: Callable[[float], float], *, noise: float = 0.0, seed: int = 0, seeds: int = 3) -> list[FitPoint]:
    rng = np.random.default_rng(seed)
    se = noise / math.sqrt(seeds)
    return [
        FitPoint(
            shape=f"n{size:g}",
            axis="width",
            params=size,
            loss_nats=loss(size) + se * rng.standard_normal(),
            se_nats=se or None,
            num_seeds=seeds,
        )
        for size in SIZES
    ]


def saturating(params: float) -> float:
    return 2.0 + (2.0**12 / params) ** 0.4


def line_of(found: Sequence[FitPoint]) -> LossFit:
    return of(LossFit, loss_fit(found))


def law_of(found: Sequence[FitPoint]) -> PowerLaw:
    return of(PowerLaw, power_law(found, 12))


def test_a_line_in_log_parameters_is_found_and_its_interval_covers() -> None:
    exact = line_of(points(lambda n: 5 - 0.1 * math.log2(n)))
    assert (exact.slope, exact.intercept, exact.r2) == pytest.approx((-0.1, 5.0, 1.0))
    covered = 0
    for seed in range(200):
        fitted = line_of(points(lambda n: 5 - 0.1 * math.log2(n), noise=0.02, seed=seed))
        covered += there(fitted.slope_low) <= -0.1 <= there(fitted.slope_high)
    assert 182 <= covered <= 198


def test_r2_falls_where_the_losses_are_no_line() -> None:
    bent, wild = line_of(points(saturating)), line_of(points(lambda n: 3.0 + 0.3 * math.sin(n)))
    assert there(wild.r2) < 0.6 < there(bent.r2) < 0.99


def test_a_law_gives_back_its_floor_and_its_exponent() -> None:
    law = law_of(points(saturating))
    assert law.floor == pytest.approx(2.0, abs=2e-3)
    assert law.exponent == pytest.approx(0.4, rel=0.01)
    assert law.log2_scale == pytest.approx(12.0, abs=0.05)
    assert law.loss(2.0**18) == pytest.approx(saturating(2.0**18), abs=1e-4)


def test_the_intervals_of_a_law_cover_about_as_often_as_they_say() -> None:
    floor = exponent = 0
    for seed in range(60):
        law = law_of(points(saturating, noise=0.004, seed=seed))
        floor += law.floor_low <= 2.0 <= law.floor_high
        exponent += law.exponent_low <= 0.4 <= law.exponent_high
    assert 0.88 <= floor / 60 <= 1.0
    assert 0.88 <= exponent / 60 <= 1.0


def test_losses_that_rise_or_are_too_few_are_no_law() -> None:
    rising = power_law(points(lambda n: 2 + 0.1 * math.log2(n)), 12)
    assert rising == "the losses do not fall off like a power of the parameters"
    assert power_law(points(saturating)[:3], 12) == "3 different sizes have a finite loss, 4 are needed"
    for num in (0, 1):
        assert loss_fit(points(saturating)[:num]) == f"{num} different sizes have a finite loss, 2 are needed"
    two = line_of(points(saturating)[:2])
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


def distinct_shapes(
    shapes: tuple[Shape, ...],
    width: float,
    depth: float,
    *,
    seed: int = 0,
    noise: float = 0.003,
    seeds: int = 3,
    start: float = -6.2,
    basin: BasinKind = PARABOLA,
) -> DistinctShapes:
    """Return shapes whose optimum moves by so many octaves per doubling of the width and the depth."""
    rng = np.random.default_rng(seed)
    rises = basin.draw(rng, len(shapes))
    doublings = np.array([[math.log2(shape.width / 32), math.log2(shape.depth / 2)] for shape in shapes])
    at_I = start + doublings @ [width, depth]
    loss_IK = 3 + rises(np.array(GRID) - at_I[:, None], np.full((len(shapes), 1), 0.03))
    losses = list[ShapeLosses]()
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
        losses += grid.rows
    (estimates,) = estimate_all([LossGrid(rows=tuple(losses))])
    return DistinctShapes(
        parameterization="planted",
        names=tuple(shape.label() for shape in shapes),
        shapes=shapes,
        optima=estimates.optima,
        drawn=estimates.drawn(range(len(shapes))),
        has_noise=estimates.has_noise,
    )


def drift(found: DistinctShapes) -> dict[str, SimpleNamespace]:
    """Return dimension -> the row of its slope."""
    return {row.dimension: row for row in rows(of(list, joint_drift(found, "lr")))}


def slopes(found: DistinctShapes) -> dict[str, float]:
    return {name: row.octaves_per_doubling for name, row in drift(found).items()}


@pytest.mark.parametrize(("width", "depth"), [(0.0, 0.0), (-0.5, 0.25)])
def test_each_dimension_gets_its_own_slope(width: float, depth: float) -> None:
    found = distinct_shapes((BASE, *WIDER, *DEEPER), width, depth, noise=1e-5)
    assert slopes(found) == pytest.approx({"width": width, "depth": depth}, abs=0.004)
    base, of_width, of_depth = drift(found)["width"].base_log2, *slopes(found).values()
    assert base == pytest.approx(-6.2, abs=0.01)
    assert [optimum.log2_value for optimum in found.optima] == pytest.approx(
        [base + of_width * math.log2(s.width / 32) + of_depth * math.log2(s.depth / 2) for s in found.shapes], abs=0.01
    )


def drawn(basin: BasinKind) -> tuple[float, float]:
    """Return how often the 95% intervals hold the true slope, and how much wider they are than slopes scatter."""
    true = {"width": -0.3, "depth": 0.2}
    errors, covered, widths = [], [], []
    for seed in range(40):
        found = distinct_shapes((BASE, *WIDER, *DEEPER), *true.values(), seed=seed, noise=0.01, basin=basin)
        for name, row in drift(found).items():
            errors.append(row.octaves_per_doubling - true[name])
            covered.append(row.low <= true[name] <= row.high)
            widths.append(row.high - row.low)
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
    found = drift(distinct_shapes((BASE, *WIDER, *DEEPER), -0.7, 0.0))
    assert found["width"].high < -0.6
    assert found["depth"].low < 0.0 < found["depth"].high


def test_dimensions_that_move_together_are_named_and_not_told_apart() -> None:
    both = tuple(replace(BASE, width=32 * k, expert_width=32 * k, depth=2 * k) for k in (2, 4, 8))
    found = distinct_shapes((BASE, *both), -0.3, 0.1, noise=1e-5)
    assert slopes(found) == pytest.approx({"width": -0.2}, abs=0.01)
    assert drift(found)["width"].confounded == "depth"


def test_a_bound_counts_on_its_side_only() -> None:
    """The widest optimum is beyond the grid's lower edge, so all that is known is that it fell far."""
    found = distinct_shapes((BASE, *WIDER, *DEEPER), -1.5, 0.0, start=-5.4)
    beyond = [shape for shape, optimum in zip(found.shapes, found.optima, strict=True) if not optimum.inside]
    assert beyond == [WIDER[-1]]
    assert slopes(found) == pytest.approx({"width": -1.5, "depth": 0.0}, abs=0.1)
    assert all(row.se > 0 for row in drift(found).values())


def test_what_cannot_be_said_says_why() -> None:
    line, plane = (BASE, *WIDER), (BASE, *WIDER, *DEEPER)
    assert joint_drift(distinct_shapes(line, 0.0, 0.0), "lr") == (
        "fewer than two dimensions move: the drift along the axis says it all"
    )
    assert "one seed" in of(str, joint_drift(distinct_shapes(plane, 0.0, 0.0, seeds=1), "lr"))
    lost = joint_drift(distinct_shapes(plane, 0.0, 0.0, start=-30.0), "lr")
    assert of(str, lost).startswith("0 shapes have an optimum inside the grid")


def test_dimensions_without_a_logarithm_are_left_out() -> None:
    dense = Shape(width=32, depth=2, head_dim=32, dense_width=64)
    assert moving([dense, replace(BASE, depth=4)]) == ("depth", "kappa")
