"""The one place for tolerances.

Against float64, a result may err TIMES as much as torch's own plain code does in the same dtype.
Where torch's error is zero by luck, FLOOR_ULPS roundings of the largest value are allowed.
"""

from __future__ import annotations

import torch
from torch import Tensor

TIMES = 4.0
FLOOR_ULPS = 4.0
# Whole losses of a run in another precision or on another device, in roundings of the coarser dtype.
RUN_ULPS = {torch.bfloat16: 4.0, torch.float32: 512.0}


def error(got: Tensor, exact: Tensor) -> float:
    """Return the largest absolute difference; infinity where `got` is not finite."""
    assert got.shape == exact.shape, (got.shape, exact.shape)
    difference = (got.detach().double() - exact.detach().double()).abs()
    return float(difference.nan_to_num(nan=torch.inf).max()) if difference.numel() else 0.0


def allowed(own: Tensor, exact: Tensor) -> float:
    """Return the error that is allowed beside torch's `own` result."""
    floor = FLOOR_ULPS * torch.finfo(own.dtype).eps * float(exact.detach().abs().max())
    return TIMES * max(error(own, exact), floor)


def is_near(got: Tensor, own: Tensor, exact: Tensor) -> bool:
    """Return whether `got` is as near to the float64 result as torch's `own` is, up to TIMES."""
    return error(got, exact) <= allowed(own, exact)


def assert_near(got: Tensor, own: Tensor, exact: Tensor, name: str = "") -> None:
    assert is_near(got, own, exact), f"{name}: error {error(got, exact):.3g}, allowed {allowed(own, exact):.3g}"


def same_run(loss: float, other: float, dtype: torch.dtype) -> bool:
    """Return whether two runs of one trial, the coarser in `dtype`, ended at the same loss."""
    return abs(loss - other) <= RUN_ULPS[dtype] * torch.finfo(dtype).eps * abs(other)
