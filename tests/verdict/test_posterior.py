"""Basins, the draws of what they may be, and chances: laws, planted basins, and odd sweeps that must not break it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from planted_parabolas import X, grid_at, parabolas

from hpxfer.intervals import Floats
from hpxfer.verdict.basins import (
    COHERENCE,
    GROWTH_T,
    GROWTHS,
    PRIOR_T,
    REACH,
    SIMILAR_TT,
    SKEW_T,
    SKEWS,
    STEP,
    TABLE_TU,
    rise_of_all,
    rise_of_each,
)
from hpxfer.verdict.chances import Chances, chances
from hpxfer.verdict.estimate import Estimates, estimate_all
from hpxfer.verdict.noise import SeedNoise, seed_noise
from hpxfer.verdict.odd_runs import measure
from hpxfer.verdict.posterior import Posterior, posterior
from hpxfer.verdict.transfer import find

ALL = np.arange(PRIOR_T.size)
MIDDLE = TABLE_TU.shape[1] // 2
BENT = np.isfinite(GROWTH_T)
FLAT, KINKED = np.isnan(GROWTH_T), np.isinf(GROWTH_T)


def test_every_form_has_one_minimum_and_it_is_at_zero() -> None:
    assert TABLE_TU.shape == (SKEWS.size * GROWTHS.size, round(2 * REACH / STEP) + 1)
    assert np.isfinite(TABLE_TU).all()
    assert (TABLE_TU[:, MIDDLE] == 0).all()
    bends = np.diff(TABLE_TU, n=2, axis=1)
    assert (bends >= -1e-9 * np.abs(TABLE_TU[:, 1:-1]).clip(1)).all()  # convex, so that nothing else is a minimum
    near = [round(MIDDLE + side / STEP) for side in (-1, 1)]
    assert (TABLE_TU[:, near] > 0.05).all()


def test_the_curvature_at_the_optimum_is_that_of_a_parabola() -> None:
    """So the curvatures of different forms can be compared. A flat bottom has none, and rises as a quartic."""
    second = np.diff(TABLE_TU, n=2, axis=1)[:, MIDDLE - 1] / STEP**2
    assert second[BENT] == pytest.approx(2.0, rel=0.01)
    assert (second[FLAT] < 0.05).all()
    (flat,) = np.flatnonzero(FLAT & (SKEW_T == 0))
    u = np.array([0.5, 1.0, 2.0])
    assert rise_of_all(u, np.array([flat]))[0] == pytest.approx(u**4, rel=0.01)


def test_a_kink_joins_two_lines_whose_slopes_differ_by_its_skew() -> None:
    u = np.array([-4.0, -2.0, 2.0, 4.0])
    for form in np.flatnonzero(KINKED):
        far_left, left, right, far_right = rise_of_all(u, np.array([form]))[0]
        slopes = (far_left - left) / 2, (far_right - right) / 2
        assert slopes == pytest.approx((np.exp(-SKEW_T[form] / 2), np.exp(SKEW_T[form] / 2)), rel=0.02)
        assert right == pytest.approx(2 * slopes[1], rel=0.03)


def test_the_form_without_skew_and_growth_is_a_parabola() -> None:
    (parabola,) = np.flatnonzero((SKEW_T == 0) & (GROWTH_T == 0))
    u = np.linspace(-6, 6, 61)
    assert rise_of_all(u, np.array([parabola]))[0] == pytest.approx(u**2, abs=1e-3)
    assert PRIOR_T.argmax() == parabola


def test_weights_are_probabilities() -> None:
    assert PRIOR_T.sum() == pytest.approx(1.0)
    assert (PRIOR_T > 0).all()
    assert SIMILAR_TT.sum(axis=1) == pytest.approx(np.ones(PRIOR_T.size))
    assert (SIMILAR_TT >= 0).all()
    assert COHERENCE.sum() == pytest.approx(1.0)


@given(u=st.lists(st.floats(-20, 20), min_size=1, max_size=6), forms=st.lists(st.integers(0, PRIOR_T.size - 1)))
@settings(deadline=None, max_examples=examples(60))
def test_a_rise_lies_between_the_points_of_the_table(u: list[float], forms: list[int]) -> None:
    found = rise_of_all(np.array(u), np.array(forms, dtype=np.int64))
    assert found.shape == (len(forms), len(u))
    assert (found >= 0).all()
    for row, form in zip(found, forms, strict=True):
        for rise, at in zip(row, u, strict=True):
            below = int((at + REACH) / STEP)
            ends = TABLE_TU[form, below : below + 2]
            assert ends.min() * (1 - 1e-9) <= rise <= ends.max() * (1 + 1e-9)


@given(data=st.lists(st.tuples(st.integers(0, PRIOR_T.size - 1), st.floats(-8, 8)), min_size=1, max_size=8))
def test_the_rise_of_each_is_a_row_of_the_rises_of_all(data: list[tuple[int, float]]) -> None:
    forms, u = np.array([form for form, _ in data]), np.array([[at] for _, at in data])
    each = rise_of_each(u, forms)
    assert each.shape == u.shape
    assert each[:, 0] == pytest.approx(np.diag(rise_of_all(u[:, 0], forms)))


def test_beyond_the_table_a_rise_is_that_of_its_end() -> None:
    far = rise_of_all(np.array([-100.0, 100.0]), ALL)
    assert np.isfinite(far).all()
    assert far[:, 0] == pytest.approx(TABLE_TU[:, 0], rel=0.05)
    assert far[:, 1] == pytest.approx(TABLE_TU[:, -1], rel=0.05)


OPTIMA = (-6.2, -5.8, -5.9)
NOMINAL = SeedNoise(variance=1e-6, slope_variance=0.0, freedom=20.0, trial_freedom=20.0)


def basins(noise: float = 0.005, optima: Sequence[float] = OPTIMA, seeds: int = 3, luck: int = 0) -> Floats:
    return parabolas(optima, noise, curvature=0.02, fall=0.1, seeds=seeds, luck=luck)


def drawn(loss_IKS: Floats, x: Floats = X) -> Posterior:
    rows = measure(grid_at(loss_IKS, x).rows)
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


@given(constant=st.floats(-3, 3), octaves=st.integers(-8, 8), power=st.integers(-3, 3), luck=st.integers(0, 20))
def test_units_and_levels_change_nothing_else(constant: float, octaves: int, power: int, luck: int) -> None:
    """The noise scales too. Factors are powers of two, as they are exact."""
    loss = basins(luck=luck)
    plain, other = drawn(loss), drawn(loss * 2.0**power + constant, X + octaves)
    assert summary(other) == pytest.approx(summary(plain) + octaves, abs=1e-6)
    assert np.median(other.level_BI - plain.level_BI * 2.0**power) == pytest.approx(constant, abs=1e-6)
    assert np.median(other.curvature_BI) == pytest.approx(np.median(plain.curvature_BI) * 2.0**power, rel=1e-6)


@given(order=st.permutations(range(3)), luck=st.integers(0, 20))
@settings(deadline=None, max_examples=examples(12))
def test_the_order_of_shapes_changes_answers_by_no_more_than_the_draws_do(order: list[int], luck: int) -> None:
    loss = basins(luck=luck)
    plain, permuted = summary(drawn(loss)), summary(drawn(loss[order]))
    width = plain[2] - plain[0]
    assert (np.abs(permuted - plain[:, order]) < 0.15 * width[order]).all()


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
    (finding,) = find([grid_at(np.full((2, 7, 3), value))])
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
    find([grid_at(np.array(losses), np.arange(4.0))])


def estimates_of(
    optima: Sequence[float], *, noise: float = 0.004, curvature: float = 0.03, seeds: int = 3, luck: int = 0
) -> Estimates:
    """Return the estimates of parabolas at shapes a doubling apart."""
    return estimate_all([grid_at(parabolas(optima, noise, curvature=curvature, seeds=seeds, luck=luck))])[0]


def of(found: Estimates, cell: int, limit: float = 0.03) -> Chances:
    out = chances(found, 0, cell, [limit] * len(found.grid.rows))
    assert out is not None
    return out


def test_what_stays_transfers_and_what_moves_far_does_not() -> None:
    stays, moves = of(estimates_of([-6.1, -6.1, -6.1]), 3), of(estimates_of([-6.1, -5.1, -4.1]), 3)
    assert stays.transfers > 0.98
    assert stays.moved < 0.02
    assert (stays.over_I < 0.01).all()
    assert moves.transfers < 0.02
    assert moves.moved > 0.98
    assert moves.over_I[2] > 0.98
    assert moves.over_I[0] < 0.01


def test_a_move_at_the_limit_is_as_likely_as_not() -> None:
    found = [of(estimates_of([-6.5, -5.5], luck=luck), 3, limit=1.0) for luck in range(8)]
    assert 0.2 < np.mean([each.moved for each in found]) < 0.8
    assert [each.transfers for each in found] == pytest.approx([1 - each.moved for each in found], abs=1e-9)


def test_a_tie_at_the_base_decides_nothing() -> None:
    """The optimum of the base lies between two cells. One of them is over the limit at the other shape."""
    tied = estimates_of([-6.5, -5.5], noise=0.02, curvature=0.06)
    for cell in (2, 3):
        found = of(tied, cell)
        assert found.over_I[1] < 0.98
    # The negative twin: the regrets of the HP that is transferred are over the limit by themselves.
    assert (of(tied, 2).regret_BI[:, 1] > 0.03).mean() > 0.98
    # And a base that is sure of its best cell decides.
    assert of(estimates_of([-7.0, -5.0], noise=0.02, curvature=0.06), 2).over_I[1] > 0.98


@given(limit=st.floats(0.001, 0.5), cell=st.integers(0, 6), luck=st.integers(0, 10))
def test_the_laws_of_chances(limit: float, cell: int, luck: int) -> None:
    estimated = estimates_of([-6.3, -5.9, -5.4], luck=luck)
    found, looser = of(estimated, cell, limit), of(estimated, cell, 2 * limit)
    for each in (found, looser):
        assert 0 <= each.transfers <= 1
        assert 0 <= each.moved <= 1
        assert (each.over_I >= 0).all()
        assert (each.over_I <= 1).all()
        assert (each.regret_BI >= 0).all()
        assert each.transfers <= 1 - each.over_I.max() + 1e-9
        assert each.transfers <= 1 - each.moved + 1e-9
    assert looser.transfers >= found.transfers
    assert (looser.over_I <= found.over_I).all()
    assert looser.moved == found.moved  # which the limit does not enter


def test_a_shape_without_draws_or_without_a_limit_counts_for_nothing() -> None:
    found = estimates_of([-6.1, -6.1, -3.9])
    whole, without = of(found, 3), chances(found, 0, 3, [0.03, 0.03, None])
    assert without is not None
    assert whole.transfers < 0.02
    assert without.transfers > 0.98
    assert np.isnan(without.over_I[2])
    assert np.isnan(without.regret_BI[:, 2]).all()
    assert chances(found, 0, 3, [None, 0.03, 0.03]) is None
