"""How far a limit is from finite networks, in standard errors.

The mean of a number over networks of width n is limit + c / n + d / n^2 + ... Twice the mean at 2n less the mean at n
holds no c. What is left of d is half of its effect at n, with the sign turned. Nothing is fitted.

This is fair where d is small at the widths used. It is not near the edge of stability, nor for muP in regime III with a
large down projection, whose widths below 256 are far from the limit. The cases of the tests were chosen to avoid both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from finite_net import Run, train

from hpxfer.limit import Given, Network
from hpxfer.limit.outcome import SERIES, Pass

Passes = Callable[..., list[Pass]]
# Differences below are rounding, of numbers of order one that 10 million additions made.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Estimate:
    mean: np.ndarray  # [T + 1]
    error: np.ndarray  # [T + 1], the standard error


def limit_of(
    passes: Passes, network: Network, given: Given, *, sites: int = 8192, seeds: int = 4
) -> dict[str, Estimate]:
    """Return the solver's series, mean over its seeds."""
    solves = [passes(network, given, sites=sites, seed=seed) for seed in range(seeds)]
    return estimates({name: np.array([[each.numbers[name] for each in solve] for solve in solves]) for name in SERIES})


def extrapolated(small: Run, wide: Run) -> dict[str, Estimate]:
    """Return the series at infinite width, from two widths of which one is twice the other."""
    a, b = estimates(small.numbers), estimates(wide.numbers)
    return {name: Estimate(2 * b[name].mean - a[name].mean, np.hypot(2 * b[name].error, a[name].error)) for name in a}


def finite(
    network: Network, given: Given, widths: Sequence[int], seeds: int, frozen: tuple[str, ...] = ()
) -> dict[str, Estimate]:
    """Return what networks of two widths say of the limit."""
    small, wide = (train(network, given, n, seeds=seeds, seed=n, frozen=frozen, chunk=50) for n in widths)
    return extrapolated(small, wide)


def estimates(values: dict[str, np.ndarray]) -> dict[str, Estimate]:
    """Return the mean of every series. Of an RMS it is the mean of its square.

    The square is what has a series in 1/n. Where the limit is zero, as of h3 under muP at first, the RMS has n^-1/2.
    """
    squared = {name: value**2 if name.endswith("_rms") else value for name, value in values.items()}
    return {name: estimate(value) for name, value in squared.items()}


def estimate(values: np.ndarray) -> Estimate:
    """Return the mean over the first axis."""
    error = values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.zeros(values.shape[1:])
    return Estimate(values.mean(0), error)


def deviations(limit: dict[str, Estimate], truth: dict[str, Estimate]) -> dict[str, np.ndarray]:
    """Return z of every series and pass: 0 where both are the same number."""
    out = {}
    for name, one in limit.items():
        difference = truth[name].mean - one.mean
        error = np.hypot(np.hypot(truth[name].error, one.error), ROUNDING)
        out[name] = difference / error
    return out


def worst(z: dict[str, np.ndarray]) -> float:
    """Return the largest |z|. A number that is not finite agrees with nothing."""
    return max(float(np.abs(np.nan_to_num(values, nan=np.inf)).max()) for values in z.values())
