"""Roles: what a tensor is. Every table, model and recipe speaks of tensors by these names."""

from __future__ import annotations

from typing import Literal

# How a role's tensors start at the base shape: a matrix has a fan-in and follows init_scale, the others do not.
InitKind = Literal["matrix", "embedding", "position", "ones", "zeros"]

ROLES: dict[str, InitKind] = {
    "embedding": "embedding",
    "position": "position",
    "norm": "ones",  # gains inside the blocks
    "final_norm": "ones",  # the gain before the readout: outside the residual branches
    "attn_q": "matrix",
    "attn_k": "matrix",
    "attn_v": "matrix",
    "attn_out": "matrix",
    "router": "matrix",
    "router_bias": "zeros",  # moved by the balancing rule, not by the optimizer
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

# The dimension of Shape that is the fan-in of a matrix role; `width` for the rest.
FAN_IN: dict[str, str] = {"expert_out": "expert_width", "shared_out": "shared_width", "dense_out": "dense_width"}


def fan_in_dim(role: str) -> str:
    """Return the name of the dimension that a matrix of this role reads from."""
    return FAN_IN.get(role, "width")
