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


def product(a_KXY: Tensor, b_KYZ: Tensor) -> Tensor:
    """Return a @ b of every trial, [K, X, Z]."""
    rows, inner, columns = a_KXY.shape[1], a_KXY.shape[2], b_KYZ.shape[2]
    if rows == 1:
        return product(F.pad(a_KXY, (0, 0, 0, 1)), b_KYZ)[:, :1].contiguous()
    if missing := -inner % (ALIGNED // math.gcd(rows, ALIGNED)):
        a_KXY, b_KYZ = F.pad(a_KXY, (0, missing)), F.pad(b_KYZ, (0, 0, 0, missing))
    missing = -columns % max(2, ALIGNED // math.gcd(rows, inner + missing, ALIGNED))
    if not missing:
        return torch.bmm(a_KXY, b_KYZ)
    return torch.bmm(a_KXY, F.pad(b_KYZ, (0, missing)))[..., :columns].contiguous()
