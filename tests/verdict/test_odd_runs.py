"""Odd runs: the majority of seeds wins in either direction, two that disagree leave a doubt, and dead runs diverge."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from planted_parabolas import X, all_of, parabola

from hpxfer.verdict.loss_grid import Floats
from hpxfer.verdict.odd_runs import odd_runs


def apart(loss_IKS: Floats) -> list[tuple[int, int, int]]:
    """Return the runs that are left out, by shape, HP and seed."""
    return [(i, k, s) for i, found in enumerate(all_of(loss_IKS)) for k, s in np.argwhere(found.apart_KS).tolist()]


def doubtful(loss_IKS: Floats) -> list[tuple[int, int]]:
    """Return the cells in doubt, by shape and HP."""
    return [(i, k) for i, found in enumerate(all_of(loss_IKS)) for k in np.flatnonzero(found.doubt_K).tolist()]


@pytest.mark.parametrize("nats", [-2.0, -0.3, 0.3, 2.0, 1e9])
@pytest.mark.parametrize("k", [0, 3, 6])
@pytest.mark.parametrize("seeds", [3, 4, 6])
def test_the_majority_of_seeds_wins_in_either_direction(nats: float, k: int, seeds: int) -> None:
    loss = parabola(seeds=seeds)
    loss[1, k, 2] += nats
    assert apart(loss) == [(1, k, 2)]
    assert doubtful(loss) == []
    (run,) = odd_runs(all_of(loss)[1])
    assert (run.why, run.shape, run.value, run.seed) == ("apart", "width 2", 2.0 ** X[k], 2)
    assert run.away_nats == pytest.approx(nats, abs=0.03)


@pytest.mark.parametrize("nats", [-0.3, 0.3])
def test_of_two_seeds_that_disagree_none_is_left_out_and_their_mean_is_in_doubt(nats: float) -> None:
    loss = parabola(seeds=2)
    loss[1, 3, 1] += nats
    assert (apart(loss), doubtful(loss)) == ([], [(1, 3)])
    found = all_of(loss)[1]
    assert math.sqrt(found.doubt_K[3]) == pytest.approx(0.15, abs=0.02)
    assert found.lowest == 2  # 2^-7: the lowest of those whose seeds agree
    assert [run.why for run in odd_runs(found)] == ["disagrees"] * 2


@pytest.mark.parametrize("away", [(0.3, 0.0, -0.3), (0.3, 0.3, 0.0, 0.0), (0.3, 0.3, 0.0)])
def test_seeds_without_a_majority_or_with_one_above_every_basin_are_in_doubt(away: tuple[float, ...]) -> None:
    loss = parabola(seeds=len(away))
    loss[1, 3] += away
    assert (apart(loss), doubtful(loss)) == ([], [(1, 3)])


@pytest.mark.slow
def test_noise_alone_makes_no_run_odd() -> None:
    """Of 1,400 cells each."""
    lucks = range(100)
    assert sum(len(apart(parabola(luck=luck, shapes=2))) for luck in lucks) <= 1
    assert sum(len(doubtful(parabola(luck=luck, shapes=2))) for luck in lucks) <= 2
    assert sum(len(doubtful(parabola(luck=luck, shapes=2, seeds=2))) for luck in lucks) <= 14


@pytest.mark.parametrize("noisy", [0, 2])
def test_no_good_run_of_a_noisy_shape_is_odd(noisy: int) -> None:
    found = 0
    for luck in range(40):
        loss = parabola(0.003, luck=luck)
        loss[noisy] = parabola(0.045, luck=100 + luck)[noisy]
        found += len(apart(loss)) + len(doubtful(loss))
    assert found <= 4  # of 2,520


def test_odd_runs_in_a_tenth_of_the_trials_are_seen() -> None:
    rng = np.random.default_rng(0)
    missed, false = 0, 0
    for luck in range(20):
        loss = parabola(luck=luck, seeds=5)
        hit = rng.uniform(size=loss.shape) < 0.1
        one = hit.sum(axis=2, keepdims=True) == 1
        left_out = np.array([found.apart_KS for found in all_of(loss + 0.3 * hit)])
        missed += int((hit & one & ~left_out).sum())
        false += int((left_out & ~hit & (hit.sum(axis=2, keepdims=True) <= 1)).sum())
    assert missed <= 3
    assert false == 0


def test_seeds_far_up_a_wall_differ_and_are_in_doubt() -> None:
    loss = parabola()
    loss[:, 6] = [3.2, 3.3, 3.28]
    assert apart(loss) == []
    assert doubtful(loss) == [(0, 6), (1, 6), (2, 6)]


@given(levels=st.lists(st.floats(-2, 2), min_size=3, max_size=3), luck=st.integers(0, 50))
@settings(deadline=None, max_examples=examples(30))
def test_the_level_of_a_seed_makes_no_run_odd(levels: list[float], luck: int) -> None:
    loss = parabola(luck=luck)
    loss[0, 2, 1] -= 0.4
    assert apart(loss + np.array(levels)) == apart(loss)


def dead(loss_IKS: Floats, first: int, level: float, scatter: float) -> Floats:
    """Return losses that end about a level from one HP on."""
    out = loss_IKS.copy()
    rng = np.random.default_rng(5)
    out[:, first:] = level + scatter * rng.standard_normal(out[:, first:].shape)
    return out


@pytest.mark.parametrize(("first", "level", "scatter"), [(6, 7.2, 0.1), (5, 7.2, 0.1), (5, 7.2, 0.003), (4, 4.5, 0.3)])
@pytest.mark.parametrize("seeds", [2, 3])
def test_dead_runs_count_as_diverged(first: int, level: float, scatter: float, seeds: int) -> None:
    given_IKS = dead(parabola(seeds=seeds), first, level, scatter)
    for found in all_of(given_IKS):
        assert found.diverges_K.tolist() == [k >= first for k in range(X.size)]
        assert found.dead_KS[first:].all()
        assert {run.why for run in odd_runs(found)} == {"dead"}
    below = given_IKS[:, ::-1]
    assert all(found.dead_KS[: X.size - first].all() for found in all_of(below))


def test_one_seed_is_dead_where_losses_stay_far_above() -> None:
    flat = dead(parabola(seeds=1), 4, 7.2, 0.05)
    assert [found.dead_KS.sum() for found in all_of(flat)] == [3, 3, 3]


def test_seeds_that_died_beside_a_dead_hp_count_as_diverged() -> None:
    loss = dead(parabola(seeds=3), 6, 7.2, 0.1)
    loss[1, 5, 0] = 7.1
    found = all_of(loss)[1]
    assert np.argwhere(found.dead_KS).tolist() == [[5, 0], [6, 0], [6, 1], [6, 2]]
    assert not found.apart_KS.any()


def test_what_rises_as_a_basin_does_is_not_dead() -> None:
    steep = parabola(curvature=0.3, seeds=3)
    wall = parabola(seeds=3)
    wall[:, 6] += 1.0
    spike = parabola(seeds=3)
    spike[1, 6, 0] += 4.0
    for loss in (steep, wall, spike, parabola(seeds=1, curvature=0.3)):
        assert not any(found.dead_KS.any() for found in all_of(loss))
