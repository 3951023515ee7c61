"""Which module of a user's model is which part: by the roles of its tensors, and by where they lie.

A block is what has the first number in a dotted name: `layers.3` in `layers.3.attention.q.weight`. A MoE layer or a
dense FFN is the smallest module that holds all of its tensors in a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hpxfer.recipe import AT, MultiplyOutput
from hpxfer.scaling.numbers import JOIN, TensorNumbers

OUTSIDE = ("embedding", "position", "final_norm", "readout")
# Part -> the roles of its tensors.
LAYERS = {
    "moe": ("router", "expert_in", "expert_gate", "expert_out", "shared_in", "shared_gate", "shared_out"),
    "dense": ("dense_in", "dense_gate", "dense_out"),
}
# The multiplier of these roles acts on the output of the map, and a hook on a module around the map gives it too.
BRANCH_ROLES = ("attn_out", "shared_out", "dense_out")


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
    """A parameter of the model with its role. Its module is the one that owns it."""

    name: str
    roles: tuple[str, ...]
    tensor: nn.Parameter

    @property
    def role(self) -> str:
        """The first role. Several in one tensor have the same numbers and the same sizes."""
        return self.roles[0]

    @property
    def owner(self) -> str:
        """The name of the module that owns it."""
        return self.name.rpartition(".")[0]

    @property
    def layer(self) -> int | None:
        """The block, or None outside the blocks."""
        return None if self.role in OUTSIDE else block_of(self.name)


def held(rows: Iterable[TensorNumbers], parameters: Mapping[str, nn.Parameter]) -> tuple[Held, ...]:
    """Return the parameters of an explained model that the optimizer moves."""
    return tuple(
        Held(name=row.name, roles=tuple(row.role.partition(AT)[0].split(JOIN)), tensor=parameters[row.name])
        for row in rows
        if row.lr is not None
    )


def block_of(name: str) -> int | None:
    """Return the number of the block that a dotted name lies in."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def block_path(name: str) -> str:
    """Return the name of the block that a dotted name lies in; empty if it lies in none."""
    parts = name.split(".")
    at = next((at for at, part in enumerate(parts) if part.isdecimal()), None)
    return "" if at is None else ".".join(parts[: at + 1])


def layer_modules(tensors: Sequence[Held]) -> dict[tuple[str, int], str]:
    """Return (part, block) -> module of each MoE layer and each dense FFN that is a module of its own."""
    out: dict[tuple[str, int], str] = {}
    for part, roles in LAYERS.items():
        blocks: dict[int, list[Held]] = {}
        for item in tensors:
            if item.role in roles and (block := block_of(item.name)) is not None:
                blocks.setdefault(block, []).append(item)
        for block, inside in blocks.items():
            path = common_path([item.owner for item in inside])
            around = block_path(inside[0].name)
            others = any(item.role not in roles and item.name.startswith(f"{path}.") for item in tensors)
            if path.startswith(f"{around}.") and not others:
                out[part, block] = path
    return out


def common_path(names: Sequence[str]) -> str:
    """Return the longest dotted path that all names start with."""
    shared = []
    for parts in zip(*(name.split(".") for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def factor_around(item: Held, modules: Mapping[str, nn.Module]) -> float:
    """Return the product of the multipliers that hooks apply to modules around a map, inside its block."""
    return math.prod(factor_at(modules[path]) for path in paths_around(item))


def paths_around(item: Held) -> Iterator[str]:
    """Yield the modules around the map that ends a branch, inside its block."""
    block, path = block_path(item.name), item.owner.rpartition(".")[0]
    while item.role in BRANCH_ROLES and path and path != block:
        yield path
        path = path.rpartition(".")[0]


def factor_at(module: nn.Module) -> float:
    """Return the product of the multipliers that hooks apply to what a module returns."""
    out = 1.0
    for hook in module._forward_hooks.values():
        if isinstance(hook, MultiplyOutput):
            out *= hook.by
    return out


def first_tensor(made: object) -> torch.Tensor | None:
    """Return the first floating-point tensor of what a module takes or returns."""
    if isinstance(made, torch.Tensor):
        return made if made.is_floating_point() else None
    if isinstance(made, Mapping):
        made = tuple(made.values())
    if isinstance(made, tuple | list):
        found = (first_tensor(each) for each in made)
        return next((each for each in found if each is not None), None)
    return None
