"""Known sites: the modules of a model of `transformers` whose outputs the recipe multiplies."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.recipe.known_models import SITES_OF
from hpxfer.recipe.names import plain_modules, unwrapped
from hpxfer.recipe.proposed import kind_of

if TYPE_CHECKING:
    import torch

OF_EXPERTS = ("expert_out", "route_scale")


def known_sites(model: torch.nn.Module, keys: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return (module, key) of every site of a known model that has one of `keys`, in the model's order.

    Raises HpxferError for a model whose names are not known, or whose attention scales by more than one number.
    """
    config: Any = getattr(unwrapped(model), "config", None)
    kind = kind_of(config)
    if kind is None:
        raise HpxferError(
            f"attach: the sites must be given for a model that is none of {', '.join(SITES_OF)}, got "
            f"{type(unwrapped(model)).__name__}; e.g. sites=[('*.attention', 'attn_out'), ('head', 'readout')]"
        )
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):
        raise HpxferError(
            "attach: attention must scale alike in all layers, got scale_attn_by_inverse_layer_idx true; switch it off"
        )
    return tuple(
        (name, key)
        for name, module in plain_modules(model).items()
        for pattern, key in SITES_OF[kind]
        if key in keys and fnmatchcase(name, pattern) and _is(module, key)
    )


def _is(module: torch.nn.Module, key: str) -> bool:
    """Return whether an FFN module is of the kind that the key speaks of."""
    has_experts = any(name == "experts" for name, _ in module.named_children())
    return has_experts if key in OF_EXPERTS else not has_experts if key == "dense_out" else True
