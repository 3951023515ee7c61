"""Path: on which axis of a sweep a shape lies, and at which scale. Pure.

Each dimension of the shapes of an axis either stays, or goes as a power of the axis's scale, or as a straight line of
it. A shape that was not measured lies on the axis if all its dimensions, batch and steps included, go on so. Nothing is
known of other shapes: no sweep says what two axes do together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpxfer.scaling.shape import DIMENSIONS, Shape
from hpxfer.spec.axes import Axis
from hpxfer.spec.blocks import Options
from hpxfer.spec.scale import scale_of
from hpxfer.verdict.labels import scale_text, shape_label

SAME = 1e-6  # relative: dimensions are whole numbers, and powers of two of these are exact
MAX_NAMED = 2  # dimensions that a reason names
SCHEDULE = ("batch_tokens", "steps")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a shape lies on an axis. `shape` has the axis's batch and steps if it was given without any."""

    axis: Axis
    scale: float
    shape: Shape


@dataclass(frozen=True, kw_only=True)
class Off:
    """Why a shape lies on no axis: what each axis would have in its place."""

    axis: Axis
    why: str
    num_other: float  # dimensions that differ; the axis with the fewest is the nearest, one without a rule the last


def places(axes: Sequence[Axis], target: Shape, options: Options) -> tuple[list[Place], list[Off]]:
    """Return where the shape lies, the axis with most shapes first, and why not on the others, the nearest first."""
    found = [_on(axis, target, options) for axis in axes]
    on = sorted((each for each in found if isinstance(each, Place)), key=lambda place: -len(place.axis.points))
    return on, sorted((each for each in found if isinstance(each, Off)), key=lambda off: off.num_other)


def _on(axis: Axis, target: Shape, options: Options) -> Place | Off:
    for point in axis.points:
        wanted = _scheduled(target, {name: getattr(point.shape, name) for name in SCHEDULE})
        if _dims(wanted) == _dims(point.shape):
            return Place(axis=axis, scale=point.scale, shape=wanted)
    if len(axis.points) == 1:
        only = shape_label(axis.scale_name, axis.points[0].scale)
        return Off(axis=axis, why=f"along {axis.name}, {only} is the only shape", num_other=math.inf)
    scale = _scale(axis, target, options)
    if scale is None or not scale > 0:
        return Off(
            axis=axis, why=f"along {axis.name}, the scale {axis.scale_name} cannot be computed", num_other=math.inf
        )
    at = shape_label(axis.scale_name, scale)
    if any(point.own_decay for point in axis.points):
        why = (
            f"along {axis.name}, shapes have LR schedules of their own, so that only the measured ones are on the axis"
        )
        return Off(axis=axis, why=why, num_other=math.inf)
    expected = {name: _followed(axis, name, scale) for name in _dims(axis.points[0].shape)}
    crooked = [name for name, value in expected.items() if value is None]
    if crooked:
        why = (
            f"along {axis.name}, {' and '.join(crooked)} do not follow {axis.scale_name} by one rule, so that only the "
            "measured shapes are on the axis"
        )
        return Off(axis=axis, why=why, num_other=math.inf)
    known = {name: value for name, value in expected.items() if value is not None}
    wanted = _scheduled(target, {name: round(known[name]) for name in SCHEDULE})
    got = _dims(wanted)
    other = [name for name, value in known.items() if abs(got[name] - value) > SAME * max(value, 1)]
    if not other:
        return Place(axis=axis, scale=scale, shape=wanted)
    spelled = [f"{name} {scale_text(round(known[name], 2))} (got {got[name]})" for name in other]
    more = [f"{len(spelled) - MAX_NAMED} more"] if len(spelled) > MAX_NAMED else []
    why = f"along {axis.name}, {at} has {' and '.join([*spelled[:MAX_NAMED], *more])}"
    return Off(axis=axis, why=why, num_other=len(other))


def _scheduled(target: Shape, schedule: Mapping[str, Any]) -> Shape:
    """Return the shape with this batch and these steps, unless it has its own."""
    return target if target.tokens else replace(target, **schedule)


def _dims(shape: Shape) -> dict[str, int]:
    """Return every dimension, with the numbers of heads that the shape has whether or not they were given."""
    given = {name: getattr(shape, name) for name in DIMENSIONS}
    return {**given, "num_heads": shape.query_heads, "kv_heads": shape.key_heads}


def _scale(axis: Axis, target: Shape, options: Options) -> float | None:
    """Return the scale of a shape on an axis: the same quantity that the axis counts."""
    name, scales = scale_of(axis.name, [*(point.shape for point in axis.points), target], options)
    if name == axis.scale_name:
        return scales[-1]
    value = getattr(target, axis.scale_name, None)  # another dimension differs too
    return None if value is None else float(value)


def _followed(axis: Axis, name: str, scale: float) -> float | None:
    """Return what a dimension is at a scale by the rule of the axis; None without a rule."""
    x = np.array([point.scale for point in axis.points])
    y = np.array([float(_dims(point.shape)[name]) for point in axis.points])
    if bool(np.all(y == y[0])):
        return float(y[0])
    if x[0] == x[-1]:
        return None
    if bool(np.all(y > 0)):
        power = math.log(y[-1] / y[0]) / math.log(x[-1] / x[0])
        if np.allclose(y, y[0] * (x / x[0]) ** power, rtol=SAME, atol=0):
            return float(y[0] * (scale / x[0]) ** power)
    slope = (y[-1] - y[0]) / (x[-1] - x[0])
    if np.allclose(y, y[0] + slope * (x - x[0]), rtol=SAME, atol=SAME):
        return float(y[0] + slope * (scale - x[0]))
    return None
