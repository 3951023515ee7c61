"""The simulator: it plants what its kind says, as a grid and as a frame alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from loss_arrays import losses
from planted_sweeps import Planted, plant

from hpxfer.verdict.loss_grid import loss_grids

MESSY = Planted(missing=0.2, cliff=1.5, cliff_width=1.0, tail=3.0, luck=0.1, luck_slope=0.01, drift=0.3)


def test_the_grid_and_the_frame_hold_the_same_losses() -> None:
    sweep = plant(MESSY, 3)
    (grid,) = loss_grids(sweep.frame())
    assert grid.rows == sweep.grid().rows
    assert np.array_equal(losses(grid), sweep.loss_IKS, equal_nan=True)


def test_equal_seeds_equal_sweeps() -> None:
    assert np.array_equal(plant(MESSY, 3).loss_IKS, plant(MESSY, 3).loss_IKS, equal_nan=True)
    assert not np.array_equal(plant(MESSY, 3).loss_IKS, plant(MESSY, 4).loss_IKS, equal_nan=True)


def test_without_noise_the_losses_are_the_planted_basins() -> None:
    sweep = plant(Planted(noise=0.0, drift=0.5, asymmetry=0.1), 0)
    assert np.diff(sweep.optimum_I) == pytest.approx(np.full(4, sweep.drift))
    assert abs(sweep.drift) == 0.5
    u = sweep.x_K - sweep.optimum_I[2]
    near = np.abs(u) <= 2
    assert sweep.loss_IKS[2, near, 0] == pytest.approx(2.8 + 0.02 * (u[near] ** 2 + 0.1 * u[near] ** 3))


@pytest.mark.parametrize("tail", [math.inf, 5.0])
def test_the_noise_has_the_planted_size(tail: float) -> None:
    losses = np.array([plant(Planted(noise=0.01, curvature=0.0, gain=0.0, tail=tail), s).loss_IKS for s in range(300)])
    assert np.std(losses) == pytest.approx(0.01, rel=0.03)


def test_luck_is_a_seed_s_at_a_shape() -> None:
    losses = np.array([plant(Planted(noise=0.0, curvature=0.0, luck=0.1), s).loss_IKS for s in range(300)])
    assert np.ptp(losses - losses[:, :, :1], axis=2).max() == pytest.approx(0.0, abs=1e-12)
    assert np.std(losses[:, 0, 0]) == pytest.approx(0.1, rel=0.1)
    sloped = plant(Planted(noise=0.0, curvature=0.0, luck_slope=0.1), 0).loss_IKS
    assert np.diff(sloped, n=2, axis=1) == pytest.approx(0.0, abs=1e-12)
    assert np.ptp(np.diff(sloped, axis=1)[:, 0]) > 0.01


def test_cliffs_and_holes() -> None:
    sweep = plant(Planted(cliff=1.5), 0)
    over = (sweep.x_K - sweep.optimum_I[:, None]) > 1.5
    assert np.array_equal(np.isinf(sweep.loss_IKS).all(2), over)
    assert np.isfinite(plant(Planted(cliff=1.5, blow_up=True), 0).loss_IKS).all()
    holes = np.mean([np.isnan(plant(Planted(missing=0.3), s).loss_IKS).mean() for s in range(50)])
    assert holes == pytest.approx(0.3, abs=0.03)
