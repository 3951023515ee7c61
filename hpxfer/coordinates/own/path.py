"""The shapes that a check of a user's own module is made at."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from hpxfer.coordinates.cases import FACTORS
from hpxfer.errors import HpxferError, nearest
from hpxfer.recipe import as_shape
from hpxfer.scaling.shape import Shape, shape_from_mapping

# An axis -> the dimensions that grow with it. Other paths are given as `shapes`.
GROWS = {
    "width": ("width", "expert_width", "shared_width", "dense_width", "num_heads", "kv_heads"),
    "depth": ("depth",),
}


@dataclass(frozen=True, kw_only=True)
class OwnPath:
    """The shapes along an axis by ascending scale, and what the user's functions get for each of them."""

    axis: str
    scales: tuple[float, ...]
    shapes: tuple[Shape, ...]
    given: tuple[Any, ...]


def grown_path(base: Shape, axis: str, points: Sequence[float] | None) -> OwnPath:
    """Return the shapes that grow out of the base along an axis: at 1, 2, 4 and 8 times the base by default."""
    if axis not in GROWS:
        raise HpxferError(f"--axis: must be width or depth, got {axis!r}; {nearest(axis, GROWS)} or give `shapes`")
    start = getattr(base, axis)
    values = sorted(set(points)) if points is not None else [start * factor for factor in FACTORS]
    shapes = [_grown(base, axis, value / start) for value in values]
    return _checked(axis, shapes, shapes)


def given_path(
    axis: str, given: Sequence[Any], dims: Callable[[Any], Mapping[str, int]] | None, points: Sequence[float] | None
) -> OwnPath:
    """Return the shapes that the user lists. `dims` gives the dimensions of an entry, if it is no shape."""
    if points is not None:
        raise HpxferError("--points: the module lists its own `shapes`; leave one out")
    names = [field.name for field in fields(Shape)]
    if axis not in names:
        raise HpxferError(f"--axis: must be a dimension of a shape, got {axis!r}; {nearest(axis, names)}")
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise HpxferError(f"shapes: must be a list of shapes, got {type(given).__name__}; give [..., ...]")
    shapes = [as_shape(dims(each) if dims else each, f"shapes[{at}]") for at, each in enumerate(given)]
    order = sorted(range(len(shapes)), key=lambda at: getattr(shapes[at], axis))
    return _checked(axis, [shapes[at] for at in order], [given[at] for at in order])


def _checked(axis: str, shapes: Sequence[Shape], given: Sequence[Any]) -> OwnPath:
    scales = tuple(float(getattr(shape, axis)) for shape in shapes)
    if len(set(scales)) < len(FACTORS):
        raise HpxferError(
            f"--axis {axis}: a slope needs at least {len(FACTORS)} values, got {len(set(scales))}; give more"
        )
    if len(set(scales)) < len(scales):
        raise HpxferError(f"--axis {axis}: each shape must have a {axis} of its own, got one twice; leave one out")
    if not min(scales):
        raise HpxferError(f"--axis {axis}: must be above 0 in each shape, got 0; name the axis that grows")
    return OwnPath(axis=axis, scales=scales, shapes=tuple(shapes), given=tuple(given))


def _grown(base: Shape, axis: str, factor: float) -> Shape:
    changed = {}
    for dim in GROWS[axis]:
        value = getattr(base, dim) * factor
        if not math.isclose(value, round(value), rel_tol=1e-9):
            raise HpxferError(
                f"--points: {dim} must be a whole number, got {value:g} at {axis} {getattr(base, axis) * factor:g}"
            )
        changed[dim] = round(value)
    return shape_from_mapping(replace(base, **changed).dims(), "--points")
