"""The shapes of basins in the worlds: how the loss rises on both sides of the optimum.

Every basin is `curvature * octaves^2` close to the optimum, unless its docstring says otherwise, and none of them is
taken from the estimator. `draw` returns the basins of all shapes of one sweep, (I, N) nats from (I, N) octaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Basin = Callable[[Floats, Floats], Floats]  # octaves above the optimum (I, N), curvature (I, 1) -> nats (I, N)


class BasinKind(Protocol):
    """A family of basins."""

    def draw(self, rng: np.random.Generator, num_shapes: int) -> Basin:
        """Return the basins of one sweep."""
        ...


@dataclass(frozen=True)
class Parabola:
    """Equally steep on both sides: curvature u^2."""

    def draw(self, rng: np.random.Generator, num_shapes: int) -> Basin:
        return lambda u, c: c * u**2


@dataclass(frozen=True)
class TwoExponential:
    """An exponential on each side, 2^(-p u) to the left and 2^(q u) to the right. One p and q per shape, or for all."""

    p: tuple[float, ...]
    q: tuple[float, ...]

    def draw(self, rng: np.random.Generator, num_shapes: int) -> Basin:
        return _two_exponential(*(np.broadcast_to(np.array(given), num_shapes) for given in (self.p, self.q)))


@dataclass(frozen=True)
class RandomExponential:
    """Two exponentials with p and q drawn log-uniformly, per shape or once for all shapes."""

    low: float = 0.5
    high: float = 4.0
    shared: bool = False

    def draw(self, rng: np.random.Generator, num_shapes: int) -> Basin:
        ends = math.log(self.low), math.log(self.high)
        p_I, q_I = np.exp(rng.uniform(*ends, size=(2, 1 if self.shared else num_shapes)))
        return _two_exponential(p_I, q_I)


@dataclass(frozen=True)
class Saturating:
    """Another basin f that bends over to a wall of finite height: height tanh(f / height)."""

    height: float
    inner: BasinKind = Parabola()

    def draw(self, rng: np.random.Generator, num_shapes: int) -> Basin:
        inner = self.inner.draw(rng, num_shapes)
        return lambda u, c: self.height * np.tanh(inner(u, c) / self.height)


@dataclass(frozen=True)
class SlowLeft:
    """A parabola to the right. To the left the rise turns linear after half an octave."""

    def draw(self, rng: np.random.Generator, num_shapes: int) -> Basin:
        return lambda u, c: c * np.where(u > 0, u**2, 0.5 * (np.sqrt(1 + 4 * u**2) - 1))


@dataclass(frozen=True)
class Plateau:
    """Nearly flat within an octave of the optimum: a tenth of the curvature there, all of it further out."""

    def draw(self, rng: np.random.Generator, num_shapes: int) -> Basin:
        return lambda u, c: c * (0.1 * u**2 + 0.9 * u**4 / (1 + u**2))


@dataclass(frozen=True)
class Kinked:
    """Two straight lines that meet at the optimum: curvature |u|, the left one with another slope."""

    left: float = 1.0

    def draw(self, rng: np.random.Generator, num_shapes: int) -> Basin:
        return lambda u, c: c * np.where(u > 0, u, -self.left * u)


@dataclass(frozen=True)
class Quartic:
    """The fourth power of the distance: curvature u^4."""

    def draw(self, rng: np.random.Generator, num_shapes: int) -> Basin:
        return lambda u, c: c * u**4


def _two_exponential(p_I: Floats, q_I: Floats) -> Basin:
    p, q = p_I[:, None], q_I[:, None]
    factor = 2 / (math.log(2) ** 2 * p * q * (p + q))
    return lambda u, c: c * factor * (q * 2.0 ** (-p * u) + p * 2.0 ** (q * u) - (p + q))
