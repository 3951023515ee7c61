"""The cube: means that missing seeds do not move, and what is no part of a basin."""

from __future__ import annotations

import math

import numpy as np
import pytest
from planted_lines import STAYS, line, with_status

from hpxfer.analysis.basin import basins
from hpxfer.analysis.cube import Cube, cube

NAN, INF = math.nan, math.inf


def made(*losses: list[list[float]]) -> Cube:
    """Return a cube of one HP octave a cell from (shape, HP, seed) losses."""
    loss_IKS = np.array(losses, dtype=float)
    return Cube(
        x_K=np.arange(float(loss_IKS.shape[1])), doublings_I=np.arange(float(loss_IKS.shape[0])), loss_IKS=loss_IKS
    )


def test_a_line_becomes_a_cube() -> None:
    frame = with_status(line(STAYS), "missing", scale=64.0, value=2.0**-7, seed=1)
    frame = with_status(frame, "diverged", scale=128.0, value=2.0**-4)
    data = cube(basins(frame))
    assert data.loss_IKS.shape == (3, 6, 2)
    assert data.x_K.tolist() == [-9.0, -8.0, -7.0, -6.0, -5.0, -4.0]
    assert math.isnan(data.loss_IKS[1, 2, 1])
    assert np.isinf(data.loss_IKS[2, 5]).all()


def test_a_missing_lucky_seed_does_not_move_the_mean_of_its_cell() -> None:
    mean = np.array([4.0, 1.0, 0.0, 1.0, 4.0])
    whole = mean[:, None] + np.array([-0.5, 0.2, 0.3])
    hole = whole.copy()
    hole[1, 0] = NAN
    assert made(hole.tolist()).mean_IK[0] == pytest.approx(mean, abs=1e-8)
    assert float(np.nanmean(hole[1])) == pytest.approx(1.25)  # what the mean of the cell alone would say
    assert made(hole.tolist()).left_IKS[0][~np.isnan(hole)] == pytest.approx(0.0, abs=1e-8)


def test_what_is_left_has_the_variance_of_one_seed() -> None:
    rng = np.random.default_rng(0)
    noise = 0.01 * rng.standard_normal((4000, 5, 3)) + rng.standard_normal((4000, 1, 3))
    data = made(*(noise + (np.arange(5.0)[:, None] - 2) ** 2).tolist())
    assert np.std(data.left_IKS) == pytest.approx(0.01 * math.sqrt(4 / 5), rel=0.02)  # the level takes one of five


def test_a_basin_ends_where_a_seed_diverged() -> None:
    data = made([[3.0, 3.1], [2.0, 2.1], [1.0, 1.1], [2.0, INF], [2.5, 2.6]])
    assert data.basin_IK[0].tolist() == [True, True, True, False, False]
    assert data.diverges_IK[0].tolist() == [False, False, False, True, False]
    assert np.isnan(data.mean_IK[0, 3:]).all()


def test_one_seed_in_three_is_unstable_and_no_divergence() -> None:
    data = made([[3.0] * 3, [2.0] * 3, [2.5, 2.5, INF]])
    assert data.unstable_IK[0].tolist() == [False, False, True]
    assert not data.diverges_IK.any()


def test_a_loss_that_blew_up_is_a_cliff_and_a_steep_side_is_none() -> None:
    quadratic = [[0.02 * (x - 3) ** 2] for x in range(7)]
    assert not made(quadratic).cliffs_IK.any()
    steep = [[0.02 * (x - 3) ** 2 * (1 + 0.3 * (x - 3))] for x in range(7)]
    assert not made(steep).cliffs_IK.any()
    blown = [*quadratic[:5], [4.0], [300.0]]
    assert made(blown).cliffs_IK[0].tolist() == [False] * 5 + [True] * 2
    assert made(blown).basin_IK[0].tolist() == [True] * 5 + [False] * 2


def test_noise_alone_rarely_makes_a_cliff() -> None:
    rng = np.random.default_rng(1)
    losses = 3 + 0.01 * rng.standard_normal((500, 7, 3))
    cut = np.array([made(one.tolist()).cliffs_IK.any() for one in losses])
    assert cut.mean() < 0.05


def test_cells_without_results_are_no_cells() -> None:
    data = made([[NAN, NAN], [2.0, NAN], [1.0, 1.1], [2.0, 2.1]])
    assert data.basin_IK[0].tolist() == [False, True, True, True]
    assert data.num_seeds_IK[0].tolist() == [0, 1, 2, 2]
    assert np.isnan(data.left_IKS[0, 1]).all()  # one seed says nothing of noise
    assert not made([[NAN], [NAN]]).basin_IK.any()
