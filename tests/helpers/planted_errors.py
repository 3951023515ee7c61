"""Errors of planted classifiers: counts of wrong held-out samples from known curves. No code is that of the verdict.

The error of a model is a curve in log2 of its HP, between a best error and that of guessing. A held-out sample is wrong
if a threshold lies below a normal number of its own, which has three parts with given shares of the variance:

- one of the sample alone: it is hard for every model,
- one of the sample and the cell: it is hard at this HP and shape, whatever the seed is,
- one of the sample, the cell and the seed.

So the error of a trial has a binomial distribution, seeds of a cell share what they share in a real sweep, and `common`
= 1 with `of_cell` = 1 are sets of samples that each cell draws anew and that all of its seeds share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist

import numpy as np
import pandas as pd

Curve = Callable[[float], float]  # octaves from the optimum -> share of the way from the best error to guessing

GRID = tuple(float(exponent) for exponent in range(-10, -1))
SCALES = (32.0, 64.0, 128.0)


def bowl(width: float = 2.5, skew: float = 0.0) -> Curve:
    """Return a basin that reaches halfway to guessing `width` octaves away, and is flat at guessing further out."""

    def rise(octaves: float) -> float:
        away = octaves / (width * math.exp(-skew * math.tanh(octaves)))
        return 1 - math.exp(-math.log(2) * away**2)

    return rise


def trough(half: float = 2.0, edge: float = 1.0) -> Curve:
    """Return a basin with a flat bottom of twice `half` octaves, beyond which it rises to guessing within `edge`."""
    return lambda octaves: min(max((abs(octaves) - half) / edge, 0.0), 1.0)


def planted_errors(
    curve_of: Mapping[str, Curve],
    *,
    drift: Mapping[str, float],
    samples: int,
    luck: int,
    best: float = 0.2,
    guess: float = 0.9,
    seeds: int = 3,
    scales: Sequence[float] = SCALES,
    grid: Sequence[float] = GRID,
    base_optimum: float = -6.0,
    shares: tuple[float, float, float] = (0.6, 0.1, 0.3),  # of the sample, the cell and the seed
    training_noise: float = 0.0,  # octaves: how far a seed's own optimum lies from that of its shape
    gain: float = 0.8,  # of the best error per doubling of the scale
) -> pd.DataFrame:
    """Return a line. `drift` is the move of the optimum in octaves per doubling, by parameterization."""
    rng, normal = np.random.default_rng(luck), NormalDist()
    own = rng.standard_normal(samples)
    rows = []
    for label, curve in curve_of.items():
        for scale in scales:
            doublings = math.log2(scale / scales[0])
            shifts = training_noise * rng.standard_normal(seeds)
            for exponent in grid:
                of_cell = rng.standard_normal(samples)
                for seed in range(seeds):
                    octaves = exponent - base_optimum - drift[label] * doublings - shifts[seed]
                    least = best * gain**doublings
                    error = least + (guess - least) * curve(octaves)
                    parts = (own, of_cell, rng.standard_normal(samples))
                    hard = sum(math.sqrt(share) * part for share, part in zip(shares, parts, strict=True))
                    wrong = hard < normal.inv_cdf(error) if 0 < error < 1 else np.full(samples, error >= 1)
                    rows.append(
                        {
                            "axis": "width",
                            "scale_name": "width",
                            "scale": scale,
                            "shape": f"w{scale:g}",
                            "is_base": scale == scales[0],
                            "parameterization": label,
                            "value": 2.0**exponent,
                            "seed": seed,
                            "loss": float(np.mean(wrong)),
                            "status": "finished",
                        }
                    )
    return pd.DataFrame(rows)
