"""Causal attention of a stack's sequences: torch's SDPA, by the kernel that the device and the backend ask for.

    heads = softmax(scale q k^T) v over the keys that are not in the future

CUDA: cuDNN's kernel first; strict, flash attention one trial at a time, because how its backward splits the work
depends on the batch. CPU: torch's flash attention, whose blocks stay in the first cache. Batched products over a few
sequences at a time took 0.83 of its time alone, but the whole step was 4 to 8% slower beside another busy core, with
which they share a cache (context 64, 32 features a head; torch 2.13, AVX-512).

Letters: N sequences of all trials, S context, H heads, P head features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hpxfer.kernels.backend import TORCH, Backend

# What stands behind a kernel is for what it refuses, such as float32.
FAST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
STRICT = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


def causal_attention(qkv_NS3HP: Tensor, *, scale: float, num_trials: int, backend: Backend = TORCH) -> Tensor:
    """Return the heads [N, S, H, P]. The sequences of a trial are neighbors; `qkv[:, :, 0]` are the queries."""
    if not qkv_NS3HP.is_cuda:
        return _sdpa(qkv_NS3HP, scale)
    with sdpa_kernel(STRICT if backend.strict else FAST, set_priority=True):
        pieces = qkv_NS3HP.chunk(num_trials) if backend.strict else (qkv_NS3HP,)
        heads = [_sdpa(piece, scale) for piece in pieces]
    return torch.cat(heads) if len(heads) > 1 else heads[0]


def _sdpa(qkv_NS3HP: Tensor, scale: float) -> Tensor:
    q, k, v = (one.transpose(1, 2) for one in qkv_NS3HP.unbind(2))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2)
