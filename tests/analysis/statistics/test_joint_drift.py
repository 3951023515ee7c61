"""Joint drift: planted slopes of two dimensions at once, bounds, and dimensions that cannot be told apart."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from there import there
from world_basins import BasinKind, Parabola, RandomExponential

from hpxfer.analysis.statistics.joint_drift import DistinctShapes, JointDrift, joint_drift, moving
from hpxfer.scaling.shape import Shape
from hpxfer.verdict.estimate import estimate_all
from hpxfer.verdict.loss_grid import LossGrid, loss_grids

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
