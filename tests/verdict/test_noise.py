"""The noise floor: pooled over cells, and the error of a difference against a simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from planted_sweeps import cell_of

from hpxfer.verdict.loss_grid import SeedLosses, ShapeLosses
from hpxfer.verdict.noise import cells_near_optimum, difference_se, paired_noise, seed_noise


def cell(value: float, *losses: float) -> SeedLosses:
    return cell_of(value, losses)


def row(*cells: SeedLosses) -> ShapeLosses:
    return ShapeLosses(
        axis="width", scale_name="width", scale=1.0, shape="w", is_base=True, parameterization="sp", cells=cells
    )


def test_noise_is_pooled_with_its_degrees_of_freedom() -> None:
    # within-cell sums of squares 2 (1 degree of freedom) and 6 (3 degrees), and a cell that has none
    cells = [cell(1, 1.0, 3.0), cell(2, 1.0, 1.0, 2.0, 4.0), cell(3, 9.0)]
    assert seed_noise(cells) == pytest.approx(math.sqrt(8 / 4))


def test_a_diverged_seed_adds_no_noise() -> None:
    assert seed_noise([cell(1, 1.0, 3.0, math.inf)]) == pytest.approx(math.sqrt(2))


def test_one_seed_has_no_noise_floor() -> None:
    assert seed_noise([cell(1, 1.0), cell(2, 2.0), cell(3)]) is None
    assert seed_noise([]) is None


def test_only_cells_that_a_regret_rests_on_count() -> None:
    far, left, best, right, moved = cell(1, 9.0), cell(2, 4.0), cell(3, 3.0), cell(4, 4.0), cell(5, 8.0)
    diverged = cell(6, math.inf)
    whole = row(far, left, best, right, moved, diverged)
    assert cells_near_optimum(whole, 5) == (left, best, right, moved)
    assert cells_near_optimum(whole, 6) == (left, best, right)
    assert cells_near_optimum(row(diverged, cell(7)), 6) == ()


def test_a_cell_does_not_differ_from_itself() -> None:
    assert difference_se(1.0, cell(1, 3.0, 4.0), cell(1, 3.0, 4.0)) == 0.0


def test_the_error_of_two_seeds_is_the_mean_s() -> None:
    assert difference_se(2.0, cell(1, 3.0, 4.0), cell(2, 3.0, 4.0)) == pytest.approx(2.0)
    assert difference_se(2.0, cell(1, 3.0), cell(2, 3.0, 4.0)) == pytest.approx(2.0 * math.sqrt(1.5))


@pytest.mark.parametrize("num_seeds", [1, 2, 3, 4, 5])
def test_the_error_bounds_a_simulated_one(num_seeds: int) -> None:
    draws = np.random.default_rng(0).standard_normal((40_000, 2, num_seeds))
    true = float(np.std(np.diff(np.median(draws, axis=2), axis=1)))
    claimed = difference_se(1.0, cell(1, *[1.0] * num_seeds), cell(2, *[1.0] * num_seeds))
    assert 0.99 * true <= claimed <= 1.2 * true


def test_what_a_seed_adds_to_every_cell_is_no_noise_of_a_difference() -> None:
    lucky = [cell(1, 1.0, 3.0), cell(2, 1.5, 3.5), cell(3, 5.0, 7.0)]
    assert paired_noise([lucky]) == pytest.approx(0.0, abs=1e-12)
    assert seed_noise(lucky) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("luck", [0.0, 1.0])
def test_paired_noise_is_the_planted_one_whatever_the_luck_of_the_seeds(luck: float) -> None:
    rng = np.random.default_rng(1)
    shapes = []
    for _ in range(2000):
        seeds = luck * rng.standard_normal(3)
        shapes.append([cell(k, *(k + seeds + 0.1 * rng.standard_normal(3))) for k in range(1, 4)])
    assert paired_noise(shapes) == pytest.approx(0.1, rel=0.05)
    unpaired = seed_noise(found for cells in shapes for found in cells)
    assert unpaired == pytest.approx(math.hypot(0.1, luck), rel=0.05)


def test_seeds_that_a_cell_lacks_are_left_out() -> None:
    whole = [cell(1, 1.0, 3.0, 9.0), cell(2, 2.0, 4.5, math.inf)]
    assert paired_noise([whole]) == pytest.approx(paired_noise([[cell(1, 1.0, 3.0), cell(2, 2.0, 4.5)]]))
    assert paired_noise([whole]) == pytest.approx(0.25)
    assert paired_noise([[cell(1, 1.0, 2.0)], [], [cell(1, 1.0), cell(2, 2.0)]]) is None
