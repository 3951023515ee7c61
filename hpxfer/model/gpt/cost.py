"""Cost of the GPT: parameters that a token meets, FLOPs and logits, counted from its layout."""

from __future__ import annotations

from hpxfer.model.gpt.layout import gpt_parameters
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting

_LOOKUPS = ("embedding", "position")
_ROUTED = ("expert_in", "expert_out", "expert_gate")


def active_params(shape: Shape, setting: Setting) -> int:
    """Return the number of parameters that one token meets. A tied table counts once."""
    return sum(_active(spec.name, spec.numel * spec.layers, shape) for spec in gpt_parameters(shape, setting))


def flops_per_token(shape: Shape, setting: Setting) -> float:
    """Return the training FLOPs per token.

    6 FLOPs per matmul parameter that a token meets, with the readout and without the lookups, and
    12 * depth * attention width * context for attention.
    """
    matmul = sum(
        _active(spec.name, spec.numel * spec.layers, shape)
        for spec in gpt_parameters(shape, setting)
        if spec.role not in _LOOKUPS and len(spec.size) >= 2 and not spec.name.endswith("_bias")
    )
    if setting.tied_embeddings:
        matmul += shape.width * setting.vocab_size
    return float(6 * matmul + 12 * shape.depth * shape.attention_width * setting.context)


def logits_per_token(shape: Shape, setting: Setting) -> int:
    """Return the number of logits per token."""
    return setting.vocab_size


def _active(name: str, count: int, shape: Shape) -> int:
    """Return how many of a parameter's `count` elements one token meets."""
    if name.removesuffix("_bias") in _ROUTED:
        return count * shape.num_active // shape.num_experts
    return count
