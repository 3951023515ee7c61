"""What was measured at a shape: walls, the cells that tell where the optimum is, and cells without a result."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from planted_lines import grid_of
from planted_parabolas import X, all_of, parabola

from hpxfer.verdict.loss_grid import Floats
from hpxfer.verdict.measured import Measured
from hpxfer.verdict.odd_runs import measure
from hpxfer.verdict.tied import ROUNDING

NAN, INF = math.nan, math.inf


def shape(*cells: list[float], x: Floats | None = None) -> Measured:
    """Return what was measured at one shape from the losses of its cells, one per seed."""
    log2 = range(len(cells)) if x is None else x.tolist()
    return measure(grid_of(list(cells), log2_values=log2).rows)[0]


@given(
    levels=st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    holes=st.sets(st.tuples(st.integers(0, 6), st.integers(0, 2)), max_size=3),
)
@settings(deadline=None, max_examples=examples(30))
def test_the_level_of_a_seed_changes_no_difference_of_means(levels: list[float], holes: set[tuple[int, int]]) -> None:
    """A cell that lacks a seed is not shifted by what the seed adds to the other cells."""
    loss = parabola(noise=0.0, shapes=1)
    for k, s in holes:
        loss[0, k, s] = NAN
    (plain,), (leveled,) = all_of(loss), all_of(loss + np.array(levels))
    if not np.isfinite(loss[0]).any(axis=1).all():
        return
    assert plain.mean_K - plain.mean_K[0] == pytest.approx(3 + 0.02 * (X + 6.2) ** 2 - 3 - 0.02 * 2.8**2, abs=1e-9)
    assert leveled.mean_K - leveled.mean_K[0] == pytest.approx(plain.mean_K - plain.mean_K[0], abs=1e-4)


def test_a_missing_lucky_seed_does_not_move_the_mean_of_its_cell() -> None:
    mean = np.array([4.0, 1.0, 0.0, 1.0, 4.0])
    whole = mean[:, None] + np.array([-0.5, 0.2, 0.3])
    hole = whole.copy()
    hole[1, 0] = NAN
    assert shape(*hole.tolist()).mean_K == pytest.approx(mean, abs=1e-3)
    assert float(np.nanmean(hole[1])) == pytest.approx(1.25)  # what the mean of the cell alone would say


def test_a_seed_that_diverged_makes_its_cell_unstable_and_half_of_them_diverged() -> None:
    found = shape([3.0] * 3, [2.0] * 3, [2.5, 2.5, INF], [2.5, INF, INF], [NAN] * 3)
    assert found.stable_K.tolist() == [True, True, False, False, False]
    assert found.diverges_K.tolist() == [False, False, False, True, False]
    assert found.has_result_K.tolist() == [True, True, True, True, False]
    assert found.num_K.tolist() == [3, 3, 2, 1, 0]
    assert np.isnan(found.mean_K[4])
    assert shape([3.0, INF], [2.0, 2.0]).diverges_K.tolist() == [True, False]


def test_the_optimum_lies_between_the_closest_cells_that_diverge() -> None:
    found = shape([INF] * 2, [3.0] * 2, [2.0] * 2, [3.0] * 2, [3.5, INF], [1.0, 1.0])
    assert found.lowest == 5  # beyond a cell that diverges training may be stable again
    cut = shape([INF] * 2, [3.0] * 2, [2.0] * 2, [3.0] * 2, [3.5, INF], [5.0, 5.0])
    assert (cut.lowest, cut.low, cut.high) == (2, 0.0, 4.0)
    assert cut.cells_N.tolist() == [1, 2, 3]
    free = shape([3.0], [2.0], [3.0])
    assert (free.low, free.high) == (-INF, INF)


def test_the_fitted_cells_are_those_near_the_lowest_one() -> None:
    rise = [[3 + 0.02 * (k - 5.2) ** 2] for k in range(11)]
    assert shape(*rise).cells_N.tolist() == [3, 4, 5, 6, 7]
    fine = np.arange(0.0, 8.0, 0.5)
    found = shape(*[[3 + 0.02 * (x - 4.1) ** 2] for x in fine], x=fine)
    assert fine[found.cells_N].tolist() == [1.5 + 0.5 * k for k in range(11)]
    coarse = np.arange(0.0, 14.0, 2.0)
    found = shape(*[[3 + 0.02 * (x - 6.1) ** 2] for x in coarse], x=coarse)
    assert coarse[found.cells_N].tolist() == [2.0, 4.0, 6.0, 8.0, 10.0]


def test_nothing_stable_leaves_no_cells() -> None:
    for cells in ([[INF]] * 3, [[NAN]] * 3):
        found = shape(*cells)
        assert (found.lowest, found.cells_N.size) == (None, 0)
    one = shape([INF], [2.0], [NAN])
    assert (one.lowest, one.cells_N.tolist()) == (1, [1])


def test_a_cell_that_blew_up_is_a_wall_and_a_steep_side_is_none() -> None:
    u = np.arange(7.0) - 3.1
    assert shape(*(3 + 0.02 * u**2)[:, None].tolist()).wall is None
    steep = 0.02 * u**2 * (1 + 0.3 * u.clip(0))
    assert shape(*(3 + steep)[:, None].tolist()).wall is None
    blown = 3 + 0.02 * u**2
    blown[5] += 1.0
    found = shape(*blown[:, None].tolist())
    assert found.wall is not None
    assert found.cells_N[found.wall] == 5
    below = blown[::-1]
    assert shape(*below[:, None].tolist()).wall is None  # small HPs do not blow up


@pytest.mark.slow
def test_noise_alone_rarely_makes_a_wall() -> None:
    walls = [found.wall is not None for luck in range(100) for found in all_of(parabola(noise=0.002, luck=luck))]
    assert np.mean(walls) < 0.05


def test_of_equal_means_the_smallest_hp_is_the_lowest() -> None:
    assert shape([3.0], [2.0], [2.0], [3.0]).lowest == 1


@given(
    losses=st.lists(
        st.lists(st.one_of(st.floats(-5, 50), st.just(INF), st.just(NAN)), min_size=2, max_size=2),
        min_size=1,
        max_size=7,
    )
)
@settings(deadline=None, max_examples=examples(100))
def test_the_laws_of_what_was_measured(losses: list[list[float]]) -> None:
    found = shape(*losses)
    stable = np.flatnonzero(found.stable_K)
    assert (found.lowest is None) == (stable.size == 0)
    assert set(found.cells_N) <= set(stable)
    if found.lowest is not None:
        assert found.lowest in found.cells_N
        agreeing = stable[found.doubt_K[stable] == 0] if (found.doubt_K[stable] == 0).any() else stable
        assert found.mean_K[found.lowest] <= min(found.mean_K[agreeing]) + ROUNDING
        assert found.low < found.x_K[found.lowest] < found.high
        assert found.wall is None or found.cells_N[found.wall] > found.lowest
    given_KS = np.array(losses)[:, ~np.isnan(losses).all(axis=0)]  # a seed without a result is none
    kept = ~np.isnan(found.loss_KS)
    same = kept & ~found.dead_KS
    assert np.array_equal(found.loss_KS[same], given_KS[same])
    assert np.array_equal(found.apart_KS, ~np.isnan(given_KS) & ~kept)
    assert found.stable_K[found.doubt_K > 0].all()
