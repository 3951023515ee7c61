"""Batched product of a stack: y[k] = x[k] @ w[k] for every trial k.

The torch backend uses bmm, which on CUDA chooses its algorithm by K. The strict Triton backend uses the grouped product
with one group per trial. Its blocks and parts follow from the shape of one trial, so that a trial has the same bits in
any stack. The fast Triton backend uses bmm, which is faster.

Letters: K trials, T tokens, I input features, O output features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.grouped import grouped_product


def batched_product(x_KTI: Tensor, w_KIO: Tensor, backend: Backend = TORCH) -> Tensor:
    """Return [K, T, O] in the dtype of x. w is rounded to it."""
    if not (backend.is_triton and backend.strict):
        return torch.bmm(x_KTI, w_KIO.to(x_KTI.dtype))
    num_trials, num_tokens, size_i = x_KTI.shape
    ends_K = torch.arange(1, num_trials + 1, dtype=torch.int32, device=x_KTI.device) * num_tokens
    y_NO = grouped_product(x_KTI.reshape(-1, size_i), w_KIO, ends_K, backend)
    return y_NO.view(num_trials, num_tokens, -1)
