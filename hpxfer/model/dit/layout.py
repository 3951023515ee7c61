"""Layout of the diffusion transformer: its parameters, their roles and their sizes.

Letters: D width, N numbers of a patch, F frequencies, C classes, S tokens of a sample.
"""

from __future__ import annotations

from typing import Any

from hpxfer.model.dit.section import num_tokens, options_of, patch_features
from hpxfer.model.parameters import ParameterSpec
from hpxfer.model.transformer.layout import (
    ATTENTION,
    attention_parameters,
    ffn_roles,
    ffns,
    router_parameters,
)
from hpxfer.scaling.shape import Shape
from hpxfer.spec import Options, moe_blocks
from hpxfer.trial import Setting

# The roles that have a forward multiplier. The model applies each multiplier in exactly one place.
FORWARD_ROLES = ("attn_out", "router", "expert_out", "shared_out", "dense_out", "readout")
# Shift, scale and gate of both branches, and shift and scale before the readout.
PARTS, LAST_PARTS = 6, 2


def roles(shape: Shape, options: Options) -> tuple[str, ...]:
    """Return the roles of the model's parameters at `shape`, and `router_bias` where there are routers."""
    own = _own(options)
    return (
        "patch_in",
        *(("position",) if own.positions == "learned" else ()),
        *("time_in", "time_out"),
        *(("label",) if own.classes_used else ()),
        *("modulation", "hidden_bias", *ATTENTION, *ffn_roles(shape, options)),
        *("final_modulation", "final_bias", "readout"),
    )


def _own(options: Options) -> Any:
    """Return the options of the family, of a sweep's section or of a trial's setting."""
    return options_of(options) if isinstance(options, Setting) else options.dit  # type: ignore[attr-defined]


def parameters(shape: Shape, setting: Setting) -> tuple[ParameterSpec, ...]:
    """Return every trained parameter of one trial."""
    width, own, blocks = shape.width, options_of(setting), range(shape.depth)
    features, moe = patch_features(own), moe_blocks(shape, setting)
    out = [ParameterSpec(name="patch_in", role="patch_in", size=(features, width))]
    if own.positions == "learned":
        out.append(ParameterSpec(name="position", role="position", size=(num_tokens(setting), width)))
    out += [
        ParameterSpec(name="time_in", role="time_in", size=(own.frequencies, width)),
        ParameterSpec(name="time_out", role="time_out", size=(width, width)),
    ]
    if own.classes_used:
        out.append(ParameterSpec(name="label", role="label", size=(setting.vocab_size, width)))
    out += [
        ParameterSpec(name="modulation", role="modulation", size=(width, PARTS * width), blocks=blocks),
        ParameterSpec(name="modulation_bias", role="hidden_bias", size=(PARTS * width,), blocks=blocks),
        *attention_parameters(shape, setting),
        *(router_parameters(shape, setting) if moe else ()),
        *ffns(shape, setting),
    ]
    if moe and setting.learned_router_bias:
        out.append(ParameterSpec(name="router_logit_bias", role="hidden_bias", size=(shape.num_experts,), blocks=moe))
    last = LAST_PARTS * width
    return (
        *out,
        ParameterSpec(name="final_modulation", role="final_modulation", size=(width, last)),
        ParameterSpec(name="final_modulation_bias", role="final_bias", size=(last,)),
        ParameterSpec(name="readout", role="readout", size=(width, features)),
    )
