"""Schedule: an LR schedule that keeps the ratios between parameter groups, and a check of any other schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError

if TYPE_CHECKING:
    import torch

PEAK = "peak_lr"
# Tensor -> (peak LR, roles) that this process gave last. It is made with the first groups: it needs torch.
_GIVEN: dict[str, Any] = {}


def scheduler(optimizer: torch.optim.Optimizer, factor: Callable[[int], float]) -> torch.optim.lr_scheduler.LambdaLR:
    """Return torch's LambdaLR that gives each group its own peak LR times `factor(step)`, where steps start at 0.

    Call its `step()` after each optimizer step. Raises HpxferError if the groups are not those of `param_groups`.
    """
    from torch.optim.lr_scheduler import LambdaLR

    _check_groups(optimizer)
    return LambdaLR(optimizer, factor)


def check_lr_ratios(optimizer: torch.optim.Optimizer) -> float:
    """Return the factor on the peak LR that all groups have now.

    Raises HpxferError, which names roles, if groups have different factors: a schedule that gives all groups the same
    LR has undone the parameterization. So it does if the LRs from which a schedule starts (`initial_lr`) have, and if
    the peak LRs are not those that `param_groups` gave last for these tensors: `load_state_dict` of another run puts
    that run's LRs in their place. Groups with a peak LR of zero are left out.
    """
    _check_groups(optimizer)
    _check_given(optimizer)
    _factor(optimizer, "initial_lr")
    return _factor(optimizer, "lr")


def remember(groups: Iterable[dict[str, Any]]) -> None:
    """Remember the peak LRs of groups by their tensors, as long as these live: the groups may be replaced."""
    from torch.utils.weak import WeakTensorKeyDictionary

    _GIVEN.setdefault("peaks", WeakTensorKeyDictionary()).update(
        (tensor, (float(group[PEAK]), "/".join(group["roles"]))) for group in groups for tensor in group["params"]
    )


def _factor(optimizer: torch.optim.Optimizer, key: str) -> float:
    """Return the common factor on the peak LR of the groups that have this key, or 1."""
    found = [
        (float(group[key]) / float(group[PEAK]), "/".join(group["roles"]))
        for group in optimizer.param_groups
        if group[PEAK] and key in group
    ]
    first = found[0][0] if found else 1.0
    if not all(math.isclose(first, factor, rel_tol=1e-6) for factor, _ in found):
        spelled = ", ".join(f"{factor:.3g} ({roles})" for factor, roles in found)
        raise HpxferError(
            f"optimizer: a schedule must multiply the peak LR of all groups by one factor, got for {key} {spelled}; "
            f"use recipe.scheduler, or group['{key}'] = group['{PEAK}'] * factor"
        )
    return first


def _check_given(optimizer: torch.optim.Optimizer) -> None:
    """Raise HpxferError if a tensor's group has another peak LR than the one that was given for it."""
    given = _GIVEN.get("peaks", {})
    wrong = {
        f"{float(group[PEAK]):.6g} in place of {found[0]:.6g} ({found[1]})": None
        for group in optimizer.param_groups
        for tensor in group["params"]
        if (found := given.get(tensor)) and not math.isclose(float(group[PEAK]), found[0], rel_tol=1e-6)
    }
    if wrong:
        raise HpxferError(
            f"optimizer: the peak LRs must be those of recipe.param_groups, got {', '.join(wrong)}; load_state_dict "
            "takes over the LRs of the saved run: after it call group.update(lr=own['lr'], peak_lr=own['peak_lr']) "
            "for each group of the optimizer and its own one of recipe.param_groups, then make the schedule"
        )


def _check_groups(optimizer: torch.optim.Optimizer) -> None:
    if not all(PEAK in group and "roles" in group for group in optimizer.param_groups):
        raise HpxferError(
            "optimizer: must have the groups of recipe.param_groups, got others; make it from these, e.g. "
            "torch.optim.AdamW(recipe.param_groups(model, roles, shape)), and load no state of other groups"
        )
