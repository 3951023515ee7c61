"""Elementwise functions of a stack with the same bits in every stack.

Torch computes the last numbers of a tensor by another code than the rest, and sigmoid and GELU then differ in the last
bit. A trial is therefore padded to whole vectors: the code of a number depends on its place in its trial alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

# Numbers of a trial. Four AVX2 vectors of float32 are computed at once (measured with torch 2.13).
WHOLE = 32


def padded(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Return function(*tensors) of tensors [K, ...], computed in rows of whole vectors."""
    first = tensors[0]
    count = first[0].numel()
    if count % WHOLE == 0:
        return function(*(tensor.contiguous() for tensor in tensors))
    rows = [F.pad(tensor.reshape(len(first), -1), (0, -count % WHOLE)) for tensor in tensors]
    return function(*rows)[:, :count].view(first.shape)
