"""Matrix products of a stack, with the same bits in every stack.

MKL chooses the code of a product by the addresses of the matrices and, in a stack of one, by whether the result is a
vector. So factors are padded with zeros until every result has two rows and columns, and every trial's matrices begin
at whole 16 bytes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# Numbers of 16 bytes. Measured with torch 2.13 on a CPU with AVX512: no other address matters.
ALIGNED = 4
NARROW = 12  # columns, fewer than MKL computes at once


def product(a_KXY: Tensor, b_KYZ: Tensor) -> Tensor:
    """Return a @ b of every trial, [K, X, Z]."""
    rows, inner, columns = a_KXY.shape[1], a_KXY.shape[2], b_KYZ.shape[2]
    if rows == 1:
        return product(F.pad(a_KXY, (0, 0, 0, 1)), b_KYZ)[:, :1].contiguous()
    if missing := -inner % (ALIGNED // math.gcd(rows, ALIGNED)):
        a_KXY, b_KYZ = F.pad(a_KXY, (0, missing)), F.pad(b_KYZ, (0, 0, 0, missing))
    missing = -columns % max(2, ALIGNED // math.gcd(rows, inner + missing, ALIGNED))
    if missing:
        return _product(a_KXY, F.pad(b_KYZ, (0, missing)))[..., :columns].contiguous()
    return _product(a_KXY, b_KYZ)


def _product(a_KXY: Tensor, b_KYZ: Tensor) -> Tensor:
    """Return a @ b. A narrow result is the transpose of a wide one, which takes half the time."""
    if b_KYZ.shape[2] <= NARROW < a_KXY.shape[1]:
        return torch.bmm(b_KYZ.transpose(1, 2), a_KXY.transpose(1, 2)).transpose(1, 2).contiguous()
    return torch.bmm(a_KXY, b_KYZ)
