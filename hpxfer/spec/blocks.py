"""Blocks: which of a model's blocks hold a MoE layer and which a dense FFN, and the roles that its tensors have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

from hpxfer.registry import rows_of
from hpxfer.scaling.evaluate import Parameterization, evaluate
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column


class Options(Protocol):
    """What decides which tensors there are: a sweep's model, or a trial's setting."""

    @property
    def family(self) -> str: ...
    @property
    def moe_every(self) -> int: ...
    @property
    def dense_first(self) -> int: ...
    @property
    def ffn(self) -> str: ...
    @property
    def norm_gains(self) -> bool: ...
    @property
    def biases(self) -> bool: ...
    @property
    def qkv_biases(self) -> bool: ...
    @property
    def positions(self) -> str: ...
    @property
    def learned_router_bias(self) -> bool: ...
    @property
    def mlp(self) -> Any: ...  # MLP, or the section of a sweep with fields of the same names


def moe_blocks(shape: Shape, blocks: Options) -> range:
    """Return the blocks (from 0, ascending) that hold a MoE layer. The others hold a dense FFN.

    A model with experts has them in every `moe_every`-th block above the first `dense_first`: block i is one if
    i >= dense_first and (i - dense_first + 1) is a multiple of moe_every. A dense model has none.
    """
    if not shape.num_experts:
        return range(0)
    return range(blocks.dense_first + blocks.moe_every - 1, shape.depth, blocks.moe_every)


def dense_blocks(shape: Shape, blocks: Options) -> Sequence[int]:
    """Return the blocks (from 0, ascending) that hold a dense FFN."""
    return _without(shape.depth, moe_blocks(shape, blocks))


@lru_cache(maxsize=64)  # a plan asks for the same blocks often, and a model may have thousands
def _without(depth: int, blocks: range) -> Sequence[int]:
    if not blocks:
        return range(depth)
    if blocks.step == 1:  # all others lie below
        return range(blocks.start)
    return tuple(block for block in range(depth) if block not in blocks)


def has_dense(shape: Shape, blocks: Options) -> bool:
    """Return whether some block holds a dense FFN."""
    return len(moe_blocks(shape, blocks)) < shape.depth


def family_of(model: Options) -> Any:
    """Return the row of a model's family. Of a plug-in that is not loaded only the shapes are known, as of `user`."""
    rows = rows_of("family")
    return rows.get(model.family if model.family in rows else "user")


def model_roles(shape: Shape, model: Options) -> tuple[str, ...]:
    """Return the roles of a model's parameters at `shape`, and `router_bias` where there are routers."""
    roles: tuple[str, ...] = family_of(model).roles(shape, model)
    return roles


def forward_problem(
    model: Options, choice: Parameterization, optimizer: Column, base: Shape, shapes: Iterable[Shape]
) -> str | None:
    """Return which roles a table gives a forward multiplier at one of `shapes` that the model does not apply, or None.

    The table has rules for all roles of these models.
    """
    applied = rows_of("family").get(model.family).forward_roles
    for shape in shapes:
        factors = evaluate(choice, base, shape, optimizer)
        others = [role for role in model_roles(shape, model) if role not in applied]
        if wrong := [role for role in others if factors[role].forward != 1.0]:
            return (
                f"{choice.name}: {', '.join(wrong)} must have a forward multiplier of 1, got "
                f"{', '.join(f'{factors[role].forward:.6g}' for role in wrong)} at {shape.label()}: models of the "
                f"family {model.family} multiply {', '.join(applied)} and no other role; put the factor into init_std "
                "and lr"
            )
    return None
