"""Cost of the diffusion transformer: FLOPs of a sample, and the memory of a trial."""

from __future__ import annotations

from hpxfer.model.cost import active_elements
from hpxfer.model.dit.layout import FORWARD_ROLES, PARTS, parameters
from hpxfer.model.dit.section import num_tokens, options_of, patch_features
from hpxfer.model.parameters import Memory
from hpxfer.model.transformer.cost import Parts, blocks_memory, norm_bytes, number_bytes
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting

_FLOAT = 4
# What a sample meets once, and a token not at all.
_OF_SAMPLE = ("time_in", "time_out", "modulation", "final_modulation")


def flops_per_sample(shape: Shape, setting: Setting) -> float:
    """Return the training FLOPs of one sample.

    6 FLOPs per matmul parameter that a sample meets, those of tokens times its tokens, and 12 * depth * attention width
    * tokens for the attention of each token.
    """
    tokens = num_tokens(setting)
    found = {
        spec.name: active_elements(spec, shape)
        for spec in parameters(shape, setting)
        if len(spec.size) >= 2 and spec.name not in ("label", "position")
    }
    of_sample = sum(found.pop(name) for name in _OF_SAMPLE)
    attention = 12 * shape.depth * shape.attention_width * tokens
    return float(6 * of_sample + tokens * (6 * sum(found.values()) + attention))


def memory(shape: Shape, setting: Setting, cuda: bool) -> Memory:
    """Return the memory of one trial beside its state."""
    size, width, tokens = number_bytes(setting), shape.width, num_tokens(setting)
    own = options_of(setting)
    features, batch = patch_features(own), setting.batch_tokens
    norm = norm_bytes(width, setting, size, cuda, gains=True)
    modulation = (size + _FLOAT * (size < _FLOAT)) * PARTS * width + 2 * _FLOAT * width  # per sample, and 1 + scale
    condition = size * (own.frequencies + 4 * width) + _FLOAT * width
    return blocks_memory(
        *(shape, setting, cuda, parameters(shape, setting), FORWARD_ROLES),
        Parts(
            tokens=batch * tokens,
            norm=norm,
            # Beside the last norm: patches, the velocity and what it misses.
            ends=norm + 3 * _FLOAT * features + (_FLOAT * width if size < _FLOAT else 0),
            head=_FLOAT * (width + 2 * features),
            of_attention=size * width + modulation // tokens,  # what a gate multiplies
            of_ffn=size * width,
            passing=2 * size * width,
            everywhere=batch * condition,
        ),
    )
