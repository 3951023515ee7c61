"""The posterior: its laws, what it says of planted basins, and odd sweeps that must not break it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from planted_lines import grid_of

from hpxfer.verdict.loss_grid import Floats, LossGrid
from hpxfer.verdict.noise import SeedNoise, seed_noise
from hpxfer.verdict.odd_runs import measure
from hpxfer.verdict.posterior import Posterior, posterior
from hpxfer.verdict.transfer import find

X = np.arange(-9.0, -2.0)
OPTIMA = (-6.2, -5.8, -5.9)
NOMINAL = SeedNoise(variance=1e-6, slope_variance=0.0, freedom=20.0, trial_freedom=20.0)


def basins(noise: float = 0.005, optima: Sequence[float] = OPTIMA, seeds: int = 3, luck: int = 0) -> Floats:
    """Return losses (I, K, S) of parabolas."""
    rng = np.random.default_rng(luck)
    mean_IK = 3 + 0.02 * (X - np.array(optima)[:, None]) ** 2 - 0.1 * np.arange(len(optima))[:, None]
    return np.asarray(mean_IK[:, :, None] + noise * rng.standard_normal((len(optima), X.size, seeds)))


def grid(loss_IKS: Floats, x: Floats = X) -> LossGrid:
    return grid_of(*loss_IKS.tolist(), log2_values=x.tolist())


def drawn(loss_IKS: Floats, x: Floats = X) -> Posterior:
    rows = measure(grid(loss_IKS, x).rows)
    return posterior(rows, seed_noise(rows, {})[0] or NOMINAL)


def summary(found: Posterior) -> Floats:
    """Return the 2.5%, 50% and 97.5% points of the optima, (3, I)."""
    return np.asarray(np.quantile(found.optimum_BI, (0.025, 0.5, 0.975), axis=0))


def test_planted_optima_and_curvatures_are_found() -> None:
    low, middle, high = summary(drawn(basins()))
    assert (low < OPTIMA).all()
    assert (high > OPTIMA).all()
    assert middle == pytest.approx(OPTIMA, abs=0.2)
    found = drawn(basins(noise=0.001))
    assert np.median(found.curvature_BI, axis=0) == pytest.approx(0.02, rel=0.25)
    assert np.median(found.level_BI, axis=0) == pytest.approx([3.0, 2.9, 2.8], abs=0.005)


def test_more_noise_means_wider_intervals_and_more_seeds_narrower_ones() -> None:
    def width(noise: float, seeds: int) -> float:
        found = [summary(drawn(basins(noise, seeds=seeds, luck=luck))) for luck in range(4)]
        return float(np.median([ends[2] - ends[0] for ends in found]))

    assert width(0.001, 3) < width(0.01, 3) < width(0.03, 3)
    assert width(0.02, 12) < width(0.02, 3)


def test_equal_losses_give_equal_draws() -> None:
    first, second = drawn(basins()), drawn(basins())
    for name in ("optimum_BI", "level_BI", "curvature_BI", "form_BI", "tolerance_B"):
        assert np.array_equal(getattr(first, name), getattr(second, name))


@given(constant=st.floats(-3, 3), luck=st.integers(0, 20))
@settings(deadline=None, max_examples=examples(12))
def test_a_constant_on_all_losses_changes_nothing_but_the_level(constant: float, luck: int) -> None:
    loss = basins(luck=luck)
    plain, shifted = drawn(loss), drawn(loss + constant)
    assert summary(shifted) == pytest.approx(summary(plain), abs=1e-6)
    assert np.median(shifted.level_BI - plain.level_BI) == pytest.approx(constant, abs=1e-6)


@given(octaves=st.integers(-8, 8), luck=st.integers(0, 20))
@settings(deadline=None, max_examples=examples(12))
def test_a_shift_of_all_hps_shifts_the_optima_by_as_much(octaves: int, luck: int) -> None:
    loss = basins(luck=luck)
    plain, shifted = drawn(loss), drawn(loss, X + octaves)
    assert summary(shifted) == pytest.approx(summary(plain) + octaves, abs=1e-6)


@given(power=st.integers(-3, 3), luck=st.integers(0, 20))
@settings(deadline=None, max_examples=examples(12))
def test_a_factor_on_all_losses_changes_no_optimum(power: int, luck: int) -> None:
    """All of the noise scales too. Powers of two, as they are exact."""
    loss = basins(luck=luck)
    plain, scaled = drawn(loss), drawn(loss * 2.0**power)
    assert summary(scaled) == pytest.approx(summary(plain), abs=1e-6)
    assert np.median(scaled.curvature_BI) == pytest.approx(np.median(plain.curvature_BI) * 2.0**power, rel=1e-6)


@given(order=st.permutations(range(3)), luck=st.integers(0, 20))
@settings(deadline=None, max_examples=examples(12))
def test_the_order_of_shapes_changes_answers_by_no_more_than_the_draws_do(order: list[int], luck: int) -> None:
    loss = basins(luck=luck)
    plain, permuted = summary(drawn(loss)), summary(drawn(loss[order]))
    width = plain[2] - plain[0]
    assert (np.abs(permuted - plain[:, order]) < 0.15 * width[order]).all()


def test_seeds_in_another_order_change_nothing() -> None:
    loss = basins()
    assert summary(drawn(loss[:, :, ::-1])) == pytest.approx(summary(drawn(loss)), abs=1e-6)


def test_a_mirrored_sweep_has_mirrored_optima() -> None:
    """Where no cell stands behind a wall, both sides count alike."""
    for luck in range(4):
        loss = basins(luck=luck)
        plain, mirrored = summary(drawn(loss)), summary(drawn(loss[:, ::-1], -X[::-1]))
        assert (np.abs(mirrored[::-1] + plain) < 0.15 * (plain[2] - plain[0])).all()


def test_a_form_that_shapes_share_cancels_in_a_move() -> None:
    """Three cells at factor 4 leave the form open. It moves the optima of all shapes alike, which joint draws show."""
    coarse = np.array([1, 3, 5])
    found = drawn(basins(noise=0.0005, optima=(-6.2, -6.2, -6.2))[:, coarse], X[coarse])
    joint = np.ptp(np.quantile(found.optimum_BI[:, 2] - found.optimum_BI[:, 0], (0.16, 0.84)))
    shuffled = np.random.default_rng(0).permutation(found.optimum_BI[:, 0])
    apart = np.ptp(np.quantile(found.optimum_BI[:, 2] - shuffled, (0.16, 0.84)))
    assert joint < 0.7 * apart


def test_zero_noise_gives_the_optimum_of_a_parabola() -> None:
    low, middle, high = summary(drawn(basins(noise=0.0)))
    assert middle == pytest.approx(OPTIMA, abs=0.05)
    assert (high - low < 0.3).all()
    assert (low <= OPTIMA).all()
    assert (high >= OPTIMA).all()


def test_a_shape_with_fewer_than_two_stable_cells_has_no_draws_and_the_others_do() -> None:
    loss = basins()
    loss[1, 1:] = math.inf
    found = drawn(loss)
    assert [found.known(i) for i in range(3)] == [True, False, True]
    assert np.isnan(found.optimum_BI[:, 1]).all()
    assert summary(found)[1][[0, 2]] == pytest.approx([-6.2, -5.9], abs=0.25)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_without_a_finite_loss_there_are_no_draws(value: float) -> None:
    found = drawn(np.full((2, 7, 3), value))
    assert not any(found.known(i) for i in range(2))
    (finding,) = find([grid(np.full((2, 7, 3), value))])
    assert finding.verdict in ("undecided", "drifts")


def test_an_hp_that_diverges_bounds_the_optimum() -> None:
    loss = basins()
    loss[:, 4:] = math.inf  # from 2^-5 on
    found = drawn(loss)
    assert (found.optimum_BI <= -5.0).all()
    assert np.isinf(found.cell_losses(0)[:, 4:]).all()
    assert np.isfinite(found.cell_losses(0)[:, :4]).all()


def test_a_cell_behind_a_wall_says_only_that_the_optimum_lies_below() -> None:
    loss = basins(noise=0.002)
    wall = loss.copy()
    wall[:, 5] += 1.0
    plain, found = summary(drawn(loss)), drawn(wall)
    assert all(measured.wall is not None for measured in found.rows)
    low, middle, high = summary(found)
    assert np.abs(middle - plain[1]).max() < 0.3
    assert (low < OPTIMA).all()
    assert (high > OPTIMA).all()


def test_cells_that_no_basin_fits_have_a_misfit_and_others_have_none() -> None:
    smooth = drawn(basins(noise=0.001))
    assert smooth.misfit_I.tolist() == [1.0, 1.0, 1.0]
    loss = basins(noise=0.001)
    loss[1] += 0.02 * np.array([0, 1, -1, 1, -1, 1, 0])[:, None]
    rough = drawn(loss)
    assert rough.misfit_I[1] > 3
    assert rough.misfit_I[[0, 2]].tolist() == [1.0, 1.0]
    width = [float(ends[2][1] - ends[0][1]) for ends in (summary(smooth), summary(rough))]
    assert width[1] > 1.5 * width[0]


def test_losses_of_cells_lie_at_what_was_measured() -> None:
    found = drawn(basins(noise=0.001))
    cells = found.rows[0].cells_N
    assert found.cell_losses(0)[:, cells].mean(axis=0) == pytest.approx(found.rows[0].mean_K[cells], abs=0.004)
    assert found.mean_curve(0, X[cells]) == pytest.approx(found.rows[0].mean_K[cells], abs=0.01)
    assert found.curves(0, X[cells]).shape == (len(found.optimum_BI), cells.size)


@given(
    losses=st.lists(
        st.lists(
            st.lists(st.one_of(st.floats(-5, 20), st.sampled_from((math.inf, math.nan, 3.0))), min_size=2, max_size=2),
            min_size=4,
            max_size=4,
        ),
        min_size=1,
        max_size=3,
    )
)
@settings(deadline=None, max_examples=examples(40))
def test_no_losses_break_it(losses: list[list[list[float]]]) -> None:
    found = drawn(np.array(losses), np.arange(4.0))
    for i, measured in enumerate(found.rows):
        assert found.known(i) == (measured.cells_N.size >= 2)
        if found.known(i):
            assert np.isfinite(found.optimum_BI[:, i]).all()
            assert (found.optimum_BI[:, i] >= measured.low).all()
            assert (found.optimum_BI[:, i] <= measured.high).all()
            assert (found.curvature_BI[:, i] >= 0).all()
            assert np.isfinite(found.level_BI[:, i]).all()
    find([grid(np.array(losses), np.arange(4.0))])
