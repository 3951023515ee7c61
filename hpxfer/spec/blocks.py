"""Blocks: which of a model's blocks hold a MoE layer and which a dense FFN, and the roles that its tensors have."""

from __future__ import annotations

from typing import Protocol

from hpxfer.scaling.shape import Shape


class Blocks(Protocol):
    """What places the MoE layers: a sweep's model, or a trial's setting."""

    @property
    def moe_every(self) -> int: ...

    @property
    def dense_first(self) -> int: ...


class Options(Blocks, Protocol):
    """What else decides which tensors there are."""

    @property
    def ffn(self) -> str: ...

    @property
    def norm_gains(self) -> bool: ...

    @property
    def biases(self) -> bool: ...


def moe_blocks(shape: Shape, blocks: Blocks) -> tuple[int, ...]:
    """Return the blocks (from 0, ascending) that hold a MoE layer; the others hold a dense FFN.

    A model with experts has them in every `moe_every`-th block above the first `dense_first`: block i is one if
    i >= dense_first and (i - dense_first + 1) is a multiple of moe_every. A dense model has none.
    """
    if not shape.num_experts:
        return ()
    return tuple(range(blocks.dense_first + blocks.moe_every - 1, shape.depth, blocks.moe_every))


def has_dense(shape: Shape, blocks: Blocks) -> bool:
    """Return whether some block holds a dense FFN."""
    return len(moe_blocks(shape, blocks)) < shape.depth


def gpt_roles(shape: Shape, options: Options) -> tuple[str, ...]:
    """Return the roles of the built-in GPT's tensors at `shape`."""
    roles = ["embedding", "position", "attn_q", "attn_k", "attn_v", "attn_out", "readout"]
    moe = bool(moe_blocks(shape, options))
    branches = {"expert": moe, "shared": moe and shape.num_shared > 0, "dense": has_dense(shape, options)}
    parts = ("in", "gate", "out") if options.ffn == "swiglu" else ("in", "out")
    roles += ["router", "router_bias"] if moe else []
    roles += [f"{branch}_{part}" for branch, there in branches.items() if there for part in parts]
    roles += ["norm", "final_norm"] if options.norm_gains else []
    roles += ["hidden_bias"] if options.biases else []
    return tuple(roles)
