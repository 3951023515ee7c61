"""Batched product of a stack: y[k] = x[k] @ w[k] for every trial k.

Torch: bmm, whose library chooses its algorithm by K on CUDA. Triton, strict: the grouped product with a group a trial,
whose blocks and parts come from the shape of one trial, so that a trial has the same bits in any stack. Triton, not
strict: bmm, which is the faster.

Letters: K trials, T tokens, I in, O out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.grouped import grouped_product


def batched_product(x_KTI: Tensor, w_KIO: Tensor, backend: Backend = TORCH) -> Tensor:
    """Return [K, T, O] in the dtype of x, to which w is rounded."""
    if not (backend.is_triton and backend.strict):
        return torch.bmm(x_KTI, w_KIO.to(x_KTI.dtype))
    num_trials, num_tokens, size_i = x_KTI.shape
    ends_K = torch.arange(1, num_trials + 1, dtype=torch.int32, device=x_KTI.device) * num_tokens
    y_NO = grouped_product(x_KTI.reshape(-1, size_i), w_KIO, ends_K, backend)
    return y_NO.view(num_trials, num_tokens, -1)
