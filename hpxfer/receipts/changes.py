"""How much each parameter changed, for the check that an HP reaches the optimizer. Torch is imported late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError
from hpxfer.recipe.wrappers import plain_names

if TYPE_CHECKING:
    import torch


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return name -> a copy of each parameter that needs a gradient."""
    plain = plain_names(model)
    return {plain(name): tensor.detach().clone() for name, tensor in model.named_parameters() if tensor.requires_grad}


def changes_since(model: torch.nn.Module, before: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return name -> RMS of the change of each parameter since `weights_of` copied it.

    Of a sharded model these are numbers of this rank's part. Raises HpxferError if a parameter has no copy.
    """
    plain, out = plain_names(model), {}
    for name, tensor in model.named_parameters():
        if not tensor.requires_grad:
            continue
        if plain(name) not in before:
            raise HpxferError(f"changes_since: every parameter must have a copy, got none of {plain(name)}")
        change = _local(tensor.detach()).double() - _local(before[plain(name)]).double()
        out[plain(name)] = float(change.square().mean().sqrt()) if change.numel() else 0.0
    return out


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
