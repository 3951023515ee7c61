"""The weights of the block: their initial values, their changes since, and the numbers of their roles.

Letters: K seeds, P samples, D inputs, N width, E experts, H features that an expert's output matrix reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hpxfer.errors import HpxferError
from hpxfer.scaling.claims.block import Block
from hpxfer.scaling.evaluate import Multipliers, Parameterization, evaluate, evaluate_globals
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column

# The papers write absolute powers of the dimensions. Those are the factors relative to a shape of ones.
UNIT = Shape(width=1, depth=1, num_experts=1, num_active=1, expert_width=1, head_dim=1)
EXPERT_ROLES = ("expert_in", "expert_out")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The numbers of a shape by role. They are absolute, because the base is a shape of ones."""

    roles: Mapping[str, Multipliers]
    route_scale: float  # on a softmax gate

    def forward(self, role: str) -> float:
        """Return the forward multiplier of a role. That of the experts applies to their sum."""
        return self.roles[role].forward


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The matrices by role, split into their initial values and what training added (exact zeros at first).

    embedding [K, N, D], router [K, E, N], expert_in [K, E, H, N] (two matrices per expert), expert_out [K, E, N, H],
    readout [K, N]. Both parts are stored. A difference of stored weights would lose digits of small updates.
    """

    initial: dict[str, Tensor]
    change: dict[str, Tensor]

    def both(self, role: str) -> tuple[Tensor, Tensor]:
        return self.initial[role], self.change[role]


def rules(choice: Parameterization, shape: Shape, block: Block, optimizer: Column) -> Rules:
    """Return the table's numbers at `shape`. Raise HpxferError if the block cannot have this shape."""
    check_block_shape(shape, block)
    target = replace(shape, depth=1, head_dim=1)
    found = evaluate(choice, UNIT, target, optimizer)
    missing = [role for role in block.roles if role not in found]
    if missing:
        raise HpxferError(
            f"parameterization {choice.name}: the MLP block needs the role {missing[0]}, for which it has no row; "
            "check it with --architecture gpt"
        )
    return Rules(
        roles={role: found[role] for role in block.roles},
        route_scale=evaluate_globals(choice, UNIT, target).route_scale,
    )


def check_block_shape(shape: Shape, block: Block) -> None:
    """Raise HpxferError unless the block can have this shape: one with routed experts only."""
    where = f"block: shape {shape.label()}"
    if not shape.num_experts:
        raise HpxferError(f"{where}: num_experts must be at least 1, got 0; a dense model is checked with gpt")
    for name in ("num_shared", "dense_width"):
        if getattr(shape, name):
            raise HpxferError(f"{where}: {name} must be 0, got {getattr(shape, name)}; check it with gpt")
    if shape.num_groups != 1:
        raise HpxferError(f"{where}: num_groups must be 1, got {shape.num_groups}; check it with gpt")
    if block.experts == "one" and shape.expert_width != shape.width:
        raise HpxferError(
            f"{where}: expert_width must be the width {shape.width} where an expert is a single matrix, "
            f"got {shape.expert_width}"
        )


def generator(key: str) -> torch.Generator:
    """Return a random generator that depends on `key` alone."""
    number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1
    return torch.Generator().manual_seed(number)


def _normal(size: Sequence[int], keys: Sequence[str], dtype: torch.dtype) -> Tensor:
    return torch.stack([torch.randn(tuple(size), generator=generator(key), dtype=dtype) for key in keys])


def draw(
    choice: Parameterization, shape: Shape, block: Block, rule: Rules, seeds: Sequence[int], dtype: torch.dtype
) -> Weights:
    """Return the initial weights: normal numbers with the std of their role. Tied experts share a single draw.

    A matrix depends on its seed, its role and the shape. The embedding's std is 1. Its fan-in is a constant, which the
    inputs absorb, as they have length 1.
    """
    n, e, h = shape.width, shape.num_experts, shape.expert_width
    sizes = {
        "embedding": (n, block.inputs),
        "router": (e, n),
        "expert_in": (e, h, n),
        "expert_out": (e, n, h),
        "readout": (n,),
    }
    initial = {}
    for role in block.roles:
        tied = choice.structure().tied_experts and role in EXPERT_ROLES
        size = (1, *sizes[role][1:]) if tied else sizes[role]
        std = rule.roles[role].init_std
        keys = [f"{seed}/{role}" for seed in seeds]
        start = std * _normal(size, keys, dtype) if std else torch.zeros(len(seeds), *size, dtype=dtype)
        initial[role] = start.expand(-1, e, -1, -1) if tied else start
    change = {role: torch.zeros(tensor.shape, dtype=dtype) for role, tensor in initial.items()}
    return Weights(initial=initial, change=change)


def inputs(block: Block, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return samples x [P, D] of length 1 and targets y [P], 1 and -1 in turn. All widths and seeds get the same."""
    x = torch.randn(block.samples, block.inputs, generator=generator("x"), dtype=dtype)
    y = 1.0 - 2.0 * (torch.arange(block.samples, dtype=dtype) % 2)
    return x / x.norm(dim=1, keepdim=True), y


def router_bias(
    choice: Parameterization, block: Block, num_experts: int, seeds: Sequence[int], step: int, dtype: torch.dtype
) -> Tensor | None:
    """Return the bias b_t of the router's logits at `step`, [K, 1, E], or None if the table has none.

    b_t ~ N(0, std^2) depends on (seed, step) alone, so that it is the same at every width (Why Routers Freeze,
    Algorithm 1). With `fixed` it is always b_0.
    """
    std = choice.structure().router_bias_std
    if not std:
        return None
    at = 0 if block.router_bias == "fixed" else step
    return std * _normal((1, num_experts), [f"{seed}/b_t/{at}" for seed in seeds], dtype)
