"""Schedule: an LR schedule that keeps the ratios between parameter groups, and a check of any other schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError

if TYPE_CHECKING:
    import torch

PEAK = "peak_lr"
NUMBERS = ("weight_decay", "eps", "momentum")  # a recipe gives a momentum to Muon's groups alone
# Tensor -> (numbers, roles) that this process gave last. It is made with the first groups: it needs torch.
_GIVEN: dict[str, Any] = {}


def scheduler(optimizer: torch.optim.Optimizer, factor: Callable[[int], float]) -> torch.optim.lr_scheduler.LambdaLR:
    """Return torch's LambdaLR that gives each group its own peak LR times `factor(step)`, where steps start at 0.

    Call its `step()` after each optimizer step. Raises HpxferError if the groups are not those of `param_groups`, or
    have other numbers.
    """
    from torch.optim.lr_scheduler import LambdaLR

    _check_groups(optimizer)
    _check_given(optimizer)
    return LambdaLR(optimizer, factor)


def check_lr_ratios(optimizer: torch.optim.Optimizer) -> float:
    """Return the factor on the peak LR that all groups have now.

    Raises HpxferError, which names roles, if groups have different factors: a schedule that gives all groups the same
    LR has undone the parameterization. So it does if the LRs from which a schedule starts (`initial_lr`) have, and if
    the peak LRs, weight decay, eps, betas, or Muon's momentum and scales are not those that `param_groups` gave last
    for these tensors: `load_state_dict` of another run puts that run's numbers in their place. An optimizer of another
    kind than the recipe's, such as Adam without decoupled weight decay, is refused too. Groups with a peak LR of zero
    are left out.
    """
    _check_groups(optimizer)
    _factor(optimizer, "initial_lr")
    factor = _factor(optimizer, "lr")
    _check_given(optimizer)
    return factor


def remember(groups: Iterable[dict[str, Any]]) -> None:
    """Remember the numbers of groups by their tensors, as long as these live: the groups may be replaced."""
    from torch.utils.weak import WeakTensorKeyDictionary

    given = _GIVEN.setdefault("numbers", WeakTensorKeyDictionary())
    for group in groups:
        given.update(dict.fromkeys(group["params"], (_numbers(group), "/".join(group["roles"]))))


def _numbers(group: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a group that no schedule of the LR changes."""
    betas = {f"beta{i}": float(beta) for i, beta in enumerate(group.get("betas") or (), 1)}
    scales = {f"scale{i}": float(scale) for i, scale in enumerate(group.get("scale", ()), 1)}
    return {key: float(group[key]) for key in (PEAK, *NUMBERS) if key in group} | betas | scales


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


def _check_groups(optimizer: torch.optim.Optimizer) -> None:
    if not hasattr(optimizer, "param_groups"):
        rule = "optimizer: must be one of torch.optim, with the groups of recipe.param_groups"
        raise HpxferError(f"{rule}, got {type(optimizer).__name__}, which has no param_groups")
    if not all(PEAK in group and "roles" in group for group in optimizer.param_groups):
        raise HpxferError(
            "optimizer: must have the groups of recipe.param_groups, got others; make it from these, e.g. "
            "torch.optim.AdamW(recipe.param_groups(model, roles, shape)), and load no state of other groups"
        )


def _check_given(optimizer: torch.optim.Optimizer) -> None:
    """Raise HpxferError if a tensor's group has other numbers than those that were given for it."""
    given, wrong = _GIVEN.get("numbers", {}), dict[str, None]()
    for group in optimizer.param_groups:
        got = _numbers(group)
        for numbers, roles in (given[tensor] for tensor in group["params"] if tensor in given):
            _check_kind(optimizer, group, numbers)
            wrong |= {
                f"{key} {got.get(key, math.nan):.6g} in place of {own:.6g} ({roles})": None
                for key, own in numbers.items()
                if not math.isclose(got.get(key, math.nan), own, rel_tol=1e-6)
            }
    if wrong:
        raise HpxferError(
            f"optimizer: the numbers must be those of recipe.param_groups, got {', '.join(wrong)}; load_state_dict "
            "takes over those of the saved run: after it call group.update(own, initial_lr=own['lr']) for each group "
            "of the optimizer and its own one of recipe.param_groups, then make the schedule anew"
        )


def _check_kind(optimizer: torch.optim.Optimizer, group: dict[str, Any], given: Mapping[str, float]) -> None:
    """Raise HpxferError for an optimizer that does not read what the recipe gives, or decays through Adam."""
    defaults = getattr(optimizer, "defaults", {})  # wrappers and hpxfer.Muon have none
    is_adamw, is_muon = "beta1" in given, "momentum" in given
    is_coupled = is_adamw and group["weight_decay"] and not group.get("decoupled_weight_decay", True)
    misreads = is_adamw != ("betas" in defaults) or is_muon != ("ns_steps" in defaults) or "scale1" in given
    if is_coupled or (defaults and misreads):
        kind = "AdamW, which has betas and decoupled weight decay" if is_adamw else "SGD, which has no betas"
        if is_muon:
            kind = "hpxfer.Muon, or torch.optim.Muon with the groups of hpxfer.torch_muon"
        raise HpxferError(f"optimizer: must be that of the recipe, {kind}, got {type(optimizer).__name__}")
