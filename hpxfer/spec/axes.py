"""Axes: the shapes along each axis of a sweep file, the scale that they are measured on, and octaves around a value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.registry import rows_of
from hpxfer.scaling.shape import EXPERT_DIMS, OwnDim, Shape, check_trainable, heads_of
from hpxfer.spec.blocks import Options, has_dense, moe_blocks
from hpxfer.spec.fields import GridValues
from hpxfer.spec.own import OF_RUN, changed, own_scale, own_shape
from hpxfer.spec.sweep import AxisSpec, ShapeChange, SweepSpec, base_values
from hpxfer.spec.yaml_file import KeyPath

_WIDTHS = ("expert_width", "shared_width", "dense_width")
_DIMS = ("width", "depth", "num_experts", "num_active", *_WIDTHS, "num_shared", "num_groups", "batch_tokens", "steps")


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """An axis is measured by `name` if nothing else changes but `follows`, and everything in `holds` stays."""

    name: str
    follows: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()


# The first rule counts that fits and has another value for each shape.
_RULES = (
    _Rule(name="width", follows=_WIDTHS, holds=("expert_ratio", "shared_ratio", "dense_ratio")),
    _Rule(name="depth"),
    _Rule(name="num_active"),
    _Rule(name="num_experts", follows=("num_active",)),
    _Rule(name="expert_width"),
    _Rule(name="num_active", follows=("num_experts", "expert_width"), holds=("kappa", "routed_width")),
    _Rule(name="active_width", follows=("num_shared", "shared_width")),  # num_shared may be 0, which has no log
    _Rule(name="num_groups"),
    _Rule(name="dense_width"),
    _Rule(name="batch_tokens"),
    _Rule(name="batch_tokens", follows=("steps",), holds=("tokens",)),
    _Rule(name="steps"),
)

# A regime of the MLP mixture, which its papers measure by the width.
_REGIME = _Rule(name="width", follows=("num_experts", "num_active", "expert_width"))


def scale_of(axis_name: str, shapes: Sequence[Shape], options: Options) -> tuple[str, list[float]]:
    """Return what the scale of an axis counts and its value at every shape, always > 0.

    If a single dimension changes, the scale is that dimension. Otherwise it is the quantity that has most values: the
    weights in attention and FFNs, the hidden features that a token uses, or the tokens of the run.
    """
    if axis_name == "expert_ratio" and shapes[0].num_experts:
        return "expert_ratio", [shape.expert_ratio for shape in shapes]
    for rule in _RULES if options.mlp is None else (*_RULES, _REGIME):
        fixed = (*(dim for dim in _DIMS if dim != rule.name and dim not in rule.follows), *rule.holds)
        scales = [_number(shape, rule.name) for shape in shapes]
        if _differ(scales) and all(len({_number(shape, name) for shape in shapes}) == 1 for name in fixed):
            return rule.name, scales
    candidates = [("hidden weights", [float(_hidden_weights(shape, options)) for shape in shapes])]
    candidates += [(name, [_number(shape, name) for shape in shapes]) for name in ("active_width", "tokens")]
    return max(candidates, key=lambda candidate: len(set(candidate[1])))  # the first of equals


def _differ(scales: Sequence[float]) -> bool:
    return len(set(scales)) == len(scales)


def _number(shape: Shape, name: str) -> float:
    match name:
        case "shared_ratio":
            return shape.shared_width / shape.width
        case "routed_width":
            return float(shape.num_active * shape.expert_width)
        case _:
            return float(getattr(shape, name))


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


def entries(axis: AxisSpec) -> Iterator[tuple[KeyPath, Entry]]:
    """Yield the entries of an axis, each with its key path below the axis."""
    for index, value in enumerate(axis.values or ()):
        yield ("values", index), value
    for index, change in enumerate(axis.shapes or ()):
        yield ("shapes", index), change


def shape_at(spec: SweepSpec, name: str, axis: AxisSpec, entry: Entry) -> Shape:
    """Return the shape that an entry of an axis stands for. Raise HpxferError if no model can have it."""
    base = spec.base_shape
    if spec.model.own is not None:
        return _own_shape_at(spec.model.own, base, spec.model.dims, name, entry)
    change = entry if isinstance(entry, ShapeChange) else _change(base, name, axis, entry)
    return moved(base, change, spec.model)


def _own_shape_at(
    own: Mapping[str, OwnDim], base: Shape, dims: Mapping[str, int | str] | None, name: str, entry: Entry
) -> Shape:
    """Return the shape of a user's own trainer that an entry of an axis stands for."""
    if not isinstance(entry, ShapeChange):
        entry = _of_run(base, name, entry) if name in OF_RUN else ShapeChange.model_construct(own={name: entry})
    new = changed(own, entry.own or {})
    batch = entry.batch_tokens or entry.batch_samples or base.batch_tokens
    return own_shape(new, dims, batch=batch, steps=entry.steps or base.steps)


def _of_run(base: Shape, name: str, value: float) -> ShapeChange:
    """Return the change that a bare value of the axis steps or batch_tokens stands for."""
    number = _whole(value, name, "")
    if number < 1:
        raise HpxferError(f"{name} must be at least 1, got {number}")
    if name == "steps":
        return ShapeChange.model_construct(steps=number)
    steps = _whole(base.tokens / number, "steps", f" at {base.tokens} in all")
    return ShapeChange.model_construct(batch_tokens=number, steps=steps)


def _change(base: Shape, name: str, axis: AxisSpec, value: float) -> ShapeChange:
    """Return the change that a bare value of an axis stands for."""
    dim = DIMENSION[name]
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
    number = _whole(value, name, "")
    changed: dict[str, Any] = {dim: number}
    match name:
        case "experts" if axis.num_active is not None:
            changed["num_active"] = axis.num_active
        case "capacity":
            changed["num_active"] = base.num_active
        case "granularity":
            experts = base.num_experts * number / base.num_active
            changed["num_experts"] = _whole(experts, "num_experts", f" at kappa {base.kappa:g}")
            routed = base.num_active * base.expert_width
            changed["expert_width"] = _whole(routed / number, "expert_width", f" at num_active * expert_width {routed}")
        case "batch":
            changed["steps"] = _whole(base.tokens / number, "steps", f" at {base.tokens} tokens in all")
    return ShapeChange.model_construct(**changed)  # `moved` checks the numbers


def _whole(value: float, name: str, at: str) -> int:
    if not math.isclose(value, round(value), rel_tol=1e-9):
        raise HpxferError(f"{name} must be a whole number, got {value:g}{at}")
    return round(value)


def moved(base: Shape, change: ShapeChange, model: Options) -> Shape:
    """Return `base` with `change` applied. By default num_active follows num_experts, and hidden sizes the width.

    A change to no experts gives a dense shape, without shared experts and groups. A dense size is there where some
    block has a dense FFN. Shared experts are as wide as the base's or, if it has none, as its routed experts or its
    dense FFN.
    """
    width = change.width or base.width
    is_dense = change.num_experts == 0
    num_shared = change.num_shared if change.num_shared is not None else 0 if is_dense else base.num_shared
    shared = (base.shared_width or base.expert_width or base.dense_width) if num_shared else 0
    shape = replace(
        base,
        width=width,
        depth=change.depth or base.depth,
        **_heads(base, change, width),
        **_experts(base, change),
        num_shared=num_shared,
        shared_width=_size("shared", change, width, shared / base.width),
        num_groups=change.num_groups or (1 if is_dense else base.num_groups),
        batch_tokens=change.batch_tokens or change.batch_samples or base.batch_tokens,
        steps=change.steps or base.steps,
    )
    shape = replace(shape, **_dense(base, change, shape, model))
    if problem := check_trainable(shape, rows_of("family").get(model.family).row_multiple):
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


def _experts(base: Shape, change: ShapeChange) -> dict[str, Any]:
    """Return num_experts, num_active and expert_width. Raise HpxferError if they cannot follow the change."""
    size = change.expert_ratio or change.expert_width
    if change.num_experts == 0:
        if change.num_active or size:
            raise HpxferError("num_experts 0 makes a dense shape, which has no active experts; take their sizes out")
        return dict.fromkeys(EXPERT_DIMS, 0)
    given = [bool(dim) for dim in (change.num_experts, change.num_active, size)]
    if not base.num_experts and any(given) and not all(given):
        raise HpxferError(
            "the base is dense, so a shape with experts must give num_experts, num_active and one of expert_ratio and "
            "expert_width"
        )
    num_experts = change.num_experts or base.num_experts
    num_active = change.num_active or base.num_active
    if change.num_active is None and base.num_experts:
        follows = base.num_active * num_experts / base.num_experts
        if follows != int(follows) or follows < 1:
            raise HpxferError(
                f"num_active must follow num_experts to hold kappa {base.kappa:g}, got {follows:g} of {num_experts}; "
                "give num_active, or another num_experts"
            )
        num_active = int(follows)
    expert_width = _size("expert", change, change.width or base.width, base.expert_ratio)
    return {"num_experts": num_experts, "num_active": num_active, "expert_width": expert_width}


def _dense(base: Shape, change: ShapeChange, shape: Shape, blocks: Options) -> dict[str, Any]:
    """Return dense_width: 0 if no block of `shape` has a dense FFN. Raise HpxferError if it is given all the same.

    By default it keeps the ratio of the base or, of a base without a dense FFN, of what a token uses of its experts.
    """
    if has_dense(shape, blocks):
        ratio = (base.dense_width or base.active_width) / base.width
        return {"dense_width": _size("dense", change, shape.width, ratio)}
    if change.dense_width or change.dense_ratio:
        raise HpxferError("no block has a dense FFN at this shape (see moe_every and dense_first); take its size out")
    return {"dense_width": 0}


def _size(kind: str, change: ShapeChange, width: int, ratio: float) -> int:
    """Return the hidden size that the change gives, or by default `ratio` times the width."""
    asked_width, asked_ratio = getattr(change, f"{kind}_width"), getattr(change, f"{kind}_ratio")
    if asked_width is not None and asked_ratio is not None:
        raise HpxferError(f"give one of {kind}_ratio and {kind}_width, got both")
    size = asked_width if asked_width is not None else (ratio if asked_ratio is None else asked_ratio) * width
    return _whole(size, f"{kind}_width", f" at width {width}")


def axes_of(spec: SweepSpec) -> tuple[Axis, ...]:
    """Return every axis of a checked sweep. The base is a point of each."""
    out = []
    for name, axis in spec.axes.items():
        given = {shape_at(spec, name, axis, entry): entry for _, entry in entries(axis)}
        own = {
            shape: entry.schedule.decay
            for shape, entry in given.items()
            if isinstance(entry, ShapeChange) and entry.schedule is not None
        }
        shapes = list(dict.fromkeys([spec.base_shape, *given]))
        if spec.model.own is None:
            scale_name, scales = scale_of(name, shapes, spec.model)
        else:
            scale_name, scales = own_scale(name, axis.scale, shapes)
        points = sorted(
            (AxisPoint(shape=s, scale=x, own_decay=own.get(s)) for s, x in zip(shapes, scales, strict=True)),
            key=lambda p: p.scale,
        )
        out.append(Axis(name=name, scale_name=scale_name, points=tuple(points)))
    return tuple(out)


def centered(spec: SweepSpec) -> SweepSpec:
    """Return the sweep with exponents of two in the place of `around`.

    It stays where it is malformed, or where there is no base value above zero. The rules of the grid then refuse it.
    """
    if all(values.around is None for values in spec.grid.values()):
        return spec
    known = base_values(spec)
    grid = {
        name: _centered(values, known.get(name, 1.0 if "." in name else None)) for name, values in spec.grid.items()
    }
    return spec.model_copy(update={"grid": grid})


def _centered(values: GridValues, base: float | None) -> GridValues:
    """Return the values of one HP around its base value."""
    is_alone = values.values is None and values.log2 is None
    is_range = values.around is not None and len(values.around) == 2 and values.around[0] <= values.around[1]
    if values.around is None or not is_range or not is_alone or base is None or not 0 < base < math.inf:
        return values
    low, high = (math.log2(base) + octaves for octaves in values.around)
    return GridValues(log2=(low, high), step=values.step)
