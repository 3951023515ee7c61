"""Planted sweeps: losses whose optima are known, as a grid of losses and as the line of a sweep.

    loss = floor(scale) + curvature (log2 HP - optimum)^2 + luck of the seed + noise of the trial

The luck of a seed is a slope in log2 HP, which moves the optimum of the seed: in real sweeps neighboring learning rates
share a seed's luck.
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


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A kind of sweep. Lengths are octaves, losses nats. The defaults are the core scenario."""

    doublings: tuple[float, ...] = (0.0, 1.0, 2.0, 3.0, 4.0)  # log2 scale of each shape over the base's
    num_points: int = 7
    step: float = 1.0  # between two HPs
    seeds: int = 3
    drift: float = 0.0  # octaves per doubling, with a random sign
    curvature: float = 0.02
    noise: float = 0.003  # of one trial
    luck_slope: float = 0.0  # of a seed at a shape: nats per octave
    floor: float = 3.0  # the lowest loss at the base
    gain: float = 0.1  # by which it falls per doubling


@dataclass(frozen=True, kw_only=True, eq=False)
class PlantedSweep:
    """One draw. `loss_IKS` is by shape, HP and seed."""

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
                            "loss": loss,
                            "status": "finished",
                        }
                    )
        return pd.DataFrame(rows)


def plant(kind: Planted, seed: int) -> PlantedSweep:
    """Return a sweep. Equal kinds and seeds give equal losses.

    The middle of the grid and that of all optima are within half an octave of each other.
    """
    rng = np.random.default_rng(seed)
    x_K = (np.arange(float(kind.num_points)) - kind.num_points // 2) * kind.step - 6.0
    doublings_I = np.array(kind.doublings)
    drift = kind.drift * float(rng.choice((-1.0, 1.0)))
    optimum_I = float(x_K.mean()) + rng.uniform(-0.5, 0.5) + drift * (doublings_I - doublings_I.mean())
    u_IK = x_K - optimum_I[:, None]
    mean_IK = kind.floor - kind.gain * doublings_I[:, None] + kind.curvature * u_IK**2
    noise_IKS = kind.noise * rng.standard_normal((*u_IK.shape, kind.seeds))
    luck_IKS = kind.luck_slope * rng.standard_normal((len(u_IK), 1, kind.seeds)) * u_IK[:, :, None]
    loss_IKS = mean_IK[:, :, None] + luck_IKS + noise_IKS
    return PlantedSweep(kind=kind, drift=drift, x_K=x_K, optimum_I=optimum_I, loss_IKS=loss_IKS)


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
