"""Axes: from what a file says to paths of shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hpxfer.errors import HpxferError
from hpxfer.shape import Shape, check_trainable
from hpxfer.spec.sweep import AxisSpec, ShapeChange, SweepSpec

# Axes that may be given as bare values, and the dimension that moves.
DIMENSION = {
    "width": "width",
    "depth": "depth",
    "experts": "num_experts",
    "active": "num_active",
    "expert_ratio": "expert_ratio",
    "expert_width": "expert_width",
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One shape of an axis and its place on the scale that drift is measured against."""

    shape: Shape
    scale: float


@dataclass(frozen=True, kw_only=True)
class Path:
    """An axis: its points from the base up. `scale_name` says what the scale counts."""

    name: str
    scale_name: str
    points: tuple[Point, ...]


def moved(base: Shape, change: ShapeChange) -> Shape:
    """Return `base` with `change` applied: num_active follows num_experts (kappa), expert_width the width (ratio)."""
    width = change.width or base.width
    num_experts = change.num_experts or base.num_experts
    num_active = change.num_active
    if num_active is None:
        follows = base.num_active * num_experts / base.num_experts
        if follows != int(follows) or follows < 1:
            raise HpxferError(
                f"num_active must follow num_experts to hold kappa {base.kappa:g}, got {follows:g} of {num_experts}; "
                "give num_active, or another num_experts"
            )
        num_active = int(follows)
    if change.expert_width is not None and change.expert_ratio is not None:
        raise HpxferError("give one of expert_ratio and expert_width, got both")
    expert_width: float | None = change.expert_width
    if expert_width is None:
        ratio = base.expert_ratio if change.expert_ratio is None else change.expert_ratio
        expert_width = ratio * width
    if not math.isclose(expert_width, round(expert_width), rel_tol=1e-9):
        raise HpxferError(f"expert_width must be a whole number, got {expert_width:g} at width {width}")
    shape = replace(
        base,
        width=width,
        depth=change.depth or base.depth,
        num_experts=num_experts,
        num_active=num_active,
        expert_width=round(expert_width),
    )
    if problem := check_trainable(shape):
        raise HpxferError(problem)
    return shape


def changes(name: str, axis: AxisSpec) -> list[tuple[tuple[str | int, ...], ShapeChange]]:
    """Return the changes that an axis spells out, each with its key path below the axis."""
    if axis.shapes is not None:
        return [(("shapes", i), change) for i, change in enumerate(axis.shapes)]
    dim = DIMENSION[name]
    out: list[tuple[tuple[str | int, ...], ShapeChange]] = []
    for i, value in enumerate(axis.values or ()):
        if dim != "expert_ratio" and value != int(value):
            raise HpxferError(f"{name} must be whole numbers, got {value:g}")
        if value <= 0:
            raise HpxferError(f"{name} must be > 0, got {value:g}")
        number = value if dim == "expert_ratio" else int(value)
        active = {"num_active": axis.num_active} if axis.num_active is not None else {}
        out.append((("values", i), ShapeChange.model_validate({dim: number, **active})))
    return out


def scale_of(path_name: str, shapes: list[Shape]) -> tuple[str, list[float]]:
    """Return what the scale of a path counts and its value at every shape.

    The one dimension that moves, if one does (num_active beside num_experts, and expert_width beside width, only
    follow); otherwise the weights in attention and experts, up to a constant.
    """
    if DIMENSION.get(path_name) == "expert_ratio":
        return "expert_ratio", [shape.expert_ratio for shape in shapes]
    for dim, fixed in (
        ("width", ("depth", "num_experts", "num_active", "expert_ratio")),
        ("depth", ("width", "num_experts", "num_active", "expert_width")),
        ("num_active", ("width", "depth", "num_experts", "expert_width")),
        ("num_experts", ("width", "depth", "expert_width")),
        ("expert_width", ("width", "depth", "num_experts", "num_active")),
    ):
        if all(len({getattr(shape, name) for shape in shapes}) == 1 for name in fixed):
            return dim, [float(getattr(shape, dim)) for shape in shapes]
    weights = [s.depth * (4 * s.width**2 + 2 * s.num_experts * s.width * s.expert_width) for s in shapes]
    return "hidden weights", [float(one) for one in weights]


def paths(spec: SweepSpec) -> tuple[Path, ...]:
    """Return every axis of the sweep as a path that starts at the base shape. The spec has been checked."""
    base = spec.base_shape
    out = []
    for name, axis in spec.axes.items():
        shapes = [base]
        for _, change in changes(name, axis):
            shape = moved(base, change)
            if shape not in shapes:
                shapes.append(shape)
        scale_name, scales = scale_of(name, shapes)
        points = sorted((Point(shape=s, scale=x) for s, x in zip(shapes, scales, strict=True)), key=lambda p: p.scale)
        out.append(Path(name=name, scale_name=scale_name, points=tuple(points)))
    return tuple(out)
