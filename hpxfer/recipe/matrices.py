"""Matrices: which matrices in a tensor Muon orthogonalizes by themselves, and the scale of each. Imports no torch.

A tensor is a stack [..., rows, columns]. Experts, or all layers, may lie in front. Of its last two dimensions one is
the width, and several matrices may lie side by side along the other one: queries, keys and values, or gate and input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError
from hpxfer.recipe.modules import class_of
from hpxfer.scaling.muon import Muon
from hpxfer.scaling.roles import fan_in_dim, fan_out_dim
from hpxfer.scaling.shape import Shape

if TYPE_CHECKING:
    import torch

# Modules whose rows are query, key and value of one head, or group of heads, and then those of the next one.
BY_HEAD = ("query_key_value", "linear_qkv", "kv_b_proj", "wkv_b", "linear_kv_up_proj")


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """How a tensor splits. `parts` are slices (start, stop, step) along `axis`, -2 or -1. A whole tensor has none.

    `scales` has the scale s of each part, and `sizes` the (in, out) of each, or of the whole.
    """

    axis: int
    parts: tuple[tuple[int, int, int], ...]
    scales: tuple[float, ...]
    sizes: tuple[tuple[int, int], ...]

    @property
    def text(self) -> str:
        """The scales in words, e.g. `s = 0.5 of 128 x 32`, where sizes are in x out."""
        found = dict.fromkeys(zip(self.scales, self.sizes, strict=True))
        return ", ".join(f"s = {scale:.6g} of {fan_in} x {fan_out}" for scale, (fan_in, fan_out) in found)


def matrices_of(
    roles: Sequence[str], size: tuple[int, ...], module: torch.nn.Module, name: str, shape: Shape, muon: Muon
) -> Matrices:
    """Return the matrices in a tensor that a module has, and whose dotted name in the model is given.

    Raises HpxferError if the tensor does not show them.
    """
    path, _, last = name.rpartition(".")
    is_out = [role.endswith("_out") for role in roles]
    if len(set(is_out)) > 1:
        raise HpxferError("matrices that read and matrices that write the residual stream must be tensors of their own")
    if len(roles) > 1 and (word := path.rpartition(".")[2]) in BY_HEAD:
        raise HpxferError(
            f"the rows of {word} alternate from head to head; split it, or give it one role, as one matrix"
        )
    nominal = [getattr(shape, fan_in_dim(role) if role.endswith("_out") else fan_out_dim(role)) for role in roles]
    by_head = muon.heads == "split" and roles[0].startswith("attn")
    is_one = len(roles) == 1 and not by_head and nominal[0] == shape.width
    rows_in = _rows_are_inputs(size, module, last, shape, is_out=is_out[0], is_one=is_one)
    axis = -2 if rows_in == is_out[0] else -1  # along which matrices lie side by side: it is not the width
    other, along = size[-3 - axis], size[axis]
    head_dim = shape.head_dim if by_head else 0
    lengths = _lengths(roles, size, along, nominal, head_dim)
    is_other = roles[0] in ("attn_q", "attn_k", "attn_v", "router") and along not in (nominal[0], head_dim)
    if muon.scale != "spectral" and len(roles) == 1 and is_other:
        raise HpxferError(
            f"under the scale {muon.scale} its LR follows from its outputs at base and target, and {roles[0]} has "
            f"{nominal[0]} by the target's shape, got {along}; correct the shape, or take the scale spectral"
        )
    step = len(lengths) if len(lengths) > 1 and not getattr(module, "is_concatenated", True) else 1
    if step > 1 and len({length for _, length in lengths}) > 1:
        raise HpxferError("matrices whose rows alternate must have one size")
    parts, sizes = [], []
    for at, (role, length) in enumerate(lengths):
        start = at if step > 1 else sum(before for _, before in lengths[:at])
        each = shape.head_dim if by_head and role.startswith("attn") else length
        if length % each:
            raise HpxferError(f"heads of {each} features must divide the {length} features of {role}")
        for first in range(start, start + length * step, each * step):
            parts.append((first, first + (each - 1) * step + 1, step))
            sizes.append((each, other) if is_out[0] else (other, each))
    scales = tuple(muon.factor(*each) for each in sizes)
    if len(parts) == 1:
        axis, parts = -2, []
    return Matrices(axis=axis, parts=tuple(parts), scales=scales, sizes=tuple(sizes))


def _rows_are_inputs(
    size: tuple[int, ...], module: torch.nn.Module, name: str, shape: Shape, *, is_out: bool, is_one: bool
) -> bool:
    """Return whether the rows of the matrices are their inputs, as those of a linear layer are not."""
    from torch import nn

    if name == "weight" and len(size) == 2:
        if isinstance(module, nn.Linear):
            return False
        if class_of(module).__name__ == "Conv1D":  # of transformers, [in, out]
            return True
    known = getattr(module, "is_transposed", None)  # of the experts of transformers
    if isinstance(known, bool) and len(size) > 2:
        return known
    rows, columns = (length == shape.width for length in size[-2:])
    if rows and columns and not is_one:
        raise HpxferError(
            f"its rows and its columns both have the width {shape.width}, so that nothing says along which of them its "
            "matrices lie; give the module is_transposed, True for [in, out] and False for [out, in], or split it"
        )
    if not rows and not columns:
        raise HpxferError(f"its last two dimensions must be rows and columns, one of them the width {shape.width}")
    return columns if is_out else rows


def _lengths(
    roles: Sequence[str], size: tuple[int, ...], along: int, nominal: Sequence[int], head_dim: int
) -> list[tuple[str, int]]:
    """Return the matrices that lie side by side, as pairs of role and length.

    `nominal` are the lengths by the target's shape, and `head_dim` is 0 where heads are not taken apart.
    """
    role = roles[0]
    if len(roles) > 1:
        if sum(nominal) == along:
            return list(zip(roles, nominal, strict=True))
        if size[0] == len(roles) and set(nominal) == {along} and len(size) > 2:
            return [(role, along)]  # they lie in front
        listed = " + ".join(f"{role} {length}" for role, length in zip(roles, nominal, strict=True))
        raise HpxferError(f"its matrices must lie side by side as {listed}, by the target's shape, got {along}")
    is_one = role.startswith(("attn", "router")) or role.endswith("modulation")
    if not is_one and along > nominal[0] and along % nominal[0] == 0:
        return [(role, nominal[0])] * (along // nominal[0])  # those of all experts
    apart = head_dim or math.prod(size[:-2]) > 1
    if apart and role.startswith("attn") and along not in (nominal[0], head_dim):
        raise HpxferError(f"its heads must lie in one dimension with their features, as {nominal[0]}, got {along}")
    return [(role, along)]
