"""The draws: errors against theory, curves pooled once, and what they are widened by."""

from __future__ import annotations

import math

import numpy as np
import pytest
from planted_lines import grid_of
from scipy import stats

from hpxfer.verdict.bootstrap import Draws, draw_optima, pool_noise, scatter_ratio
from hpxfer.verdict.local_fit import LocalFit, fit_local
from hpxfer.verdict.loss_grid import LossGrid
from hpxfer.verdict.thresholds import NUM_DRAWS


def noisy(noise: float, seeds: int = 2, shapes: int = 5, slope: float = 0.0, rng_seed: int = 0) -> LossGrid:
    """Return shapes with their optimum at the middle of five cells, so that the fit is the plain polynomial's."""
    rng = np.random.default_rng(rng_seed)
    u = np.arange(5.0) - 2
    loss = 3 + 0.05 * u[:, None] ** 2 + noise * rng.standard_normal((shapes, 5, seeds))
    loss = loss + slope * rng.standard_normal((shapes, 1, seeds)) * u[:, None]
    return grid_of(*loss.tolist())


def drawn(data: LossGrid, num_draws: int = NUM_DRAWS) -> tuple[LocalFit, Draws]:
    fit = fit_local(data)
    assert fit is not None
    noise = pool_noise([(data, fit)])
    assert noise is not None
    return fit, draw_optima(data, fit, noise, num_draws)


def test_errors_are_those_of_least_squares() -> None:
    noise, seeds, shapes = 0.002, 3, 40
    _, draws = drawn(noisy(noise, seeds, shapes))
    own = 1 / 10  # 1 / sum of u^2
    shared = 3.4**2 / (shapes * (130 - 34**2 / 10))  # the cubic's part: all shapes share its coefficient
    se = noise / (2 * 0.05) * math.sqrt((own + shared) / seeds)
    assert draws.se_F == pytest.approx(np.full(shapes, se), rel=0.15)
    assert draws.freedom == shapes * (seeds - 1)


def test_a_seed_with_an_optimum_of_its_own_is_seen_where_residuals_would_not() -> None:
    """Half of the published seeds' luck is a slope in log2 LR: it leaves no residual about a fit a seed."""
    _, draws = drawn(noisy(1e-6, 2, 120, slope=0.01), 500)
    assert draws.se_F.mean() == pytest.approx(0.01 / (2 * 0.05) / math.sqrt(2), rel=0.15)


def test_intervals_have_student_s_tails() -> None:
    _, draws = drawn(noisy(0.002, 2, 3))
    half = (draws.interval_2F[1] - draws.interval_2F[0]) / 2
    ratio = half / draws.se_F
    assert draws.freedom == 3
    assert (ratio > stats.t.ppf(0.975, 9) * 0.95).all()  # two sums of squares or so, of three degrees each
    assert (ratio < stats.t.ppf(0.975, 3) * 1.1).all()


def test_a_base_that_two_findings_share_counts_once() -> None:
    data = noisy(0.002, 3, 2)
    other = grid_of(data.loss_IKS[0].tolist(), noisy(0.002, 3, 1, rng_seed=5).loss_IKS[0].tolist())
    fits = [(grid, fit) for grid in (data, other) if (fit := fit_local(grid)) is not None]
    noise = pool_noise(fits)
    assert noise is not None
    assert noise.freedom == 3 * 2


def test_one_seed_has_no_noise() -> None:
    data = noisy(0.002, 1)
    fit = fit_local(data)
    assert fit is not None
    assert pool_noise([(data, fit)]) is None
    assert pool_noise([]) is None


def test_cells_that_scatter_about_the_fit_widen_the_errors() -> None:
    calm = noisy(1e-4, 3)
    _, draws = drawn(calm)
    assert draws.misfit == 1.0
    rough = calm.loss_IKS + 0.01 * np.random.default_rng(3).standard_normal((5, 5, 1))
    _, wide = drawn(grid_of(*rough.tolist()))
    assert wide.misfit > 10
    assert wide.se_F.mean() == pytest.approx(draws.se_F.mean() * wide.misfit, rel=0.3)


def test_scatter_within_chance_widens_nothing() -> None:
    drawn_B, tail_B = stats.chi2(4).rvs(4000, random_state=0), np.ones(4000)
    assert scatter_ratio(4.5, drawn_B, tail_B) == 1.0
    assert scatter_ratio(40.0, drawn_B, tail_B) == pytest.approx(math.sqrt(10), rel=0.05)
    assert scatter_ratio(0.0, np.zeros(10), np.ones(10)) == 1.0


def test_noise_alone_is_flat_and_a_basin_is_not() -> None:
    assert not drawn(noisy(0.002))[1].flat_F.any()
    rng = np.random.default_rng(0)
    flat = grid_of(*(3 + 0.01 * rng.standard_normal((5, 7, 3))).tolist())
    assert drawn(flat)[1].flat_F.all()


def test_equal_losses_give_equal_draws() -> None:
    first, second = (drawn(noisy(0.002))[1] for _ in range(2))
    assert np.array_equal(first.interval_2F, second.interval_2F)
