"""The noise of seeds: pooled over shapes, without the level that a seed adds to all its losses, and with its slope."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from planted_lines import grid_of
from planted_parabolas import all_of, parabola
from scipy import stats

from hpxfer.verdict.loss_grid import Floats
from hpxfer.verdict.measured import Measured
from hpxfer.verdict.noise import LEAST, SeedNoise, seed_noise
from hpxfer.verdict.odd_runs import measure

RISES = 0.02 * (np.arange(7.0) - 3.1) ** 2


def losses(
    noise: float, *, shapes: int = 4, seeds: int = 3, level: float = 0.0, slope: float = 0.0, luck: int = 0
) -> Floats:
    """Return losses of shapes, (I, K, S), of a parabola with the noise of seeds."""
    rng = np.random.default_rng(luck)
    u = np.arange(7.0)[:, None] - 3
    found = 3 + RISES[:, None] + noise * rng.standard_normal((shapes, 7, seeds))
    found = found + level * rng.standard_normal((shapes, 1, seeds))
    return np.asarray(found + slope * rng.standard_normal((shapes, 1, seeds)) * u)


def noise_of(loss_IKS: Floats) -> SeedNoise | None:
    return rows_of(measure(grid_of(*loss_IKS.tolist()).rows))[0]


def rows_of(rows: Sequence[Measured]) -> tuple[SeedNoise | None, tuple[Measured, ...]]:
    log = [math.log2(measured.row.scale) for measured in rows]
    return seed_noise(
        rows, {"width": {i: (x - min(log)) / ((max(log) - min(log)) or 1) - 0.5 for i, x in enumerate(log)}}
    )


def known(loss_IKS: Floats) -> SeedNoise:
    noise = noise_of(loss_IKS)
    assert noise is not None
    return noise


def median_sd(found: Sequence[SeedNoise]) -> float:
    return float(np.median([noise.sd for noise in found]))


@pytest.mark.slow
def test_the_noise_is_the_planted_one_whatever_the_levels_of_the_seeds() -> None:
    calm, lucky = ([known(losses(0.01, level=level, luck=i)) for i in range(40)] for level in (0.0, 0.5))
    assert median_sd(calm) == pytest.approx(0.01, rel=0.1)
    assert [noise.sd for noise in lucky] == pytest.approx([noise.sd for noise in calm], rel=0.05)


def test_a_slope_of_a_seed_is_told_from_the_noise_of_its_trials() -> None:
    """Half of the published seeds' luck is a slope in log2 LR."""
    found = [known(losses(0.005, shapes=6, slope=0.015, luck=i)) for i in range(30)]
    slopes = [math.sqrt(noise.slope_variance) for noise in found]
    assert np.median(slopes) == pytest.approx(0.015, rel=0.3)
    assert median_sd(found) == pytest.approx(0.005, rel=0.3)
    without = [known(losses(0.005, shapes=6, luck=i)) for i in range(30)]
    assert np.median([noise.slope_variance for noise in without]) < 0.05 * np.median(slopes) ** 2


@pytest.mark.parametrize("octaves", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_error_of_a_difference_is_that_of_a_simulation(seeds: int, octaves: float) -> None:
    rng = np.random.default_rng(0)
    noise = SeedNoise(variance=0.01**2, slope_variance=0.004**2, freedom=10.0, trial_freedom=10.0)
    slope = 0.004 * rng.standard_normal((40_000, seeds))
    trials = 0.01 * rng.standard_normal((2, 40_000, seeds))
    difference = (trials[0] - trials[1] + slope * octaves).mean(axis=1)
    measured = all_of(parabola(shapes=1, seeds=seeds))[0]
    assert noise.cells_se(measured, 1, 1 + int(octaves)) == pytest.approx(float(difference.std()), rel=0.02)


def test_a_cell_compared_with_itself_has_the_error_of_a_comparison() -> None:
    noise = SeedNoise(variance=0.01**2, slope_variance=1.0, freedom=10.0, trial_freedom=10.0)
    assert noise.cells_se(all_of(parabola(shapes=1, seeds=4))[0], 3, 3) == pytest.approx(0.01 * math.sqrt(0.5))


def test_one_seed_has_no_noise() -> None:
    assert noise_of(losses(0.01, seeds=1)) is None
    assert seed_noise([], {}) == (None, ())
    assert noise_of(np.full((2, 7, 3), np.inf)) is None
    lone = losses(0.01)
    lone[:, :, 1:] = np.nan
    assert noise_of(lone) is None


def test_seeds_that_agree_to_the_last_digit_have_the_least_noise() -> None:
    noise = known(losses(0.0))
    assert noise.sd == pytest.approx(LEAST, rel=1e-6)


def test_a_diverged_seed_and_a_spike_add_no_noise() -> None:
    whole = losses(0.01)
    for bad in (math.inf, 3.9, 1e9):
        changed = whole.copy()
        changed[1, 3, 0] = bad
        assert known(changed).sd == pytest.approx(known(whole).sd, rel=0.25)
    assert float(np.nanstd(np.where(changed > 10, np.nan, changed), axis=2).mean()) > 0  # the seeds do differ


def test_degrees_of_freedom_count_what_levels_and_means_leave() -> None:
    """Of the 15 losses near an optimum, means and levels take 5 + 2. Slopes have at most a degree per later seed."""
    freedom = [known(losses(0.01, shapes=4, luck=i)).freedom for i in range(20)]
    assert min(freedom) > 4 * 2
    assert max(freedom) <= 4 * (15 - 7) + 4 * 2  # Satterthwaite's bound: both together
    slopes = known(losses(1e-5, shapes=4, slope=0.02))
    assert 2 <= slopes.freedom <= 4 * 2 * 1.05  # the slopes move the optimum, not the noise of the many trials


@pytest.mark.slow
def test_an_interval_by_its_freedom_covers() -> None:
    """Student's t of the difference of two cell means, as a simulation has it. The negative twin is a normal law."""
    covered = {"t": 0, "normal": 0}
    for i in range(200):
        found = losses(0.01, shapes=1, seeds=2, luck=i)
        noise = known(found)
        difference = float(found[0, 3].mean() - found[0, 4].mean() - RISES[3] + RISES[4])
        se = noise.cells_se(measure(grid_of(*found.tolist()).rows)[0], 3, 4)
        covered["t"] += abs(difference) <= se * stats.t.ppf(0.975, noise.freedom)
        covered["normal"] += abs(difference) <= se * stats.norm.ppf(0.975)
    assert covered["t"] >= 0.92 * 200
    assert covered["normal"] < 0.92 * 200


@given(constant=st.floats(-5, 5), power=st.integers(-3, 3))
@settings(deadline=None, max_examples=examples(20))
def test_a_shift_changes_no_noise_and_a_scale_scales_it(constant: float, power: int) -> None:
    found = losses(0.01)
    whole, shifted, scaled = known(found), known(found + constant), known(found * 2.0**power)
    assert shifted.sd == pytest.approx(whole.sd, rel=1e-6)
    assert shifted.slope_variance == pytest.approx(whole.slope_variance, rel=1e-6)
    assert scaled.sd == pytest.approx(whole.sd * 2.0**power, rel=1e-9)
    assert scaled.freedom == pytest.approx(whole.freedom, rel=1e-9)


def test_the_order_of_shapes_does_not_matter() -> None:
    rows = measure(grid_of(*losses(0.01).tolist()).rows)
    (one, forward), (other, backward) = rows_of(rows), rows_of(rows[::-1])
    assert one is not None
    assert other is not None
    assert one.sd == pytest.approx(other.sd, rel=1e-9)
    assert [m.noise_ratio for m in forward] == pytest.approx([m.noise_ratio for m in backward][::-1], rel=1e-9)


@pytest.mark.first
@pytest.mark.parametrize("factor", [1 / 15, 0.2, 5.0, 15.0])
@pytest.mark.parametrize("seeds", [2, 3])
def test_noise_follows_the_size_of_shapes(factor: float, seeds: int) -> None:
    """Scales are 1 to 4. The negative twin: noise that does not change with size has a ratio near 1."""
    place = np.log(np.arange(1.0, 5.0)) / math.log(4)
    found, flat = [], []
    for luck in range(20):
        loss = losses(0.01, seeds=seeds, luck=luck)
        away = loss - 3 - RISES[:, None]
        grown = 3 + RISES[:, None] + away * (factor**place)[:, None, None]
        for to, planted in ((found, grown), (flat, loss)):
            noise, rows = rows_of(measure(grid_of(*planted.tolist()).rows))
            assert noise is not None
            to.append([noise.at(m).sd for m in rows])
    assert np.median(found, axis=0) == pytest.approx(0.01 * factor**place, rel=0.35)
    assert np.median(flat, axis=0) == pytest.approx([0.01] * 4, rel=0.25)


def test_cells_far_up_a_wall_and_in_doubt_add_no_noise() -> None:
    """Noise is that of the neighborhood of the optimum."""
    whole = losses(0.01, shapes=3)
    for k, level in ((5, 0.4), (6, 3.0)):
        rough = whole.copy()
        rough[:, k:] += level + 0.3 * np.random.default_rng(1).standard_normal(rough[:, k:].shape)
        assert known(rough).sd == pytest.approx(known(whole).sd, rel=0.4)
