"""Batched product with few outputs, such as a router: y[k] = x[k] @ w[k].

It is computed as the transpose of w[k]^T x[k]^T, because libraries multiply a tall matrix with a narrow one slowly. The
forward and backward pass took 0.4 of bmm's time at 4 outputs and 0.5 to 0.6 at 8 (torch 2.13 with MKL, AVX-512).

Letters: K trials, T tokens, I input features, O output features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.product import batched_product

# Up to this many outputs the transpose is faster. At 12 both take the same time, at 16 bmm is up to 1.4 times faster.
NARROW = 8


def narrow_product(x_KTI: Tensor, w_KIO: Tensor, backend: Backend = TORCH) -> Tensor:
    """Return [K, T, O] in the dtype of x, as `batched_product` does."""
    if x_KTI.is_cuda or backend.is_triton or w_KIO.shape[2] > NARROW:
        return batched_product(x_KTI, w_KIO, backend)
    y_KTO: Tensor = _Narrow.apply(x_KTI, w_KIO.to(x_KTI.dtype))  # type: ignore[no-untyped-call]
    return y_KTO


class _Narrow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_KTI: Tensor, w_KIO: Tensor) -> Tensor:
        ctx.save_for_backward(x_KTI, w_KIO)
        return torch.bmm(w_KIO.transpose(1, 2), x_KTI.transpose(1, 2)).transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x_KTI, w_KIO = ctx.saved_tensors
        dy_KTO = grads[0]
        dw_KOI = torch.bmm(dy_KTO.transpose(1, 2), x_KTI)
        return torch.bmm(dy_KTO, w_KIO.transpose(1, 2)), dw_KOI.transpose(1, 2)
