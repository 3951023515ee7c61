"""Layout: the tensors of the built-in GPT, their roles and their shapes. Knows no torch: planning counts with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpxfer.scaling.shape import Shape
from hpxfer.spec.blocks import moe_blocks
from hpxfer.trial import Setting

__all__ = ["Tensor", "moe_blocks", "tensors"]

_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_out")


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One named tensor of the model, with a copy in each of `blocks`; without any it stands outside them, once.

    Matrices are [in, out]; those of experts have the experts in front.
    """

    name: str
    role: str
    size: tuple[int, ...]
    blocks: tuple[int, ...] = ()

    @property
    def layers(self) -> int:
        """How many copies there are."""
        return len(self.blocks) or 1

    @property
    def numel(self) -> int:
        """Elements of one copy."""
        return math.prod(self.size)


def tensors(shape: Shape, setting: Setting) -> tuple[Tensor, ...]:
    """Return every trained tensor of one trial."""
    dim, vocab = shape.width, setting.vocab_size
    everywhere = tuple(range(shape.depth))
    moe = moe_blocks(shape, setting)
    dense = tuple(block for block in everywhere if block not in moe)
    linear = [Tensor(name=name, role=name, size=(dim, dim), blocks=everywhere) for name in _ATTENTION]
    router = [Tensor(name="router", role="router", size=(dim, shape.num_experts), blocks=moe)] if moe else []
    ffns = [
        *_ffn("expert", setting, moe, (shape.num_experts,), dim, shape.expert_width),
        *_ffn("shared", setting, moe, (shape.num_shared,), dim, shape.shared_width),
        *_ffn("dense", setting, dense, (), dim, shape.dense_width),
    ]
    norms = [Tensor(name=name, role="norm", size=(dim,), blocks=everywhere) for name in ("attn_norm", "ffn_norm")]
    last = Tensor(name="final_norm", role="final_norm", size=(dim,))
    out = [
        Tensor(name="embedding", role="embedding", size=(vocab, dim)),
        Tensor(name="position", role="position", size=(setting.context, dim)),
        *(*linear, *router, *ffns),
    ]
    if setting.norm_gains:
        out += [*norms, last]
    if setting.biases:
        out += [_bias(one) for one in (*norms, *linear, *ffns, last)]
    if not setting.tied_embeddings:
        out += [Tensor(name="readout", role="readout", size=(dim, vocab))]
    return tuple(out)


def _ffn(
    kind: str, setting: Setting, blocks: tuple[int, ...], count: tuple[int, ...], dim: int, hidden: int
) -> list[Tensor]:
    """Return the matrices of one kind of FFN, `count` in each of its blocks (one, if empty); none if there are none."""
    if not blocks or 0 in count:
        return []
    out = [Tensor(name=f"{kind}_in", role=f"{kind}_in", size=(*count, dim, hidden), blocks=blocks)]
    if setting.ffn == "swiglu":
        out += [Tensor(name=f"{kind}_gate", role=f"{kind}_gate", size=(*count, dim, hidden), blocks=blocks)]
    return [*out, Tensor(name=f"{kind}_out", role=f"{kind}_out", size=(*count, hidden, dim), blocks=blocks)]


def _bias(of: Tensor) -> Tensor:
    """Return the bias of a norm or a matrix: one number an output feature, for each expert its own."""
    size = of.size if len(of.size) == 1 else (*of.size[:-2], of.size[-1])
    return Tensor(name=f"{of.name}_bias", role="hidden_bias", size=size, blocks=of.blocks)
