"""Planted sweeps: losses whose optima are known, as a grid of losses and as the line of a sweep.

    loss = floor(scale) + curvature (u^2 + asymmetry u^3) + luck of the seed + noise of the trial
    u    = log2 HP - optimum

The asymmetry stays constant beyond two octaves, so that no basin turns over. The luck of a seed is a level (its batches
and initial draws), which cancels in a difference of two HPs, and a slope in log2 HP, which moves the optimum of the
seed. Both are seen in real sweeps, where neighboring learning rates share a seed's luck.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpxfer.verdict.loss_grid import LossGrid, SeedLosses, ShapeLosses

Floats = NDArray[np.float64]
BEND_OCTAVES = 2.0  # the asymmetry is constant beyond


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A kind of sweep. Lengths are octaves, losses nats. The defaults are the core scenario."""

    doublings: tuple[float, ...] = (0.0, 1.0, 2.0, 3.0, 4.0)  # log2 scale of each shape over the base's
    num_points: int = 7
    step: float = 1.0  # between two HPs
    seeds: int = 3
    drift: float = 0.0  # octaves per doubling, with a random sign
    scatter: float = 0.0  # of the optima about the line, standard deviation
    curvature: float = 0.02
    curvature_spread: float = 0.0  # standard deviation of log curvature over shapes
    asymmetry: float = 0.0
    noise: float = 0.003  # of one trial
    tail: float = math.inf  # degrees of freedom of Student's t that the noise follows, scaled to its variance
    noise_slope: float = 0.0  # growth of log2 noise per octave above the optimum
    luck: float = 0.0  # of a seed at a shape: its level
    luck_slope: float = 0.0  # of a seed at a shape: nats per octave
    missing: float = 0.0  # chance that a trial has no result
    cliff: float = math.inf  # octaves above the optimum beyond which every trial diverges
    cliff_width: float = 0.0  # each seed diverges somewhere within so many octaves below the cliff
    blow_up: bool = False  # beyond the cliff losses are large and finite
    off_center: float = 0.0  # how far the middle of the optima lies above that of the grid, besides a random +-0.5
    floor: float = 3.0  # the lowest loss at the base
    gain: float = 0.1  # by which it falls per doubling


@dataclass(frozen=True, kw_only=True, eq=False)
class PlantedSweep:
    """One draw. `loss_IKS` (shape, HP, seed): NaN is missing, +inf diverged."""

    kind: Planted
    drift: float  # with its sign
    x_K: Floats
    optimum_I: Floats
    loss_IKS: Floats

    def grid(self, axis: str = "width", parameterization: str = "planted") -> LossGrid:
        """Return the grid that `loss_grids` makes of `frame`."""
        values = [2.0**x for x in self.x_K.tolist()]
        rows = tuple(
            row_of(axis, float(2.0**doublings), i == 0, parameterization, values, self.loss_IKS[i].tolist())
            for i, doublings in enumerate(self.kind.doublings)
        )
        return LossGrid(rows=rows)

    def frame(self, axis: str = "width", parameterization: str = "planted") -> pd.DataFrame:
        """Return the line of the sweep, as `Results.line` gives it."""
        rows = []
        for i, doublings in enumerate(self.kind.doublings):
            for k, x in enumerate(self.x_K.tolist()):
                for seed, loss in enumerate(self.loss_IKS[i, k].tolist()):
                    status = "missing" if math.isnan(loss) else "finished" if math.isfinite(loss) else "diverged"
                    rows.append(
                        {
                            "axis": axis,
                            "scale_name": axis,
                            "scale": 2.0**doublings,
                            "shape": f"{axis}{2.0**doublings:g}",
                            "is_base": i == 0,
                            "parameterization": parameterization,
                            "value": 2.0**x,
                            "seed": seed,
                            "loss": loss if status == "finished" else math.nan,
                            "status": status,
                        }
                    )
        return pd.DataFrame(rows)


def plant(kind: Planted, seed: int) -> PlantedSweep:
    """Return a sweep. Equal kinds and seeds give equal losses.

    The middle of the grid and that of all optima are within half an octave of each other, plus `off_center`.
    """
    rng = np.random.default_rng(seed)
    x_K = (np.arange(float(kind.num_points)) - kind.num_points // 2) * kind.step - 6.0
    doublings_I = np.array(kind.doublings)
    drift = kind.drift * float(rng.choice((-1.0, 1.0)))
    middle = float(x_K.mean()) + kind.off_center + rng.uniform(-0.5, 0.5)
    optimum_I = (
        middle + drift * (doublings_I - doublings_I.mean()) + kind.scatter * rng.standard_normal(len(doublings_I))
    )
    curvature_I1 = kind.curvature * np.exp(kind.curvature_spread * rng.standard_normal(len(doublings_I)))[:, None]
    u_IK = x_K - optimum_I[:, None]
    bend_IK = np.clip(u_IK, -BEND_OCTAVES, BEND_OCTAVES)
    mean_IK = kind.floor - kind.gain * doublings_I[:, None] + curvature_I1 * (u_IK**2 + kind.asymmetry * bend_IK**3)
    size = (len(doublings_I), kind.num_points, kind.seeds)
    noise_IKS = _noise(rng, kind.tail, size) * (kind.noise * 2.0 ** (kind.noise_slope * u_IK))[:, :, None]
    luck_IKS = kind.luck * rng.standard_normal((size[0], 1, size[2]))
    luck_IKS = luck_IKS + kind.luck_slope * rng.standard_normal((size[0], 1, size[2])) * u_IK[:, :, None]
    loss_IKS = mean_IK[:, :, None] + luck_IKS + noise_IKS
    cliff_I1S = kind.cliff - kind.cliff_width * rng.uniform(size=(size[0], 1, size[2]))
    over_IKS = u_IK[:, :, None] > cliff_I1S
    loss_IKS = np.where(over_IKS, loss_IKS + 2.0 + rng.exponential(2.0, size) if kind.blow_up else np.inf, loss_IKS)
    loss_IKS = np.where(rng.uniform(size=size) < kind.missing, np.nan, loss_IKS)
    return PlantedSweep(kind=kind, drift=drift, x_K=x_K, optimum_I=optimum_I, loss_IKS=loss_IKS)


def _noise(rng: np.random.Generator, tail: float, size: tuple[int, ...]) -> Floats:
    """Return noise of unit variance."""
    if math.isinf(tail):
        return rng.standard_normal(size)
    return np.asarray(rng.standard_t(tail, size) * math.sqrt((tail - 2) / tail))


def row_of(
    axis: str,
    scale: float,
    is_base: bool,
    parameterization: str,
    values: Sequence[float],
    losses: Sequence[Sequence[float]],
) -> ShapeLosses:
    """Return the losses of one shape, a list of its seeds' for each HP value."""
    return ShapeLosses(
        axis=axis,
        scale_name=axis,
        scale=scale,
        shape=f"{axis}{scale:g}",
        is_base=is_base,
        parameterization=parameterization,
        cells=tuple(cell_of(value, of_seeds) for value, of_seeds in zip(values, losses, strict=True)),
    )


def cell_of(value: float, losses: Sequence[float]) -> SeedLosses:
    """Return the cell of an HP value from the losses of its seeds, NaN without a result."""
    known = {seed: loss for seed, loss in enumerate(losses) if not math.isnan(loss)}
    num_missing = len(losses) - len(known)
    return SeedLosses(value=value, seeds=tuple(known), losses=tuple(known.values()), num_missing=num_missing)
