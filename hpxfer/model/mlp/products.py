"""Matrix products of a stack, with the same bits in every stack.

MKL chooses the code of a product by the address of its result, and of a stack of one by whether it is a vector. So the
columns are padded with zeros until every trial's result begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# Numbers of 64 bytes: a cache line, and the longest vector of a CPU. With AVX2 and torch 2.13, 16 bytes were enough.
ALIGNED = 16


def product(a_KXY: Tensor, b_KYZ: Tensor) -> Tensor:
    """Return a @ b of every trial, [K, X, Z]."""
    rows, columns = a_KXY.shape[1], b_KYZ.shape[2]
    missing = -columns % max(2, ALIGNED // math.gcd(rows, ALIGNED))
    if not missing:
        return torch.bmm(a_KXY, b_KYZ)
    return torch.bmm(a_KXY, F.pad(b_KYZ, (0, missing)))[..., :columns].contiguous()
