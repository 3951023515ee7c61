"""Cost of the diffusion transformer: FLOPs of a sample, and the memory of a trial."""

from __future__ import annotations

from hpxfer.model.cost import active_elements
from hpxfer.model.dit.layout import parameters
from hpxfer.model.dit.section import num_tokens
from hpxfer.model.parameters import Memory
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting

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
    return Memory(parts={})
