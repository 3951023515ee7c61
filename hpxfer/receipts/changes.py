"""How much each parameter changed, for the check that an HP reaches the optimizer. Torch is imported late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError
from hpxfer.recipe.wrappers import plain_names

if TYPE_CHECKING:
    import torch

FEW = 8  # elements, of which too few may lie in line by chance


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return name -> a copy of each parameter that needs a gradient."""
    plain = plain_names(model)
    return {plain(name): tensor.detach().clone() for name, tensor in model.named_parameters() if tensor.requires_grad}


def changes_since(model: torch.nn.Module, before: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return name -> RMS of the change of each parameter since `weights_of` copied it, or 0 if it did not learn.

    A parameter did not learn if it has no gradient, or if it only shrank, as weight decay alone makes it. Call this
    after the step and before `zero_grad`: without gradients the second is all that shows. Of a sharded model these are
    numbers of this rank's part. Raises HpxferError if a parameter has no copy.
    """
    plain, out = plain_names(model), {}
    has_gradients = any(tensor.grad is not None for tensor in model.parameters())
    for name, tensor in model.named_parameters():
        if not tensor.requires_grad:
            continue
        if plain(name) not in before:
            raise HpxferError(f"changes_since: every parameter must have a copy, got none of {plain(name)}")
        start = _local(before[plain(name)]).double()
        change = _local(tensor.detach()).double() - start
        learned = bool(_local(tensor.grad).any()) if tensor.grad is not None else not has_gradients
        learned = learned and bool(change.any()) and not _only_shrank(change, start, tensor.dtype)
        out[plain(name)] = float(change.square().mean().sqrt()) if learned else 0.0
    return out


def _only_shrank(change: torch.Tensor, start: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether a change is one small negative share of the weights, up to rounding.

    Weights that are all alike, such as those of a gain at its start, do not show it.
    """
    import torch

    square = start.square().sum()
    if start.numel() < FEW or not bool(square > 0) or bool((start == start.flatten()[0]).all()):
        return False
    share = (change * start).sum() / square
    rest = (change - share * start).square().mean().sqrt()
    # To round to the nearest number moves a weight by at most half an eps of itself, and by 0.29 eps in the RMS.
    rounding = 0.35 * torch.finfo(dtype).eps * start.square().mean().sqrt()
    return bool(share < 0) and bool(rest <= rounding)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
