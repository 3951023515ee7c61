"""Quadratic: a surface of second order through the losses of two HPs, weighted by what is known of each point.

loss = a + b.u + u'Hu / 2 over u = (log2 of the first HP, log2 of the second) - center, by weighted least squares. The
variance of a point is the sum of three:

- the noise of its mean over the seeds. Seeds are paired, so what a seed adds to all points alike is taken out first.
  Two or three seeds estimate a variance badly, so it is drawn towards that of all points.
- the tolerance: a basin is no parabola far from its optimum. So it may differ from one by a share of its rise above the
  lowest point. The share is raised until it explains how the points scatter, so a surface that fits badly gets local.
- the misfit: the scatter that no share explains, equal for all points.

A point that still lies more than HUBER standard deviations off the surface weighs less in proportion (Huber, 1964).

Basins are skewed too, and a parabola through distant points then finds the wrong place. So the fit has four cubic terms
about the optimum, with mean zero and a standard deviation of SKEW. They are no part of the surface: what they leave
open widens the errors of its coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

COEFFICIENTS = 6
TOLERANCE = (0.2, 1.0)  # of a point's rise, the least and the most: by so much a real basin may differ from a parabola
ONE_SEED = 1e-3  # of the loss: the noise that is assumed where one seed shows none
HUBER = 2.0  # standard deviations
CLIPPED = 0.9205  # the mean of min(Z^2, HUBER^2) of a normal Z
SHRINK = 6.0  # degrees of freedom that the noise of all points counts for at each point
FLOOR = 3e-5  # of the loss: no loss of a training run says more
ITERATIONS = 12
SKEW = 0.15  # per octave: the standard deviation of a cubic coefficient of a basin over its quadratic one
LEAST_SHARE = 0.02  # of the larger curvature: a basin may be as skewed along a ridge as if it bent so much
NEAR = 2.0  # octaves: a fitted optimum that is farther from the lowest point is not expanded about
TINY = 1e-300


@dataclass(frozen=True, kw_only=True, eq=False)
class Quadratic:
    """The surface, and what is known of its coefficients."""

    center: Floats  # (2,), octaves
    coefficients: Floats  # (6,): of 1, u, v, u^2, u v, v^2
    covariance: Floats  # (6, 6)
    freedom: float  # degrees of freedom of the errors
    noise_nats: float  # of a point's mean over the seeds, near the optimum
    tolerance: float  # the share of a rise by which the basin differs from the surface
    misfit_nats: float  # beyond the noise and the tolerance
    lowest_nats: float  # the lowest measured mean
    hessian: Floats = field(init=False)  # (2, 2), nats per octave squared

    def __post_init__(self) -> None:
        _, _, _, c, m, d = self.coefficients
        object.__setattr__(self, "hessian", np.array([[2 * c, m], [m, 2 * d]]))

    def at(self, x: Floats) -> Floats:
        """Return the fitted losses in nats at points (..., 2) in octaves."""
        return np.asarray(terms(x - self.center) @ self.coefficients)

    def slope(self, x: Floats) -> Floats:
        """Return the gradient (2,) at a point, in nats per octave."""
        return np.asarray(slopes(x - self.center) @ self.coefficients)

    def error(self, row: Floats) -> float:
        """Return the standard error of a linear combination (6,) of the coefficients."""
        return math.sqrt(max(float(row @ self.covariance @ row), 0.0))

    def variance_at(self, x: Floats) -> Floats:
        """Return the variance of a new point's mean loss about the surface, in nats squared, at points (..., 2)."""
        rise = np.maximum(self.at(x) - self.lowest_nats, 0.0)
        return np.asarray(self.noise_nats**2 + self.misfit_nats**2 + (self.tolerance * rise) ** 2)


def terms(u: Floats) -> Floats:
    """Return the six terms (..., 6) of the surface at points (..., 2) about its center."""
    a, b = u[..., 0], u[..., 1]
    return np.stack([np.ones_like(a), a, b, a * a, a * b, b * b], axis=-1)


def skews(u: Floats, frame: Floats) -> Floats:
    """Return the four cubic terms (..., 4) at points (..., 2) about the center, in their standard deviations.

    `frame` turns u to the directions of the two curvatures, and scales each by the cube root of the cubic coefficient
    that a basin may have there.
    """
    p, q = np.moveaxis(u @ frame, -1, 0)
    return np.stack([p**3, p * p * q, p * q * q, q**3], axis=-1)


def slopes(u: Floats) -> Floats:
    """Return the rows (2, 6) that give the gradient at a point (2,) about the center."""
    a, b = (float(value) for value in u)
    return np.array([[0.0, 1.0, 0.0, 2 * a, b, 0.0], [0.0, 0.0, 1.0, 0.0, a, 2 * b]])


def curvature_row(along: Floats) -> Floats:
    """Return the row (6,) that gives the curvature along a unit vector (2,)."""
    a, b = (float(value) for value in along)
    return np.array([0.0, 0.0, 0.0, 2 * a * a, 2 * a * b, 2 * b * b])


def fit_quadratic(x: Floats, losses: Floats) -> Quadratic | None:
    """Return the surface through points (P, 2) in octaves with finite losses (P, S), or None if they determine none."""
    if len(x) < COEFFICIENTS:
        return None
    means = losses.mean(axis=1)
    lowest = int(np.argmin(means))
    design = terms(x - x[lowest])
    scale = np.abs(design).max(axis=0)
    if np.linalg.matrix_rank(design / np.where(scale > 0, scale, 1.0), tol=1e-8) < COEFFICIENTS:
        return None
    noise, freedom = _noise(losses)
    noise = np.maximum(noise, (FLOOR * max(abs(float(means[lowest])), 1.0)) ** 2)
    # A lucky point must not weigh more for its luck, so a rise within the noise is none.
    rise = np.maximum(means - means[lowest] - 2 * math.sqrt(2 * float(np.median(noise))), 0.0)
    huber, share, misfit = np.ones(len(x)), TOLERANCE[0], 0.0
    center, frame = x[lowest], None
    for _ in range(ITERATIONS):
        design = terms(x - center)
        cubic = np.zeros((len(x), 4)) if frame is None else skews(x - center, frame)
        variance = noise + (share * rise) ** 2 + misfit
        found, covariance, residual = _solved(design, cubic, means, huber / variance)
        share, misfit = _explained(residual, noise, rise, len(x) - COEFFICIENTS)
        away = np.abs(residual) / np.sqrt(noise + (share * rise) ** 2 + misfit)
        huber = np.minimum(1.0, HUBER / np.maximum(away, 1e-12))
        surface = Quadratic(
            center=center,
            coefficients=found,
            covariance=covariance,
            freedom=max(1.0, freedom + len(x) - COEFFICIENTS),
            noise_nats=math.sqrt(float(np.median(noise[rise <= 0]))),
            tolerance=share,
            misfit_nats=math.sqrt(misfit),
            lowest_nats=float(means[lowest]),
        )
        center, frame = _expanded(surface, x[lowest])
    return surface


def _expanded(surface: Quadratic, near: Floats) -> tuple[Floats, Floats | None]:
    """Return the point to expand the basin about, its optimum if that is near the lowest point, and its frame."""
    values, vectors = np.linalg.eigh(surface.hessian)
    if values[1] <= 0:
        return near, None
    curvatures = np.maximum(values, values[1] * LEAST_SHARE)
    frame = np.asarray(vectors * np.cbrt(SKEW * curvatures / 2))
    if values[0] <= 0:
        return near, frame
    at = surface.center - np.linalg.solve(surface.hessian, surface.coefficients[1:3])
    return (at if float(np.abs(at - near).max()) <= NEAR else near), frame


def _noise(losses: Floats) -> tuple[Floats, float]:
    """Return the variance (P,) of the mean over paired seeds, and its degrees of freedom over all points."""
    points, seeds = losses.shape
    if seeds < 2:
        return np.full(points, (ONE_SEED * max(abs(float(losses.min())), 1.0)) ** 2), 0.0
    apart = losses - losses.mean(axis=1, keepdims=True)
    apart = apart - np.median(apart, axis=0)
    apart = apart - apart.mean(axis=1, keepdims=True)
    own = (apart**2).sum(axis=1) / (seeds - 1)
    # A point far off is clipped, so that it does not make all others uncertain.
    expected = points * (1 - (1 - CLIPPED) / (seeds - 1) ** 2)  # of own / variance, clipped: exact for two, three seeds
    of_all = _root(lambda at: float(np.minimum(own / max(at, TINY), HUBER**2).sum()) - expected, 0.0, float(own.sum()))
    shrunk = (SHRINK * of_all + (seeds - 1) * own) / (SHRINK + seeds - 1)
    return np.asarray(shrunk / seeds), float((points - 1) * (seeds - 1))


def _solved(design: Floats, cubic: Floats, means: Floats, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the coefficients (6,), their covariance (6, 6), and the residuals (P,) of surface and cubic terms."""
    root = np.sqrt(weights)[:, None]
    prior = np.hstack([np.zeros((4, COEFFICIENTS)), np.eye(4)])
    whole = np.hstack([design, cubic])
    inverse = np.linalg.pinv(np.vstack([whole * root, prior]), rcond=1e-12)  # (10, P + 4)
    found = inverse[:, : len(means)] @ (root[:, 0] * means)
    return found[:COEFFICIENTS], (inverse @ inverse.T)[:COEFFICIENTS, :COEFFICIENTS], means - whole @ found


def _explained(residual: Floats, noise: Floats, rise: Floats, freedom: int) -> tuple[float, float]:
    """Return the tolerance and the misfit (a variance) that explain the residuals (Paule and Mandel, clipped)."""
    if freedom < 1:
        return TOLERANCE[0], 0.0

    def excess(variance: Floats) -> float:
        return float(np.minimum(residual**2 / variance, HUBER**2).sum()) - freedom * CLIPPED

    share = _root(lambda at: excess(noise + (at * rise) ** 2), *TOLERANCE)
    variance = noise + (share * rise) ** 2
    return share, _root(lambda at: excess(variance + at), 0.0, float((residual**2).sum()))


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling function is zero, or the end that is nearest to it."""
    if falling(low) <= 0:
        return low
    if falling(high) > 0:
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high
