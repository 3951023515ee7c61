"""Cost of the GPT, counted from its layout: FLOPs, logits, and the memory of a trial."""

from __future__ import annotations

from hpxfer.model.cost import active_elements
from hpxfer.model.gpt.layout import FORWARD_ROLES, gpt_parameters
from hpxfer.model.parameters import Memory
from hpxfer.model.transformer.cost import LOOKUPS, Parts, blocks_memory, norm_bytes, number_bytes
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting

_INDEX = 8  # bytes of torch's own indices
_FLOAT = 4


def flops_per_token(shape: Shape, setting: Setting) -> float:
    """Return the training FLOPs per token.

    6 FLOPs per matmul parameter that a token meets, with the readout and without the lookups, and
    12 * depth * attention width * context for attention.
    """
    matmul = sum(
        active_elements(spec, shape)
        for spec in gpt_parameters(shape, setting)
        if spec.role not in LOOKUPS and len(spec.size) >= 2 and not spec.name.endswith("_bias")
    )
    if setting.tied_embeddings:
        matmul += shape.width * setting.vocab_size
    return float(6 * matmul + 12 * shape.depth * shape.attention_width * setting.context)


def logits_per_token(shape: Shape, setting: Setting) -> int:
    """Return the number of logits per token."""
    return setting.vocab_size


def gpt_memory(shape: Shape, setting: Setting, cuda: bool) -> Memory:
    """Return the memory of one trial beside its state and logits."""
    size, tokens, masked = number_bytes(setting), setting.batch_tokens, setting.document_eos is not None
    norm = norm_bytes(shape.width, setting, size, cuda, gains=setting.norm_gains)
    # The kernel that takes a mask on CUDA keeps logits and weights in float32 (derived: never run on a GPU).
    of_attention = 2 * _FLOAT * shape.query_heads * setting.context if cuda and masked else 0
    return blocks_memory(
        *(shape, setting, cuda, gpt_parameters(shape, setting), FORWARD_ROLES),
        Parts(
            tokens=tokens,
            norm=norm,
            # h and its deviation; the stream is not kept
            fused_norm=size * shape.width * (2 if setting.norm_gains else 1) + _FLOAT,
            # Beside the last norm: inputs, targets, losses and their gradients.
            ends=norm + 3 * _INDEX + 2 * _FLOAT,
            head=2 * shape.width * size,  # the gradient of h, and h times that of the loss
            of_attention=of_attention,
            # What keeps documents apart: a number for each two tokens of a window, in all blocks the same.
            everywhere=tokens * setting.context * size if masked else 0,
            outside=size * shape.width * setting.vocab_size if setting.tied_embeddings else 0,
        ),
    )
