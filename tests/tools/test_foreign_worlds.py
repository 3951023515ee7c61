"""The worlds: equal seeds give equal sweeps, and every world holds what its name says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from foreign_worlds import Noise, World, values
from loss_arrays import losses
from world_basins import Parabola, Plateau, Quartic, RandomExponential, Saturating, SlowLeft, TwoExponential
from world_list import SIX, TODAY, WORLDS, line, random_worlds

MESSY = World(
    name="messy",
    basin=RandomExponential(),
    curvature_spread=0.3,
    scatter=0.1,
    noise=Noise(growth=0.5, neighbors=0.5, spikes=0.1, luck=0.02, luck_slope=0.003),
    cliff=1.5,
    cliff_spread=1.0,
    missing=0.1,
)
EXACT = Noise(sd=0.0)


def test_equal_seeds_give_equal_sweeps_and_other_draws_others() -> None:
    one, same, other = MESSY.draw(3), MESSY.draw(3), MESSY.draw(3, draw=1)
    assert np.array_equal(one.loss_IKS, same.loss_IKS, equal_nan=True)
    assert not np.array_equal(one.loss_IKS, other.loss_IKS, equal_nan=True)
    assert not np.array_equal(one.loss_IKS, replace(MESSY, name="other").draw(3).loss_IKS, equal_nan=True)


@pytest.mark.parametrize("world", [*WORLDS, *random_worlds(30, 5)], ids=lambda world: world.name)
def test_every_world_is_finite_where_nothing_diverges_or_is_missing(world: World) -> None:
    sweep = world.draw(0)
    u_IK, loss_IKS = sweep.curves.octaves(sweep.x_K), sweep.loss_IKS
    assert loss_IKS.shape == (world.num_shapes, len(world.x), world.seeds)
    assert np.array_equal(np.isinf(sweep.curves(sweep.x_K)), u_IK > world.cliff - world.cliff_spread / 2)
    known_IKS = ~np.isnan(loss_IKS)
    over, under = u_IK > world.cliff, u_IK <= world.cliff - world.cliff_spread
    assert np.isinf(world.dead_nats) == np.isinf(loss_IKS[over][known_IKS[over]]).all() or not over.any()
    assert np.isfinite(loss_IKS[under][known_IKS[under]]).all()
    assert known_IKS.all() == (not world.missing and not world.missing_top)
    assert np.array_equal(losses(sweep.grid()), loss_IKS, equal_nan=True)
    assert [row.is_base for row in sweep.grid().rows] == [True, *[False] * (world.num_shapes - 1)]


def test_names_are_unique_and_the_groups_are_there() -> None:
    assert len({world.name for world in WORLDS}) == len(WORLDS)
    assert len([world for world in WORLDS if world.group == TODAY]) == 30
    usual = [world for world in WORLDS if world.group == SIX]
    assert {(world.seeds, world.x) for world in usual} == {(3, (-9.0, -8.0, -7.0, -6.0, -5.0, -4.0))}
    assert random_worlds(5, 1) == random_worlds(5, 1)
    assert random_worlds(5, 1) != random_worlds(5, 2)


@pytest.mark.parametrize(
    "basin",
    [
        Parabola(),
        TwoExponential((3.0,), (1.0,)),
        TwoExponential((0.5, 4.0), (4.0, 0.5)),
        RandomExponential(),
        Saturating(2.5),
        SlowLeft(),
    ],
)
def test_basins_bend_as_they_say(basin: Parabola) -> None:
    """The negative twin: a plateau and a quartic bend less at the optimum than their curvature."""
    u, c = np.array([[-0.01, 0.0, 0.01]] * 2), np.full((2, 1), 0.02)

    def bend(kind: Parabola) -> np.ndarray:
        loss = kind.draw(np.random.default_rng(0), 2)(u, c)
        assert loss[:, 1] == pytest.approx(np.zeros(2), abs=1e-12)
        return (loss[:, 0] + loss[:, 2]) / (2 * 0.01**2)

    assert bend(basin) == pytest.approx(np.full(2, 0.02), rel=1e-2)
    assert bend(Plateau()) == pytest.approx(np.full(2, 0.002), rel=1e-2)
    assert (bend(Quartic()) < 1e-4).all()


def test_sides_and_walls() -> None:
    u, c = np.array([[-2.0, 2.0]]), np.array([[0.02]])
    rng = np.random.default_rng(0)
    left, right = TwoExponential((3.0,), (1.0,)).draw(rng, 1)(u, c)[0]
    assert left > 2 * right
    left, right = SlowLeft().draw(rng, 1)(u, c)[0]
    assert right > 2 * left
    assert Saturating(0.05).draw(rng, 1)(np.array([[8.0]]), c)[0, 0] == pytest.approx(0.05)
    soft = World(name="soft", soft_cliff=0.6, noise=EXACT, base_spread=0.0).draw(0)
    below, above = soft.curves(soft.curves.planted_I[:1] + np.array([0.59, 1.6]))[0] - 3.0
    assert below == pytest.approx(0.02 * 0.59**2)
    assert above > 3.0


def test_offsets_move_the_optima_with_a_random_sign() -> None:
    worlds = [World(name="w", offsets=line(0.5), base_spread=0.0).draw(seed) for seed in range(20)]
    steps = {float(round(step, 9)) for world in worlds for step in np.diff(world.curves.planted_I)}
    assert steps == {-0.5, 0.5}
    fixed = World(name="w", offsets=(0.0, 1.0), either_sign=False, base_spread=0.0, centered=True).draw(1)
    assert fixed.curves.planted_I == pytest.approx([-6.7, -5.7])


def _scatter(noise: Noise, num: int = 300, **more: object) -> np.ndarray:
    world = World(name="noise", noise=noise, base_spread=0.0, x=values(7, middle=-6.2), **more)  # type: ignore[arg-type]
    return np.array([(sweep := world.draw(s)).loss_IKS - sweep.curves(sweep.x_K)[:, :, None] for s in range(num)])


@pytest.mark.parametrize("tail", [math.inf, 5.0])
def test_the_noise_has_its_size_and_grows_above_the_optimum_alone(tail: float) -> None:
    sd_K = _scatter(Noise(sd=0.01, growth=1.0, tail=tail)).std(axis=(0, 1, 3))
    assert sd_K == pytest.approx(0.01 * np.array([1, 1, 1, 1, 2, 4, 8]), rel=0.1)


def test_neighbors_spikes_and_luck() -> None:
    near = _scatter(Noise(sd=0.01, neighbors=0.8))
    assert np.corrcoef(near[:, :, 2].ravel(), near[:, :, 3].ravel())[0, 1] == pytest.approx(0.8, abs=0.05)
    assert near.std() == pytest.approx(0.01, rel=0.05)
    alone = _scatter(Noise(sd=0.01))
    assert abs(np.corrcoef(alone[:, :, 2].ravel(), alone[:, :, 3].ravel())[0, 1]) < 0.08
    spikes = _scatter(Noise(sd=0.0, spikes=0.1))
    assert set(np.unique(spikes.round(9))) == {0.0, 0.3}
    assert np.mean(spikes > 0) == pytest.approx(0.1, abs=0.01)
    luck = _scatter(Noise(sd=0.0, luck=0.02, luck_slope=0.01))
    assert np.ptp(luck, axis=1).max() < 1e-12
    assert np.abs(np.diff(luck, n=2, axis=2)).max() < 1e-12
    own = _scatter(Noise(sd=0.0, luck=0.02, luck_shared=False))
    assert np.ptp(own, axis=1).min() > 1e-6


def test_seeds_that_diverge_apart_diverge_without_noise_where_half_of_them_do() -> None:
    world = World(name="apart", cliff=1.5, cliff_spread=1.0, base_spread=0.0, base=-6.0, x=(-6.0, -5.2, -4.8))
    sweeps = [world.draw(seed) for seed in range(100)]
    assert np.isinf(sweeps[0].curves(sweeps[0].x_K))[0].tolist() == [False, False, True]
    shares = np.isinf(np.array([sweep.loss_IKS for sweep in sweeps])).mean(axis=(0, 1, 3))
    assert shares == pytest.approx([0.0, 0.3, 0.7], abs=0.05)


def test_one_run_is_wrong_or_two_have_each_other_s_labels() -> None:
    wrong = _scatter(Noise(sd=0.0, wrong_nats=(-0.3, -0.1)))
    assert ((wrong < -1e-9).sum(axis=(1, 2, 3)) == 1).all()
    assert wrong.min() >= -0.3 - 1e-9
    for seed in range(20):
        plain, swapped = (
            World(name="w", base_spread=0.0, noise=Noise(sd=0.0, swapped=swap)).draw(seed).loss_IKS
            for swap in (False, True)
        )
        assert (plain != swapped).sum() in (0, 2)  # none, where both HPs lie equally far from the optimum
        assert np.array_equal(np.sort(plain, axis=None), np.sort(swapped, axis=None))


def test_dead_runs_end_where_they_say_and_noise_grows_by_size() -> None:
    dead = World(name="d", cliff=1.0, dead_nats=7.2, dead_sd=0.1, base_spread=0.0).draw(0)
    over = np.isinf(dead.curves(dead.x_K))
    assert over.any()
    assert dead.loss_IKS[over] == pytest.approx(7.2, abs=0.5)
    sd_I = _scatter(Noise(sd=0.01, largest=8.0)).std(axis=(0, 2, 3))
    assert sd_I == pytest.approx([0.01, 0.02, 0.04, 0.08], rel=0.1)
    skewed = _scatter(Noise(sd=0.01, log_normal=True))
    assert skewed.std() == pytest.approx(0.01, rel=0.2)
    assert np.median(skewed) < 0


def test_missing_cells() -> None:
    assert (
        np.isnan(World(name="top", missing_top=2).draw(0).loss_IKS).any(axis=(0, 2)).tolist()
        == [False] * 5 + [True] * 2
    )
    share = np.mean([np.isnan(World(name="m", missing=0.3).draw(s).loss_IKS).mean() for s in range(50)])
    assert share == pytest.approx(0.3, abs=0.03)
