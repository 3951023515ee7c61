"""The one place for tolerances.

Against float64, a result may err TIMES as much as torch's own plain code does in the same dtype.
Where torch's error is zero by luck, FLOOR_ULPS roundings of the largest value are allowed.

A sum whose terms cancel is another case: that of a key's bias has the exact gradient zero, as softmax does not see what
all keys share. What is computed is then nothing but the rounding of the terms, and depends on the order in which a CPU
sums them. So its error is measured in roundings of the terms, and not of what is left of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Gradients = Mapping[str, Sequence[Tensor]]

TIMES = 4.0
FLOOR_ULPS = 4.0
# Whole losses of a run in another precision or on another device, in roundings of the coarser dtype.
RUN_ULPS = {torch.bfloat16: 4.0, torch.float32: 512.0}


def error(got: Tensor, exact: Tensor) -> float:
    """Return the largest absolute difference; infinity where `got` is not finite."""
    assert got.shape == exact.shape, (got.shape, exact.shape)
    difference = (got.detach().double() - exact.detach().double()).abs()
    return float(difference.nan_to_num(nan=torch.inf).max()) if difference.numel() else 0.0


def allowed(own: Tensor, exact: Tensor, terms: float = 0.0, alike: float = 0.0) -> float:
    """Return the error that is allowed beside torch's `own` result.

    `terms` is the size of terms that cancel, and `alike` the error of torch's in results of the same kind.
    """
    floor = FLOOR_ULPS * torch.finfo(own.dtype).eps * max(_largest(exact), terms)
    return TIMES * max(error(own, exact), floor, alike)


def is_near(got: Tensor, own: Tensor, exact: Tensor) -> bool:
    """Return whether `got` is as near to the float64 result as torch's `own` is, up to TIMES."""
    return error(got, exact) <= allowed(own, exact)


def assert_near(
    got: Tensor, own: Tensor, exact: Tensor, name: str = "", terms: float = 0.0, alike: float = 0.0
) -> None:
    most = allowed(own, exact, terms, alike)
    assert error(got, exact) <= most, f"{name}: error {error(got, exact):.3g}, allowed {most:.3g}"


def assert_gradients_near(got: Gradients, own: Gradients, exact: Gradients) -> None:
    """Assert that the gradients of a model, parameter -> that of each layer, are near.

    One that is below a rounding of the largest has terms that cancel, which are as large as other gradients. In one
    layer torch's error may be small by luck, so that of all layers counts.
    """
    largest = max(_largest(grad) for copies in exact.values() for grad in copies)
    for name, copies in got.items():
        alike = max(error(of, right) for of, right in zip(own[name], exact[name], strict=True))
        for layer, grad in enumerate(copies):
            right = exact[name][layer]
            cancels = _largest(right) < torch.finfo(own[name][layer].dtype).eps * largest
            terms = largest if cancels else 0.0
            assert_near(grad, own[name][layer], right, f"{name} of layer {layer}", terms, alike)


def _largest(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max())


def same_run(loss: float, other: float, dtype: torch.dtype) -> bool:
    """Return whether two runs of one trial, the coarser in `dtype`, ended at the same loss."""
    return abs(loss - other) <= RUN_ULPS[dtype] * torch.finfo(dtype).eps * abs(other)
