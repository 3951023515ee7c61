"""Orthogonal: the semi-orthogonal matrix near each of a batch of matrices, by five Newton-Schulz steps of Muon.

X = u / (|u|_F + 1e-7); five times: A = X X^T, X <- 3.4445 X + (-4.7750 A + 2.0315 A A) X       (KellerJordan/Muon)

The singular values end between 0.7 and 1.2, small ones lower. All matrices go through one batched product, and a single
one is a batch of one: the product of two plain matrices rounds otherwise, so that its bits would depend on the stack.
"""

from __future__ import annotations

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
_EPS = 1e-7


def orthogonal(u_NIO: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a new [N, I, O] float32 whose matrices are nearly semi-orthogonal. `dtype` is that of the products."""
    a, b, c = COEFFICIENTS
    x = u_NIO / (u_NIO.flatten(1).square().sum(1).sqrt().view(-1, 1, 1) + _EPS)
    is_tall = x.shape[1] > x.shape[2]
    if is_tall:
        x = x.transpose(1, 2).contiguous()
    x = x.to(dtype)
    for _ in range(STEPS):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.float()
    return x.transpose(1, 2).contiguous() if is_tall else x
