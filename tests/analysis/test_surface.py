"""Surfaces over two HPs."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from hpxfer.analysis.surface import Surface, fit_surface

GRID = [(2.0**a, 2.0**b) for a, b in product(range(-9, -3), range(-2, 3))]


def planted(interaction: float, noise: float = 0.0, at: tuple[float, float] = (-6.3, 0.4), seed: int = 0) -> Surface:
    rng = np.random.default_rng(seed)
    losses = []
    for first, second in GRID:
        v = math.log2(second) - at[1]
        u = math.log2(first) - at[0] - interaction * v
        losses.append(3 + 0.02 * u**2 + 0.01 * v**2 + noise * rng.standard_normal())
    found = fit_surface(*zip(*GRID, strict=True), losses)
    assert found is not None
    return found


@pytest.mark.parametrize("interaction", [-0.5, 0.0, 0.7])
def test_a_surface_gives_back_its_lowest_point_and_its_interaction(interaction: float) -> None:
    found = planted(interaction)
    assert found.log2_values == pytest.approx((-6.3, 0.4))
    assert found.loss == pytest.approx(3.0)
    assert found.interaction == pytest.approx(interaction, abs=1e-9)
    assert found.curvatures == pytest.approx((0.02, 0.01 + 0.02 * interaction**2))


def test_the_interval_of_the_interaction_covers() -> None:
    covered = []
    for seed in range(200):
        found = planted(0.3, noise=0.005, seed=seed)
        assert found.interaction_low is not None
        assert found.interaction_high is not None
        covered.append(found.interaction_low <= 0.3 <= found.interaction_high)
    assert 0.91 <= np.mean(covered) <= 0.985


def test_a_lowest_point_off_the_grid_is_not_reported() -> None:
    found = planted(0.0, at=(-12.0, 0.0))
    assert (found.log2_values, found.none_because) == (None, "the lowest point is off the grid")
    saddle = fit_surface(*zip(*GRID, strict=True), [math.log2(a) * math.log2(b) for a, b in GRID])
    assert saddle is not None
    assert (saddle.log2_values, saddle.none_because) == (None, "the surface has no lowest point")


def test_divergence_is_censored_and_two_lines_fix_no_surface() -> None:
    losses = [3 + (math.log2(a) + 6) ** 2 + math.log2(b) ** 2 for a, b in GRID]
    losses[-1] = math.inf
    found = fit_surface(*zip(*GRID, strict=True), losses)
    assert found is not None
    assert found.num_cells == len(GRID) - 1
    assert found.log2_values == pytest.approx((-6.0, 0.0), abs=1e-9)
    cross = [(2.0**a, 1.0) for a in range(-9, -3)] + [(2.0**-6, 2.0**b) for b in (-2, -1, 1, 2)]
    assert fit_surface(*zip(*cross, strict=True), [1.0] * len(cross)) is None
    assert fit_surface([1.0], [1.0], [1.0]) is None
