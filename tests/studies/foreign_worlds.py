"""Worlds: kinds of sweeps whose truth is known, made without any part of the estimator.

    loss = floor(scale) + basin(log2 HP - optimum of the shape) + soft cliff + luck of the seed + noise of the trial

A world gives the noise-free loss of each shape as a plain function of log2 HP. The truth is read off that function by
numbers (`world_truth`), so a basin needs no formula for its lowest point. Array letters: I shapes by scale, K HP values
ascending, S seeds, N points of a curve.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from planted_sweeps import row_of
from world_basins import BasinKind, Floats, Parabola

from hpxfer.verdict.loss_grid import LossGrid

WALL_NATS = 4.0  # the height of a soft cliff; it rises by 3 nats in the first octave


def values(num: int, step: float = 1.0, middle: float = -6.0) -> tuple[float, ...]:
    """Return log2 of `num` HP values that are `step` octaves apart, around `middle`."""
    return tuple(middle + step * (k - (num - 1) / 2) for k in range(num))


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How losses scatter about the noise-free ones. Lengths are octaves, losses nats."""

    sd: float = 0.005  # of one trial at the optimum
    growth: float = 0.0  # of log2 sd per octave above the optimum
    tail: float = math.inf  # degrees of freedom of Student's t, scaled to its variance
    neighbors: float = 0.0  # correlation of a seed's noise one octave apart (autoregressive over the HP)
    spikes: float = 0.0  # chance that a trial ends `spike_nats` higher
    spike_nats: float = 0.3
    luck: float = 0.0  # of a seed: the level of its losses, standard deviation
    luck_slope: float = 0.0  # of a seed: nats per octave
    luck_shared: bool = True  # whether a seed has the same luck at every shape
    largest: float = 1.0  # factor of sd at the largest shape over the smallest; it grows evenly per doubling
    log_normal: bool = False  # skewed upward, scaled to its variance
    wrong_nats: tuple[float, float] | None = None  # one trial ends so much higher or lower, uniform between these
    swapped: bool = False  # two trials, which differ in shape or HP, have each other's labels


PARABOLA, NORMAL = Parabola(), Noise()


@dataclass(frozen=True, kw_only=True)
class World:
    """A kind of sweep. Lengths are octaves, losses nats. A tuple with one entry holds for all shapes."""

    name: str
    group: str = ""
    basin: BasinKind = PARABOLA
    curvature: tuple[float, ...] = (0.02,)  # basin = curvature * octaves^2 close to the optimum
    curvature_spread: float = 0.0  # standard deviation of log curvature over shapes
    base: float = -6.2  # log2 of the optimum at the base
    base_spread: float = 0.5  # the base's optimum is uniform within this
    offsets: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)  # of each shape's optimum from the base's
    either_sign: bool = True  # whether the offsets have a random sign
    centered: bool = False  # whether `base` is the mean of all optima
    scatter: float = 0.0  # of each optimum, standard deviation
    x: tuple[float, ...] = values(7)  # log2 of the HP values
    seeds: int = 3
    noise: Noise = NORMAL
    cliff: float = math.inf  # so far above its optimum a shape starts to diverge
    cliff_spread: float = 0.0  # a seed diverges up to so many octaves earlier; without noise, half as many
    soft_cliff: float = math.inf  # so far above its optimum a finite wall starts
    dead_nats: float = math.inf  # where training diverges, it ends about here with a scatter of `dead_sd`
    dead_sd: float = 0.1
    missing: float = 0.0  # chance that a trial has no result
    missing_top: int = 0  # so many of the largest HP values have no result at any shape
    floor: float = 3.0  # the lowest loss at the base
    gain: float = 0.1  # by which it falls per doubling

    @property
    def num_shapes(self) -> int:
        return len(self.offsets)

    def draw(self, seed: int, draw: int = 0) -> WorldSweep:
        """Return a sweep. Equal worlds, seeds and draws give equal losses; other draws are other sweeps."""
        rng = np.random.default_rng([draw, zlib.crc32(self.name.encode()), seed])
        curves = _draw_curves(self, rng)
        return WorldSweep(world=self, curves=curves, loss_IKS=draw_losses(self, curves, rng))


@dataclass(frozen=True, kw_only=True, eq=False)
class Curves:
    """The noise-free losses of one sweep, a function of log2 HP per shape."""

    basin: Callable[[Floats, Floats], Floats]
    curvature_I: Floats
    planted_I: Floats  # where each basin has its zero
    floor_I: Floats
    cliff: float
    soft_cliff: float

    def __call__(self, x_N: Floats) -> Floats:
        """Return the noise-free losses (I, N) in nats, +inf where training diverges."""
        return np.where(self.octaves(x_N) > self.cliff, np.inf, self.without_cliff(x_N))

    def without_cliff(self, x_N: Floats) -> Floats:
        """Return the noise-free losses (I, N) if nothing diverged."""
        u_IN = self.octaves(x_N)
        wall_IN = WALL_NATS * np.tanh(np.maximum(u_IN - self.soft_cliff, 0.0))
        return np.asarray(self.floor_I[:, None] + self.basin(u_IN, self.curvature_I[:, None]) + wall_IN)

    def octaves(self, x_N: Floats) -> Floats:
        """Return how far log2 HPs lie above the optimum of each shape (I, N)."""
        return np.asarray(np.asarray(x_N) - self.planted_I[:, None])


@dataclass(frozen=True, kw_only=True, eq=False)
class WorldSweep:
    """One draw. `loss_IKS` (shape, HP, seed): NaN is missing, +inf diverged. The first shape is the base."""

    world: World
    curves: Curves
    loss_IKS: Floats

    @property
    def x_K(self) -> Floats:
        return np.array(self.world.x)

    def grid(self, axis: str = "width", parameterization: str = "world") -> LossGrid:
        """Return the losses as the verdict reads them."""
        values = [2.0**x for x in self.world.x]
        rows = (
            row_of(axis, 32.0 * 2.0**i, i == 0, parameterization, values, loss_KS.tolist())
            for i, loss_KS in enumerate(self.loss_IKS)
        )
        return LossGrid(rows=tuple(rows))


def _draw_curves(world: World, rng: np.random.Generator) -> Curves:
    num = world.num_shapes
    sign = float(rng.choice((-1.0, 1.0))) if world.either_sign else 1.0
    offset_I = sign * np.array(world.offsets) + world.scatter * rng.standard_normal(num)
    if world.centered:
        offset_I = offset_I - offset_I.mean()
    base = world.base + world.base_spread * rng.uniform(-1.0, 1.0)
    spread_I = np.exp(world.curvature_spread * rng.standard_normal(num))
    return Curves(
        basin=world.basin.draw(rng, num),
        curvature_I=np.broadcast_to(np.array(world.curvature), num) * spread_I,
        planted_I=base + offset_I,
        floor_I=world.floor - world.gain * np.arange(float(num)),
        cliff=world.cliff - world.cliff_spread / 2,
        soft_cliff=world.soft_cliff,
    )


def draw_losses(world: World, curves: Curves, rng: np.random.Generator) -> Floats:
    """Return losses (I, K, S) of a sweep with these noise-free curves: NaN is missing, +inf diverged."""
    x_K, noise = np.array(world.x), world.noise
    size = (world.num_shapes, len(x_K), world.seeds)
    u_IK1 = curves.octaves(x_K)[:, :, None]
    loss_IKS = curves.without_cliff(x_K)[:, :, None] + _unit_noise(noise, x_K, size, rng) * (
        noise.sd * 2.0 ** (noise.growth * np.maximum(u_IK1, 0.0)) * _of_shapes(noise, size[0])[:, None, None]
    )
    luck = (1 if noise.luck_shared else size[0], 1, size[2])
    loss_IKS = loss_IKS + noise.luck * rng.standard_normal(luck)
    loss_IKS = loss_IKS + noise.luck_slope * rng.standard_normal(luck) * (x_K - x_K.mean())[:, None]
    loss_IKS = loss_IKS + noise.spike_nats * (rng.uniform(size=size) < noise.spikes)
    early_I1S = world.cliff_spread * rng.uniform(size=(size[0], 1, size[2]))
    dead_IKS = world.dead_nats + (world.dead_sd * rng.standard_normal(size) if world.dead_nats < math.inf else 0.0)
    loss_IKS = np.where(u_IK1 > world.cliff - early_I1S, dead_IKS, loss_IKS)
    if noise.wrong_nats is not None:
        loss_IKS[tuple(rng.integers(size))] += rng.uniform(*noise.wrong_nats)
    if noise.swapped:
        _swap(loss_IKS, rng)
    gone_IKS = rng.uniform(size=size) < world.missing
    gone_IKS[:, size[1] - world.missing_top :] = True
    return np.where(gone_IKS, np.nan, loss_IKS)


def _of_shapes(noise: Noise, num: int) -> Floats:
    """Return the factor of the noise at each shape."""
    return np.asarray(noise.largest ** (np.arange(float(num)) / max(num - 1, 1)))


def _swap(loss_IKS: Floats, rng: np.random.Generator) -> None:
    """Exchange the losses of two trials at random that differ in shape or HP."""
    one, other = rng.choice(loss_IKS.shape[0] * loss_IKS.shape[1], size=2, replace=False)
    flat_PS, seeds = loss_IKS.reshape(-1, loss_IKS.shape[2]), rng.integers(loss_IKS.shape[2], size=2)
    flat_PS[one, seeds[0]], flat_PS[other, seeds[1]] = flat_PS[other, seeds[1]], flat_PS[one, seeds[0]]


def _unit_noise(noise: Noise, x_K: Floats, size: tuple[int, int, int], rng: np.random.Generator) -> Floats:
    """Return noise of unit variance (I, K, S), correlated over neighboring HP values if the world says so."""
    if math.isfinite(noise.tail):
        return np.asarray(rng.standard_t(noise.tail, size) * math.sqrt((noise.tail - 2) / noise.tail))
    fresh_IKS = rng.standard_normal(size)
    if noise.log_normal:
        return np.asarray((np.exp(fresh_IKS) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e))
    if not noise.neighbors:
        return fresh_IKS
    distance_KK = np.abs(x_K[:, None] - x_K)
    root_KK = np.linalg.cholesky(noise.neighbors**distance_KK)
    return np.einsum("kl,ils->iks", root_KK, fresh_IKS)
