"""Cost: parameters and FLOPs of a trial, counted from its layout."""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.model.layout import tensors
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting

_LOOKUPS = ("embedding", "position")
_EXPERTS = ("expert_in", "expert_out", "expert_gate")  # the routed ones


@dataclass(frozen=True, kw_only=True)
class ParamCount:
    """Trained parameters: all of them, and those that one token meets (num_active of num_experts)."""

    total: int
    active: int


def count_params(shape: Shape, setting: Setting) -> ParamCount:
    """Return the parameters of one trial. A tied table counts once."""
    total = active = 0
    for tensor in tensors(shape, setting):
        count = tensor.numel * tensor.layers
        total += count
        active += _met(tensor.name, count, shape)
    return ParamCount(total=total, active=active)


def flops_per_token(shape: Shape, setting: Setting) -> float:
    """Return training FLOPs a token.

    6 x the matmul parameters that it meets (the readout in, the lookups out) + 12 depth width context for attention.
    """
    matmul = sum(
        _met(tensor.name, tensor.numel * tensor.layers, shape)
        for tensor in tensors(shape, setting)
        if tensor.role not in _LOOKUPS and len(tensor.size) >= 2 and not tensor.name.endswith("_bias")
    )
    if setting.tied_embeddings:
        matmul += shape.width * setting.vocab_size
    return float(6 * matmul + 12 * shape.depth * shape.width * setting.context)


def train_flops(shape: Shape, setting: Setting) -> float:
    """Return the FLOPs of one trial's training steps."""
    return flops_per_token(shape, setting) * setting.batch_tokens * setting.steps


def _met(name: str, count: int, shape: Shape) -> int:
    """Return how many of a tensor's parameters one token meets."""
    if name.removesuffix("_bias") in _EXPERTS:
        return count * shape.num_active // shape.num_experts
    return count
