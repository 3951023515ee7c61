"""Surfaces over two HPs."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from there import there

from hpxfer.analysis.statistics.surface import Surface, fit_surface

GRID = [(2.0**a, 2.0**b) for a, b in product(range(-9, -3), range(-2, 3))]
FIRST, SECOND = zip(*GRID, strict=True)


def planted(
    interaction: float, noise: float = 0.0, at: tuple[float, float] = (-6.3, 0.4), seed: int = 0, far: float = 0.0
) -> Surface:
    """Return the fit of a planted surface; `far` is a rise with the fourth power of the first HP, as in real ones."""
    rng = np.random.default_rng(seed)
    losses = []
    for first, second in GRID:
        v = math.log2(second) - at[1]
        u = math.log2(first) - at[0] - interaction * v
        losses.append(3 + 0.02 * u**2 + 0.01 * v**2 + far * max(u, 0) ** 4 + noise * rng.standard_normal())
    return fit_surface(FIRST, SECOND, losses)


@pytest.mark.parametrize("interaction", [-0.5, 0.0, 0.7])
def test_a_surface_gives_back_its_lowest_point_and_its_interaction(interaction: float) -> None:
    found = planted(interaction)
    assert found.log2_values == pytest.approx((-6.3, 0.4))
    assert found.loss == pytest.approx(3.0)
    assert found.interaction == pytest.approx(interaction, abs=1e-9)
    assert found.curvatures == pytest.approx((0.02, 0.01 + 0.02 * interaction**2))
    assert found.at(-6.3, 0.4) == pytest.approx(3.0)
    assert found.why_not is None


def test_the_interval_of_the_interaction_covers() -> None:
    covered, zero_inside = [], []
    for seed in range(200):
        found = planted(0.3, noise=0.005, seed=seed)
        covered.append(there(found.interaction_low) <= 0.3 <= there(found.interaction_high))
        zero_inside.append(there(found.interaction_low) <= 0.0)
    assert 0.91 <= np.mean(covered) <= 0.985
    assert np.mean(zero_inside) < 0.2


def test_the_fit_rests_on_the_cells_around_the_lowest_one() -> None:
    found = planted(0.0, at=(-8.0, 0.0), far=0.01)
    assert found.num_cells < len(GRID)
    assert {cell.log2_first for cell in found.cells if cell.fitted} == {-9.0, -8.0, -7.0, -6.0}
    assert there(found.log2_values)[0] == pytest.approx(-8.0, abs=0.4)


def test_a_lowest_point_off_the_grid_is_not_reported() -> None:
    found = planted(0.0, at=(-12.0, 0.0))
    assert (found.log2_values, found.why_no_optimum) == (None, "the lowest point is off the grid")
    saddle = fit_surface(FIRST, SECOND, [math.log2(a) * math.log2(b) for a, b in GRID])
    assert (saddle.log2_values, saddle.why_no_optimum) == (None, "the surface has no lowest point")


def test_divergence_is_censored_and_two_lines_fix_no_surface() -> None:
    losses = [3 + (math.log2(a) + 6) ** 2 + math.log2(b) ** 2 for a, b in GRID]
    lost = GRID.index((2.0**-5, 4.0))
    losses[lost] = math.inf
    found = fit_surface(FIRST, SECOND, losses)
    assert found.log2_values == pytest.approx((-6.0, 0.0), abs=1e-9)
    assert [(cell.loss, cell.fitted) for cell in found.cells if cell.loss is None] == [(None, False)]
    cross = [(2.0**a, 1.0) for a in range(-9, -3)] + [(2.0**-6, 2.0**b) for b in (-2, -1, 1, 2)]
    first, second = zip(*cross, strict=True)
    for nothing in (fit_surface(first, second, [1.0] * len(cross)), fit_surface([1.0], [1.0], [1.0])):
        assert nothing.why_not is not None
        assert nothing.at(0.0, 0.0) is None


def test_a_cell_counts_by_its_seeds_and_is_lost_where_one_diverges() -> None:
    found = fit_surface([*FIRST, FIRST[0]], [*SECOND, SECOND[0]], [*([3.0] * len(GRID)), math.inf])
    assert sum(cell.loss is None for cell in found.cells) == 1
    assert len(found.cells) == len(GRID)
