"""Schedule: an LR schedule that keeps the ratios between parameter groups, and a check of any other schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError

if TYPE_CHECKING:
    import torch

PEAK = "peak_lr"


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
    LR has undone the parameterization. Groups with a peak LR of zero are left out.
    """
    _check_groups(optimizer)
    factors = [float(group["lr"]) / float(group[PEAK]) if group[PEAK] else None for group in optimizer.param_groups]
    known = [factor for factor in factors if factor is not None]
    first = known[0] if known else 1.0
    if not all(math.isclose(first, factor, rel_tol=1e-6) for factor in known):
        spelled = ", ".join(
            f"{factor:.3g} ({'/'.join(group['roles'])})"
            for factor, group in zip(factors, optimizer.param_groups, strict=True)
            if factor is not None
        )
        raise HpxferError(
            f"optimizer: a schedule must multiply the peak LR of all groups by one factor, got {spelled}; use "
            f"recipe.scheduler, or group['lr'] = group['{PEAK}'] * factor"
        )
    return first


def _check_groups(optimizer: torch.optim.Optimizer) -> None:
    if not all(PEAK in group and "roles" in group for group in optimizer.param_groups):
        raise HpxferError(
            "optimizer: must have the groups of recipe.param_groups, got others; make it from these, e.g. "
            "torch.optim.AdamW(recipe.param_groups(model, roles, shape))"
        )
