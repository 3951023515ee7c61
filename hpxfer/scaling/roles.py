"""Roles: what a tensor is for. Tables, models and recipes name tensors by their role."""

from __future__ import annotations

from typing import Literal

# How the tensors of a role start at the base shape. Only a matrix has a fan-in that grows with a shape: that of an
# `input` is a constant of the data or of the model.
InitKind = Literal["matrix", "input", "embedding", "position", "ones", "zeros"]

ROLES: dict[str, InitKind] = {
    "embedding": "embedding",
    "position": "position",
    "norm": "ones",  # gains inside the blocks
    "final_norm": "ones",  # the gain before the readout, outside the residual branches
    "attn_q": "matrix",
    "attn_k": "matrix",
    "attn_v": "matrix",
    "attn_out": "matrix",
    "router": "matrix",
    "router_bias": "zeros",  # updated by the balancing rule, not by the optimizer
    "expert_in": "matrix",
    "expert_gate": "matrix",
    "expert_out": "matrix",
    "shared_in": "matrix",
    "shared_gate": "matrix",
    "shared_out": "matrix",
    "dense_in": "matrix",
    "dense_gate": "matrix",
    "dense_out": "matrix",
    "hidden_bias": "zeros",
    "readout": "matrix",
}
# Those of models that are conditioned, such as diffusion transformers.
CONDITIONED: dict[str, InitKind] = {
    "patch_in": "input",
    "time_in": "input",
    "label": "input",
    "time_out": "matrix",
    "modulation": "matrix",  # of each block: from the condition to shifts, scales and gates
    "final_modulation": "matrix",  # before the readout, outside the residual branches
    "final_bias": "zeros",  # what is added to that
}
ROLES |= CONDITIONED

# Matrix role -> dimension or property of Shape that is its fan-in. The fan-in of all other roles is the width.
FAN_IN: dict[str, str] = {
    "attn_out": "attention_width",
    "expert_out": "expert_width",
    "shared_out": "shared_width",
    "dense_out": "dense_width",
}

# Matrix role -> dimension of Shape that is its fan-out. The fan-out of all other hidden matrices is the width.
FAN_OUT: dict[str, str] = {
    "attn_q": "attention_width",
    **dict.fromkeys(("attn_k", "attn_v"), "kv_width"),
    "router": "num_experts",
    **{f"{kind}_{part}": f"{kind}_width" for kind in ("expert", "shared", "dense") for part in ("in", "gate")},
}

# Matrices between features whose numbers both grow with the width: all but the readout. A router counts as one.
HIDDEN: tuple[str, ...] = tuple(role for role, kind in ROLES.items() if kind == "matrix" and role != "readout")


def fan_in_dim(role: str) -> str:
    """Return the name of the dimension that is the fan-in of this role."""
    return FAN_IN.get(role, "width")


def fan_out_dim(role: str) -> str:
    """Return the name of the dimension that is the fan-out of a hidden matrix."""
    return FAN_OUT.get(role, "width")
