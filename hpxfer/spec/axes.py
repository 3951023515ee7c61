"""Axes: the shapes along each axis of a sweep file, the scale that they are measured on, and octaves around a value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from hpxfer.errors import HpxferError
from hpxfer.scaling.shape import OwnDim, Shape, check_trainable, heads_of
from hpxfer.spec.blocks import Options, family_of, has_dense, moe_blocks
from hpxfer.spec.fields import GridValues
from hpxfer.spec.own import OF_RUN, changed, own_scale, own_shape
from hpxfer.spec.sweep import AxisSpec, ShapeChange, SweepSpec, base_values
from hpxfer.spec.yaml_file import KeyPath

_WIDTHS = ("expert_width", "shared_width", "dense_width")
_DIMS = ("width", "depth", "num_experts", "num_active", *_WIDTHS, "num_shared", "num_groups", "batch_tokens", "steps")


# (scale, what follows it, what stays): an axis is measured by a dimension if nothing else changes but what follows it.
# The first rule counts that fits and has another value for each shape.
_RULES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("width", _WIDTHS, ("expert_ratio", "shared_ratio", "dense_ratio")),
    ("depth", (), ()),
    ("num_active", (), ()),
    ("num_experts", ("num_active",), ()),
    ("expert_width", (), ()),
    ("num_active", ("num_experts", "expert_width"), ("kappa", "routed_width")),
    ("active_width", ("num_shared", "shared_width"), ()),  # num_shared may be 0, which has no log
    ("num_groups", (), ()),
    ("dense_width", (), ()),
    ("batch_tokens", (), ()),
    ("batch_tokens", ("steps",), ("tokens",)),
    ("steps", (), ()),
)
# A regime of the MLP mixture, which its papers measure by the width.
_REGIME = ("width", ("num_experts", "num_active", "expert_width"), ())


def scale_of(axis_name: str, shapes: Sequence[Shape], options: Options) -> tuple[str, list[float]]:
    """Return what the scale of an axis counts and its value at every shape, always > 0.

    If a single dimension changes, the scale is that dimension. Otherwise it is the quantity that has most values: the
    weights in attention and FFNs, the hidden features that a token uses, or the tokens of the run.
    """

    def numbers(name: str) -> list[float]:
        match name:
            case "shared_ratio":
                return [shape.shared_width / shape.width for shape in shapes]
            case "routed_width":
                return [float(shape.num_active * shape.expert_width) for shape in shapes]
            case "hidden weights":
                return [float(_hidden_weights(shape, options)) for shape in shapes]
        return [float(getattr(shape, name)) for shape in shapes]

    if axis_name == "expert_ratio" and shapes[0].num_experts:
        return "expert_ratio", numbers("expert_ratio")
    for name, follows, holds in _RULES if options.mlp is None else (*_RULES, _REGIME):
        fixed = (*(dim for dim in _DIMS if dim not in (name, *follows)), *holds)
        scales = numbers(name)
        if len(set(scales)) == len(scales) and all(len(set(numbers(each))) == 1 for each in fixed):
            return name, scales
    name = max(("hidden weights", "active_width", "tokens"), key=lambda each: len(set(numbers(each))))
    return name, numbers(name)


def _hidden_weights(shape: Shape, options: Options) -> int:
    """Return the weights of attention, experts and dense FFNs. The MLP mixture has experts alone."""
    if options.mlp is not None:
        matrices: int = options.mlp.expert_matrices
        return matrices * shape.depth * shape.num_experts * shape.expert_width * shape.width
    num_moe = len(moe_blocks(shape, options))
    hidden = num_moe * (shape.num_experts * shape.expert_width + shape.num_shared * shape.shared_width)
    hidden += (shape.depth - num_moe) * shape.dense_width
    matrices = 3 if options.ffn == "swiglu" else 2
    return 4 * shape.depth * shape.width**2 + matrices * shape.width * hidden


# The axes that may be given as bare values -> the dimension that a value is of.
DIMENSION = {
    "width": "width",
    "depth": "depth",
    "experts": "num_experts",  # num_active follows: kappa stays
    "active": "num_active",
    "capacity": "num_experts",  # num_active stays
    "granularity": "num_active",  # more and smaller experts: kappa and num_active * expert_width stay
    "expert_ratio": "expert_ratio",
    "expert_width": "expert_width",
    "shared": "num_shared",
    "groups": "num_groups",
    "batch": "batch_tokens",  # the run's tokens stay
    "duration": "steps",
}
_OF_EXPERTS = ("num_experts", "num_active", "expert_ratio", "expert_width", "num_shared", "num_groups")


@dataclass(frozen=True, kw_only=True)
class AxisPoint:
    """One shape of an axis, and its value on the scale that drift is measured against."""

    shape: Shape
    scale: float
    own_decay: str | None = None  # of its own schedule, if the point carries one


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis: its points by ascending scale, the base among them. `scale_name` says what the scale counts."""

    name: str
    scale_name: str
    points: tuple[AxisPoint, ...]

    def label(self, shape: Shape) -> str:
        """Return the name of one of its shapes. It holds batch and steps only if these differ along the axis.

        The shape of a point with its own schedule has the name of its decay too.
        """
        schedules = {(point.shape.batch_tokens, point.shape.steps) for point in self.points}
        own = next((point.own_decay for point in self.points if point.shape == shape), None)
        return shape.label(schedule=len(schedules) > 1) + (f" {own}" if own else "")


Entry = float | ShapeChange


def entries(spec: SweepSpec) -> Iterator[tuple[KeyPath, str, Entry]]:
    """Yield the entries of all axes: (key path, name of the axis, a bare value or what differs from the base)."""
    for name, axis in spec.axes.items():
        for form in ("values", "shapes"):
            for index, entry in enumerate(getattr(axis, form) or ()):
                yield ("axes", name, form, index), name, entry


def changes(spec: SweepSpec) -> Iterator[tuple[KeyPath, str, ShapeChange]]:
    """Yield the entries that are no bare values."""
    yield from ((at, name, entry) for at, name, entry in entries(spec) if isinstance(entry, ShapeChange))


def own_at(spec: SweepSpec, key: Literal["schedule", "data"]) -> dict[Shape, Any]:
    """Return the legal shapes of points that carry a schedule or data of their own, with it."""
    out = {}
    for _, name, change in changes(spec):
        if (found := getattr(change, key)) is not None:
            with suppress(HpxferError):
                out[shape_at(spec, name, change)] = found
    return out


def shape_at(spec: SweepSpec, name: str, entry: Entry) -> Shape:
    """Return the shape that an entry of an axis stands for. Raise HpxferError if no model can have it."""
    base, own = spec.base_shape, spec.model.own
    change = entry if isinstance(entry, ShapeChange) else _change(base, own, name, spec.axes[name], entry)
    if own is None:
        return moved(base, change, spec.model)
    batch = change.batch_tokens or change.batch_samples or base.batch_tokens
    return own_shape(changed(own, change.own or {}), spec.model.dims, batch=batch, steps=change.steps or base.steps)


def _change(base: Shape, own: Mapping[str, OwnDim] | None, name: str, axis: AxisSpec, value: float) -> ShapeChange:
    """Return the change that a bare value of an axis stands for. `moved` checks its numbers."""
    if own is not None and name not in OF_RUN:
        return ShapeChange.model_construct(own={name: value})
    dim = DIMENSION[name] if own is None else name
    if dim in _OF_EXPERTS and not base.num_experts:
        raise HpxferError(
            f"the base is dense: {name} has nothing to start from; give num_experts, num_active and expert_width or "
            "expert_ratio of each point in shapes"
        )
    least = ">=" if dim == "num_shared" else ">"
    if value < 0 or (value == 0 and least == ">"):
        raise HpxferError(f"{name} must be {least} 0, got {value:g}")
    if dim == "expert_ratio":
        return ShapeChange.model_construct(expert_ratio=value)
    number = _whole(value, name)
    follows: dict[str, Any] = {}
    match name:
        case "experts" if axis.num_active is not None:
            follows["num_active"] = axis.num_active
        case "capacity":
            follows["num_active"] = base.num_active
        case "granularity":
            experts, routed = base.num_experts * number / base.num_active, base.num_active * base.expert_width
            follows["num_experts"] = _whole(experts, "num_experts", f" at kappa {base.kappa:g}")
            follows["expert_width"] = _whole(routed / number, "expert_width", f" at num_active * expert_width {routed}")
        case "batch" | "batch_tokens":
            follows["steps"] = _whole(base.tokens / number, "steps", f" at {base.tokens} tokens in all")
    return ShapeChange.model_construct(**{dim: number, **follows})


def _whole(value: float, name: str, at: str = "") -> int:
    if not math.isclose(value, round(value), rel_tol=1e-9):
        raise HpxferError(f"{name} must be a whole number, got {value:g}{at}")
    return round(value)


def moved(base: Shape, change: ShapeChange, model: Options) -> Shape:
    """Return `base` with `change` applied. By default num_active follows num_experts, and hidden sizes the width.

    A change to no experts gives a dense shape, without shared experts and groups. A dense size is there where some
    block has a dense FFN. Shared experts are as wide as the base's or, if it has none, as its routed experts or its
    dense FFN.
    """
    width, is_dense = change.width or base.width, change.num_experts == 0

    def size(kind: str, ratio: float) -> int:
        """Return the hidden size that the change gives, or by default `ratio` times the width."""
        own_width, own_ratio = getattr(change, f"{kind}_width"), getattr(change, f"{kind}_ratio")
        if own_width is not None and own_ratio is not None:
            raise HpxferError(f"give one of {kind}_ratio and {kind}_width, got both")
        found = own_width if own_width is not None else (ratio if own_ratio is None else own_ratio) * width
        return _whole(found, f"{kind}_width", f" at width {width}")

    num_shared = change.num_shared if change.num_shared is not None else 0 if is_dense else base.num_shared
    shared = (base.shared_width or base.expert_width or base.dense_width) if num_shared else 0
    num_experts, num_active = _experts(base, change)
    shape = replace(
        base,
        width=width,
        depth=change.depth or base.depth,
        **_heads(base, change, width),
        num_experts=num_experts,
        num_active=num_active,
        expert_width=0 if is_dense else size("expert", base.expert_ratio),
        num_shared=num_shared,
        shared_width=size("shared", shared / base.width),
        num_groups=change.num_groups or (1 if is_dense else base.num_groups),
        batch_tokens=change.batch_tokens or change.batch_samples or base.batch_tokens,
        steps=change.steps or base.steps,
        dense_width=0,
    )
    if has_dense(shape, model):
        # By default the ratio of the base or, of a base without a dense FFN, of what a token uses of its experts.
        shape = replace(shape, dense_width=size("dense", (base.dense_width or base.active_width) / base.width))
    elif change.dense_width or change.dense_ratio:
        raise HpxferError("no block has a dense FFN at this shape (see moe_every and dense_first); take its size out")
    if problem := check_trainable(shape, family_of(model).row_multiple):
        raise HpxferError(problem)
    return shape


def _heads(base: Shape, change: ShapeChange, width: int) -> dict[str, Any]:
    """Return num_heads and kv_heads. Raise HpxferError if they cannot follow the change.

    By default the heads follow the width, and those of keys and values follow the heads.
    """
    heads = change.num_heads
    if heads is None and base.num_heads:
        heads = _whole(base.num_heads * width / base.width, "num_heads", f" at width {width}; give num_heads")
    kv_heads = change.kv_heads
    if kv_heads is None and base.kv_heads:
        at = f" at a group of {base.query_heads // base.kv_heads} heads; give kv_heads"
        of_queries = heads or width // max(1, base.head_dim)
        kv_heads = _whole(of_queries / (base.query_heads // base.kv_heads), "kv_heads", at)
    return heads_of(width, base.head_dim, heads, kv_heads)


def _experts(base: Shape, change: ShapeChange) -> tuple[int, int]:
    """Return num_experts and num_active. Raise HpxferError if they cannot follow the change."""
    given = [bool(dim) for dim in (change.num_experts, change.num_active, change.expert_ratio or change.expert_width)]
    if change.num_experts == 0:
        if any(given):
            raise HpxferError("num_experts 0 makes a dense shape, which has no active experts; take their sizes out")
        return 0, 0
    if not base.num_experts and any(given) and not all(given):
        needed = "num_experts, num_active and one of expert_ratio and expert_width"
        raise HpxferError(f"the base is dense, so a shape with experts must give {needed}")
    num_experts = change.num_experts or base.num_experts
    if change.num_active is not None or not base.num_experts:
        return num_experts, change.num_active or 0
    follows = base.num_active * num_experts / base.num_experts
    if follows != int(follows) or follows < 1:
        rule = f"num_active must follow num_experts to hold kappa {base.kappa:g}, got {follows:g} of {num_experts}"
        raise HpxferError(f"{rule}; give num_active, or another num_experts")
    return num_experts, int(follows)


def axes_of(spec: SweepSpec) -> tuple[Axis, ...]:
    """Return every axis of a checked sweep. The base is a point of each."""
    found: dict[str, dict[Shape, str | None]] = {name: {spec.base_shape: None} for name in spec.axes}
    for _, name, entry in entries(spec):
        schedule = entry.schedule if isinstance(entry, ShapeChange) else None
        shape, known = shape_at(spec, name, entry), found[name]
        known[shape] = known.get(shape) if schedule is None else schedule.decay
    out = []
    for name, decays in found.items():
        asked, shapes = spec.axes[name].scale, list(decays)
        measured = scale_of(name, shapes, spec.model) if spec.model.own is None else own_scale(name, asked, shapes)
        by_scale = sorted(zip(measured[1], shapes, strict=True), key=lambda pair: pair[0])
        points = (AxisPoint(shape=shape, scale=scale, own_decay=decays[shape]) for scale, shape in by_scale)
        out.append(Axis(name=name, scale_name=measured[0], points=tuple(points)))
    return tuple(out)


def centered(spec: SweepSpec) -> SweepSpec:
    """Return the sweep with exponents of two in the place of `around`.

    It stays where there is no base value above zero. The rules of the grid then refuse it.
    """
    known, grid = base_values(spec), dict(spec.grid)
    for name, values in spec.grid.items():
        base, ends = known.get(name, 1.0 if "." in name else 0.0), values.around
        if ends is not None and 0 < base < math.inf:
            grid[name] = GridValues(log2=tuple(math.log2(base) + octaves for octaves in ends), step=values.step)
    return spec if grid == spec.grid else spec.model_copy(update={"grid": grid})
