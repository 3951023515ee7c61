"""Causal attention of a stack's sequences: torch's SDPA, with a kernel chosen for the device and the backend.

    heads = softmax(scale q k^T) v over the keys that are not in the future

On CUDA cuDNN's kernel comes first. In strict mode it is flash attention, one trial at a time, because the split of its
backward pass depends on the batch. On a CPU it is torch's flash attention, whose blocks stay in the first cache. There,
batched products over a few sequences took 0.83 of its time by themselves, but made the whole step 4 to 8% slower beside
another busy core, with which they share a cache (context 64, 32 features per head; torch 2.13, AVX-512).

Letters: N sequences of all trials, S context, H heads, P head features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hpxfer.kernels.backend import TORCH, Backend

# In order of preference. A later kernel serves what an earlier one refuses, such as float32.
FAST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
STRICT = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


def causal_attention(qkv_NS3HP: Tensor, *, scale: float, num_trials: int, backend: Backend = TORCH) -> Tensor:
    """Return the heads [N, S, H, P]. The sequences of a trial are adjacent. `qkv[:, :, 0]` are the queries."""
    if not qkv_NS3HP.is_cuda:
        return _sdpa(qkv_NS3HP, scale)
    with sdpa_kernel(STRICT if backend.strict else FAST, set_priority=True):
        pieces = qkv_NS3HP.chunk(num_trials) if backend.strict else (qkv_NS3HP,)
        heads = [_sdpa(piece, scale) for piece in pieces]
    return torch.cat(heads) if len(heads) > 1 else heads[0]


def _sdpa(qkv_NS3HP: Tensor, scale: float) -> Tensor:
    q, k, v = (part.transpose(1, 2) for part in qkv_NS3HP.unbind(2))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2)
