"""Layout: the tensors of the built-in GPT, their roles and their shapes. Knows no torch: planning counts with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpxfer.shape import Shape
from hpxfer.trial import Setting


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One named tensor of the model; with `layers` copies of it, one a block. Matrices are [in, out]."""

    name: str
    role: str
    size: tuple[int, ...]
    layers: int = 1

    @property
    def numel(self) -> int:
        """Elements of one copy."""
        return math.prod(self.size)


def tensors(shape: Shape, setting: Setting) -> tuple[Tensor, ...]:
    """Return every trained tensor of one trial."""
    dim, hidden, num_experts = shape.width, shape.expert_width, shape.num_experts
    depth, vocab = shape.depth, setting.vocab_size

    def block(name: str, role: str, *size: int) -> Tensor:
        return Tensor(name=name, role=role, size=size, layers=depth)

    out = [
        Tensor(name="embedding", role="embedding", size=(vocab, dim)),
        Tensor(name="position", role="position", size=(setting.context, dim)),
        block("attn_q", "attn_q", dim, dim),
        block("attn_k", "attn_k", dim, dim),
        block("attn_v", "attn_v", dim, dim),
        block("attn_out", "attn_out", dim, dim),
        block("router", "router", dim, num_experts),
        block("expert_in", "expert_in", num_experts, dim, hidden),
        block("expert_out", "expert_out", num_experts, hidden, dim),
    ]
    if setting.norm_gains:
        out += [block("attn_norm", "norm", dim), block("moe_norm", "norm", dim)]
        out += [Tensor(name="final_norm", role="final_norm", size=(dim,))]
    if setting.biases:
        out += [block(f"{name}_bias", "hidden_bias", dim) for name in ("attn_norm", "moe_norm")]
        out += [block(f"{name}_bias", "hidden_bias", dim) for name in ("attn_q", "attn_k", "attn_v", "attn_out")]
        out += [block("expert_in_bias", "hidden_bias", num_experts, hidden)]
        out += [block("expert_out_bias", "hidden_bias", num_experts, dim)]
        out += [Tensor(name="final_norm_bias", role="hidden_bias", size=(dim,))]
    if not setting.tied_embeddings:
        out += [Tensor(name="readout", role="readout", size=(dim, vocab))]
    return tuple(out)
