"""Cost of the GPT: FLOPs and logits, counted from its layout."""

from __future__ import annotations

from hpxfer.model.cost import active_elements
from hpxfer.model.gpt.layout import gpt_parameters
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting

_LOOKUPS = ("embedding", "position")


def flops_per_token(shape: Shape, setting: Setting) -> float:
    """Return the training FLOPs per token.

    6 FLOPs per matmul parameter that a token meets, with the readout and without the lookups, and
    12 * depth * attention width * context for attention.
    """
    matmul = sum(
        active_elements(spec, shape)
        for spec in gpt_parameters(shape, setting)
        if spec.role not in _LOOKUPS and len(spec.size) >= 2 and not spec.name.endswith("_bias")
    )
    if setting.tied_embeddings:
        matmul += shape.width * setting.vocab_size
    return float(6 * matmul + 12 * shape.depth * shape.attention_width * setting.context)


def logits_per_token(shape: Shape, setting: Setting) -> int:
    """Return the number of logits per token."""
    return setting.vocab_size
