"""Plane design: which points of a plane come next.

A round has the lowest point of the surface, and the points after which the variance of the optimum is least. A point
that is added with variance s^2 takes (a'Cf)^2 / (s^2 + f'Cf) from the variance of a'theta, where C is the covariance of
the coefficients theta and f holds the terms of the point. While it is open whether the optimum slides along a ridge,
a'theta is the curvature along the flat direction. After that it is the optimum's place, in the
directions that are open.

A point next to one that diverged is not tried: the nearest measured point must have finished.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpxfer.search.bowl import Bowl
from hpxfer.search.plane import Plane, Point
from hpxfer.search.quadratic import Floats, Quadratic, curvature_row, slopes, terms

POINTS = 3  # of a round, after the first one
LATTICE = 64  # steps of the lattice along each HP at most: finer ones change nothing
SAME = 9  # digits: values that agree to so many are equal, whatever the rounding of a library


def lattice_step(until_octaves: float) -> float:
    """Return the step between points: a power of two, a quarter of what the optimum is wanted to at most."""
    return 2.0 ** math.floor(math.log2(until_octaves / 4) + 1e-9)


def candidates(plane: Plane, step: float) -> Floats:
    """Return the points (N, 2) of the box that may be tried: new ones, not behind a point that diverged."""
    axes = []
    for low, high in zip(plane.low, plane.high, strict=True):
        coarse = step
        while (high - low) / coarse > LATTICE:
            coarse *= 2
        axes.append(coarse * np.arange(math.ceil(low / coarse - 1e-9), math.floor(high / coarse + 1e-9) + 1))
    first, second = np.meshgrid(*axes, indexing="ij")
    points = np.stack([first.ravel(), second.ravel()], axis=-1)
    return np.asarray(points[_may_be_tried(plane, points, step)])


def _may_be_tried(plane: Plane, points: Floats, step: float) -> NDArray[np.bool_]:
    finished = _nearest(points, [point for point, _ in plane.finished])
    diverged = _nearest(points, plane.diverged)
    return np.asarray((np.minimum(finished, diverged) > step / 2) & (finished <= diverged + 1e-9))


def _nearest(points: Floats, known: Sequence[Point]) -> Floats:
    """Return the distance (N,) of each point to the nearest known one, +inf without any."""
    if not known:
        return np.full(len(points), np.inf)
    apart = points[:, None, :] - np.array(known)[None, :, :]
    return np.asarray(np.sqrt((apart**2).sum(axis=-1)).min(axis=1))


def lowest_in_box(surface: Quadratic, low: Point, high: Point) -> Floats:
    """Return the lowest point (2,) of a surface in a box. It is inside, on a side or in a corner."""
    low_2, high_2 = np.array(low), np.array(high)
    found = [np.array([a, b]) for a in (low[0], high[0]) for b in (low[1], high[1])]
    hessian, bend = surface.hessian, surface.coefficients[1:3]
    if np.linalg.eigvalsh(hessian)[0] > 0:
        found.append(surface.center - np.linalg.solve(hessian, bend))
    for fixed in range(2):
        free = 1 - fixed
        if hessian[free, free] <= 0:
            continue
        for end in (low[fixed], high[fixed]):
            point = np.empty(2)
            point[fixed] = end
            moved = bend[free] + hessian[free, fixed] * (end - surface.center[fixed])
            point[free] = surface.center[free] - moved / hessian[free, free]
            found.append(point)
    inside = [point for point in found if np.all(point >= low_2 - 1e-9) and np.all(point <= high_2 + 1e-9)]
    return min(inside, key=lambda point: round(float(surface.at(point)), SAME))


def next_points(plane: Plane, surface: Quadratic | None, bowl: Bowl | None, step: float) -> tuple[Point, ...]:
    """Return the points of the next round, the most important first; () if the lattice has none left."""
    found: list[Point] = []
    free = candidates(plane, step)
    if surface is not None and len(free):
        near = plane.lowest()
        assert near is not None, "a surface has points that finished"
        low, high = trusted(plane, near)
        target = lowest_in_box(surface, low, high)
        at = int(np.argmin(np.round(((free - target) ** 2).sum(axis=-1), SAME)))
        if _nearest(free[at : at + 1], [(float(target[0]), float(target[1]))])[0] <= step:
            found.append(_point(free[at]))
    while len(found) < POINTS and len(free):
        free = free[_nearest(free, found) > step / 2]
        at_next = None
        if len(free):
            at_next = _most_telling(surface, bowl, free, found) if surface is not None and bowl is not None else None
            at_next = _emptiest(plane, free, found) if at_next is None else at_next
        if at_next is None:
            break
        found.append(_point(free[at_next]))
    return tuple(found)


def trusted(plane: Plane, near: Point) -> tuple[Point, Point]:
    """Return the part of the box within a step of the first line: the surface is not believed farther from a point."""
    a, b = (max(steps) for steps in zip(*plane.steps(math.inf), strict=True))
    low = max(plane.low[0], near[0] - a), max(plane.low[1], near[1] - b)
    return low, (min(plane.high[0], near[0] + a), min(plane.high[1], near[1] + b))


def _point(row: Floats) -> Point:
    return round(float(row[0]), 10), round(float(row[1]), 10)


def _most_telling(surface: Quadratic, bowl: Bowl, free: Floats, found: Sequence[Point]) -> int | None:
    """Return the candidate that takes most from the variance of what is open, or None if that cannot be said."""
    covariance = surface.covariance
    for point in found:
        covariance = _after(surface, covariance, np.array(point))
    wanted = _open(surface, bowl)
    f = terms(free - surface.center)
    share = f @ covariance
    taken = ((share @ wanted.T) ** 2).sum(axis=-1) / (surface.variance_at(free) + (share * f).sum(axis=-1))
    return None if not np.isfinite(taken).all() or taken.max() <= 0 else int(np.argmax(_same(taken)))


def _open(surface: Quadratic, bowl: Bowl) -> Floats:
    """Return the combinations (K, 6) of the coefficients whose variance is to fall."""
    if bowl.form == "unknown":
        return curvature_row(bowl.flat)[None, :]
    at = surface.center if bowl.at is None else bowl.at
    rows = slopes(at - surface.center)
    across = bowl.steep @ rows / bowl.curvatures[0]
    if bowl.form == "ridge":
        return np.asarray(across[None, :])
    return np.stack([across, bowl.flat @ rows / bowl.curvatures[1]])


def _after(surface: Quadratic, covariance: Floats, point: Floats) -> Floats:
    """Return the covariance of the coefficients once a point is measured."""
    f = terms(point - surface.center)
    share = covariance @ f
    return np.asarray(covariance - np.outer(share, share) / (float(surface.variance_at(point)) + float(f @ share)))


def _emptiest(plane: Plane, free: Floats, found: Sequence[Point]) -> int:
    """Return the candidate within the trusted box that is farthest from all points, or the one next to that box."""
    near = plane.lowest()
    away = _nearest(free, [*(point for point, _ in plane.losses), *found])
    if near is not None:
        low, high = trusted(plane, near)
        outside = np.maximum(0, np.maximum(np.array(low) - free, free - np.array(high))).sum(axis=-1)
        away = np.where(outside > 1e-9, -outside, away)
    return int(np.argmax(_same(away)))


def _same(values: Floats) -> Floats:
    """Return values without the last digits, relative to the largest, so that ties are ties on every machine."""
    most = float(np.abs(values).max())
    return np.round(values / most, SAME) if most > 0 and math.isfinite(most) else values
