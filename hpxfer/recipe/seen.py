"""Seen: what a model shows of the facts that a recipe states about its base model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hpxfer.recipe.assign import Assigned
from hpxfer.recipe.known_models import config_of, known_gate
from hpxfer.recipe.probe import plain_norm
from hpxfer.recipe.wrappers import plain_modules, plain_names
from hpxfer.scaling.roles import ROLES

if TYPE_CHECKING:
    import torch

# A part of a name, such as q_norm, k_layernorm, query_norm, qk_norm. The norms of low-rank attention are others.
QK_NORM = re.compile(r"(q|k|qk|query|key)_?(layer)?_?norm")
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")


def seen_in(model: torch.nn.Module, found: Assigned) -> dict[str, Any]:
    """Return field of the recipe's `model` -> the value that this model has, without what it does not show."""
    roles = {role for item in found.parameters for role in item.roles}
    norms = [item for item in found.parameters if ROLES[item.roles[0]] == "ones"]
    centered = {item.gain.centered for item in norms if item.gain is not None} | set(_plain_norms(model, found))
    kinds = {"layernorm" if each else "rmsnorm" for each in centered}
    biases = [item for item in found.parameters if item.role == "hidden_bias" and not _is_of_norm(item.name)]
    out = {
        "norm": " and ".join(sorted(kinds)) or None,
        "norm_gains": bool(norms),
        "qk_norm": True if _has_qk_norm(model) else False if norms else None,
        "positions": "learned" if "position" in roles else _positions(model),
        "ffn": _ffn(model, roles),
        "gate": known_gate(model),
        "tied_embeddings": found.tied_embeddings,
        "biases": bool(biases),
    }
    return {name: value for name, value in out.items() if value is not None}


def _has_qk_norm(model: torch.nn.Module) -> bool:
    """Return whether the name of a module or of a parameter says so. Functions without gains have no names."""
    plain = plain_names(model)
    names = [*plain_modules(model), *(plain(name) for name, _ in model.named_parameters())]
    return any(QK_NORM.fullmatch(part) for name in names for part in name.split("."))


def _plain_norms(model: torch.nn.Module, found: Assigned) -> Iterator[bool]:
    """Yield for each norm without gains whether it takes the mean away."""
    widths = [item.tensor.shape[-1] for item in found.parameters if item.role == "embedding"]
    for name, module in plain_modules(model).items():
        if "norm" in f"{type(module).__name__} {name.rpartition('.')[2]}".lower():
            size = getattr(module, "normalized_shape", widths)
            if size and (centered := plain_norm(module, size[-1])) is not None:
                yield centered


def _is_of_norm(name: str) -> bool:
    """Return whether a bias is that of a norm."""
    parts = name.split(".")[:-1]
    return bool(parts) and ("norm" in parts[-1].lower() or bool(re.fullmatch(r"ln_?(\d|f)?", parts[-1])))


def _positions(model: torch.nn.Module) -> str | None:
    """Return `rope` for a model with rotary positions, and None if nothing shows what it has."""
    config = config_of(model)
    named = any("rotary" in type(module).__name__.lower() for module in plain_modules(model).values())
    return "rope" if named or any(getattr(config, name, None) for name in ("rope_parameters", "rope_theta")) else None


def _ffn(model: torch.nn.Module, roles: set[str]) -> str | None:
    """Return the form of the FFNs. An activation that nothing shows is taken to be the common one."""
    if not any(role.endswith("_in") for role in roles):
        return None
    config = config_of(model)
    act = next((value for name in ACTIVATIONS if isinstance(value := getattr(config, name, None), str)), None)
    if any(role in roles for role in ("expert_gate", "shared_gate", "dense_gate")):
        return "swiglu" if act in (None, "silu", "swish") else f"gated {act}"
    return "gelu" if act is None or act.startswith("gelu") else act
