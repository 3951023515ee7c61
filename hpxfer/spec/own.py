"""Own: the shapes of a user's own trainer, in that trainer's words, and what the tables read of them.

A sweep of the family `user` gives its base as `model.own`. `model.dims` says which of these numbers are the dimensions
that a parameterization knows: `{width: d_model, depth: n_layer}`. A dimension that it does not name is 0, and counts as
one that never changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.scaling.shape import DIMENSIONS, MAX_DIM, OwnDim, Shape, heads_of, own_problem, spell_own

USER = "user"  # the family whose models a user's own trainer trains
# The dimensions that `model.dims` may name. The schedule is `training`'s, whatever the trainer.
NAMED_DIMS = tuple(name for name in DIMENSIONS if name not in ("batch_tokens", "steps"))
# What an axis of a user's own shapes may be measured by, beside the keys of these shapes. A shape may not have keys of
# these names.
OF_RUN = ("batch_tokens", "steps", "tokens")
# The base of a sweep that has another one.
_UNREAD = {"width": 1, "depth": 1, "num_groups": 1}


def _own(value: Any) -> Any:
    if value is not None and (problem := own_problem(value)) is not None:
        raise PydanticCustomError("own", "{why}", {"why": problem})
    return value


OwnDims = Annotated[dict[str, bool | int | float | str], BeforeValidator(_own)]


def with_base(model: Any) -> Any:
    """Return the section `model` of a file. The family `user` gets a base that no one reads, as `own` stands for it."""
    if not isinstance(model, dict) or model.get("family") != USER:
        return model
    if (base := model.get("base")) and _given(base) != _given(_UNREAD):
        raise PydanticCustomError(
            "own", "{why}", {"why": "give own in place of base in the family user, and name its dimensions in dims"}
        )
    return {**model, "base": _UNREAD}


def _given(base: Any) -> Any:
    """Return what a section `base` says beyond its defaults. The dump of a sweep spells them out."""
    return {name: value for name, value in base.items() if value} if isinstance(base, dict) else base


def own_shape(own: Mapping[str, OwnDim], dims: Mapping[str, int | str] | None, *, batch: int, steps: int) -> Shape:
    """Return the Shape of a user's own shape. Raise HpxferError if `dims` cannot be read from it."""
    found = {"width": 0, "depth": 0, **{name: _dim(own, name, value) for name, value in (dims or {}).items()}}
    if (num_heads := found.get("num_heads")) and "head_dim" not in found:
        found["head_dim"] = _head_dim(found["width"], num_heads)
    heads = heads_of(
        found["width"], found.get("head_dim", 0), found.pop("num_heads", None), found.pop("kv_heads", None)
    )
    return Shape(**found, **heads, batch_tokens=batch, steps=steps, own=spell_own(own))


def _head_dim(width: int, num_heads: int) -> int:
    """Return the width of a head where only the number of heads is named. Tables scale attention by it."""
    if width % num_heads:
        raise HpxferError(
            f"dims.num_heads: must divide the width if dims.head_dim is not given, got {num_heads} at width {width}"
        )
    return width // num_heads


def _dim(own: Mapping[str, OwnDim], name: str, value: int | str) -> int:
    if name not in NAMED_DIMS:
        raise HpxferError(f"dims: unknown dimension {shown(name)}; {nearest(name, NAMED_DIMS)}")
    if isinstance(value, str) and value not in own:
        raise HpxferError(f"dims.{name}: must be a key of own or a number, got {shown(value)}; {nearest(value, own)}")
    number = own[value] if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_DIM:
        got = f"{shown(number)} of own.{value}" if isinstance(value, str) else shown(number)
        raise HpxferError(f"dims.{name}: must be a whole number from 0 to {MAX_DIM}, got {got}")
    return number


def changed(base: Mapping[str, OwnDim], change: Mapping[str, OwnDim]) -> dict[str, OwnDim]:
    """Return an own shape with some numbers changed. Raise HpxferError for a key or a kind that the base lacks."""
    for name, value in change.items():
        if name not in base:
            raise HpxferError(f"own: unknown key {shown(name)}; {nearest(name, base)}")
        if _kind(value) != _kind(base[name]):
            raise HpxferError(
                f"own: {name} must be of the kind that it has at the base, {shown(base[name])}, got {shown(value)}"
            )
    return {**base, **{name: like(base[name], value) for name, value in change.items()}}


def _kind(value: OwnDim) -> type:
    return float if _is_number(value) else type(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def like(known: OwnDim, value: OwnDim) -> OwnDim:
    """Return a number of a file as the base has it, as a shape has one spelling and so one id.

    256.0 is 256 where the base has a whole number, and 1 is 1.0 where it has none.
    """
    if isinstance(known, bool) or isinstance(value, bool | str):
        return value
    if isinstance(known, float):
        return float(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def own_scale(axis_name: str, asked: str | None, shapes: Sequence[Shape]) -> tuple[str, list[float]]:
    """Return what the scale of an axis counts, and its value at each of a user's own shapes.

    It is the key that the axis asks for or is named after, else the only number that differs between all shapes. Raise
    HpxferError if there is no such number, or if two shapes share its value.
    """
    keys = [*shapes[0].own_dims, *OF_RUN]
    name = asked or (axis_name if axis_name in keys else _only_change(keys, shapes))
    if name not in keys:
        raise HpxferError(f"scale: must be a key of own, or of the run, got {shown(name)}; {nearest(name, keys)}")
    scales = [_number(shape, name) for shape in shapes]
    if any(scale is None or scale <= 0 for scale in scales):
        raise HpxferError(f"scale: {name} must be a number above 0 at every shape of the axis")
    numbers = [scale for scale in scales if scale is not None]
    if len(set(numbers)) < len(numbers):
        raise HpxferError(f"scale: {name} must differ between the shapes of the axis, as drift is measured along it")
    return name, numbers


def _only_change(keys: Sequence[str], shapes: Sequence[Shape]) -> str:
    """Return the only number that has another value at each shape. Among equals, numbers of the shape come first."""
    found = []
    for name in keys:
        values = [_number(shape, name) for shape in shapes]
        if None not in values and len(set(values)) == len(shapes):
            found.append(name)
    own = [name for name in found if name not in OF_RUN]
    if len(own) == 1:
        return own[0]
    if not own and found:
        return found[0]
    got = f"{', '.join(own)} differ" if own else "none differs"
    raise HpxferError(f"scale: must be given: the number of a shape that the axis is measured by; {got} everywhere")


def _number(shape: Shape, name: str) -> float | None:
    value = getattr(shape, name) if name in OF_RUN else shape.own_dims.get(name)
    return float(value) if value is not None and _is_number(value) else None
