"""Plane worlds: losses of two HPs whose truth is known, made without any part of the search that refines them.

A world is a plain function of log2 lr and log2 init_scale. Its lowest loss is read off by numbers. `is_ridge` says
whether the loss bends less than a tenth as much along one direction as across it, at the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

AT = (-6.3, 0.6)
LEVEL = 3.0  # nats
BOX = ((-13.0, 0.0), (-6.0, 6.0))  # octaves: what a search may reach
STEP = 0.05


@dataclass(frozen=True)
class PlaneWorld:
    """A landscape over two HPs. `loss` returns nats, and +inf where training diverges."""

    name: str
    loss: Callable[[float, float], float]
    is_ridge: bool

    @cached_property
    def truth(self) -> tuple[float, float, float]:
        """The lowest loss, and where it is."""
        axes = [np.arange(low, high + STEP / 2, STEP) for low, high in BOX]
        return min((self.loss(float(a), float(b)), float(a), float(b)) for a in axes[0] for b in axes[1])

    def regret(self, a: float, b: float) -> float:
        """Return the loss at a point over the lowest one, in nats."""
        return max(0.0, self.loss(a, b) - self.truth[0])


def turned(steep: float, flat: float, angle: float, at: tuple[float, float] = AT) -> Callable[[float, float], float]:
    """Return a parabola with these curvatures, whose steep direction is turned by an angle."""
    c, s = math.cos(angle), math.sin(angle)

    def loss(a: float, b: float) -> float:
        u, v = a - at[0], b - at[1]
        return LEVEL + steep * (c * u + s * v) ** 2 / 2 + flat * (c * v - s * u) ** 2 / 2

    return loss


def quartic(a: float, b: float) -> float:
    """Return a bowl whose sides become steep."""
    u, v = a - AT[0], b - AT[1]
    return LEVEL + 0.03 * u**2 + 0.01 * u**4 + 0.02 * v**2 + 0.01 * v**4


def banana(a: float, b: float) -> float:
    """Return a valley that bends, as Rosenbrock's does."""
    u, v = a - AT[0], b - AT[1]
    return LEVEL + 0.08 * (u - 0.3 * v**2) ** 2 + 0.02 * v**2


def skewed(a: float, b: float) -> float:
    """Return a bowl that is far steeper on one side, along two turned directions."""
    u, v = a - AT[0], b - AT[1]
    p, q = 0.9 * u + 0.4 * v, 0.9 * v - 0.4 * u
    return LEVEL + 0.05 * (math.exp(p) - 1 - p) + 0.05 * (math.exp(q) - 1 - q)


def pointed(a: float, b: float) -> float:
    """Return a bowl that is nearly a cone away from its bottom: linear, as no parabola is."""
    return LEVEL + 0.1 * (math.sqrt(1 + (a - AT[0]) ** 2 + 0.5 * (b - AT[1]) ** 2) - 1)


def walled(inner: Callable[[float, float], float], above: float) -> Callable[[float, float], float]:
    """Return a landscape that diverges where a + b / 2 exceeds a bound."""
    return lambda a, b: math.inf if a + 0.5 * b > above else inner(a, b)


WORLDS = (
    PlaneWorld("round", turned(0.06, 0.06, 0.0), is_ridge=False),
    PlaneWorld("4:1, turned", turned(0.08, 0.02, 0.6), is_ridge=False),
    PlaneWorld("quartic", quartic, is_ridge=False),
    PlaneWorld("pointed", pointed, is_ridge=False),
    PlaneWorld("bent valley", banana, is_ridge=False),
    PlaneWorld("skewed", skewed, is_ridge=False),
    PlaneWorld("round, diverges beside", walled(turned(0.06, 0.06, 0.0), -5.0), is_ridge=False),
    PlaneWorld("4:1, diverges beside", walled(turned(0.08, 0.02, 0.6), -5.0), is_ridge=False),
    PlaneWorld("optimum off the grid", turned(0.06, 0.06, 0.0, at=(-3.2, -3.0)), is_ridge=False),
    PlaneWorld("flat ridge", turned(0.08, 0.0, 0.7), is_ridge=True),
    PlaneWorld("flat along one HP", turned(0.08, 0.0, 0.0), is_ridge=True),
    PlaneWorld("30:1 ridge", turned(0.08, 0.08 / 30, 0.9), is_ridge=True),
)
