"""Attention of a stack's sequences: torch's SDPA, with a kernel chosen for the device and the backend.

    heads = softmax(scale q k^T + mask) v over the keys that are not in the future, or over all

A mask keeps documents apart. Flash attention takes none on CUDA, so that torch chooses a slower kernel there.

On CUDA cuDNN's kernel comes first. In strict mode it is flash attention, one trial at a time, because the split of its
backward pass depends on the batch. On a CPU it is torch's flash attention, whose blocks stay in the first cache. There,
batched products over a few sequences took 0.83 of its time by themselves, but made the whole step 4 to 8% slower beside
another busy core, with which they share a cache (context 64, 32 features per head; torch 2.13, AVX-512).

Queries may have more heads than keys and values. Head h then reads the keys of head h // group, which are repeated for
the heads of a group.

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


def attention(
    q_NSHP: Tensor,
    k_NSHP: Tensor,
    v_NSHP: Tensor,
    *,
    scale: float,
    num_trials: int,
    causal: bool = True,
    mask_NSS: Tensor | None = None,
    backend: Backend = TORCH,
) -> Tensor:
    """Return the heads [N, S, H, P]. The sequences of a trial are adjacent. The heads of k and v divide those of q.

    With `causal` a query sees no key of its future. `mask` is added to the logits, and is minus infinity there too.
    """
    if not q_NSHP.is_cuda:
        return _sdpa(q_NSHP, k_NSHP, v_NSHP, mask_NSS, scale=scale, causal=causal)
    pieces = num_trials if backend.strict else 1
    q, k, v = (part.chunk(pieces) for part in (q_NSHP, k_NSHP, v_NSHP))
    masks = [None] * pieces if mask_NSS is None else mask_NSS.chunk(pieces)
    with sdpa_kernel(STRICT if backend.strict else FAST, set_priority=True):
        heads = [_sdpa(*piece, scale=scale, causal=causal) for piece in zip(q, k, v, masks, strict=True)]
    return torch.cat(heads) if len(heads) > 1 else heads[0]


def _sdpa(
    q_NSHP: Tensor, k_NSHP: Tensor, v_NSHP: Tensor, mask_NSS: Tensor | None, *, scale: float, causal: bool
) -> Tensor:
    group = q_NSHP.shape[2] // k_NSHP.shape[2]
    if group > 1:
        k_NSHP, v_NSHP = (_repeated(part, group) for part in (k_NSHP, v_NSHP))
    q, k, v = (part.transpose(1, 2) for part in (q_NSHP, k_NSHP, v_NSHP))
    mask = None if mask_NSS is None else mask_NSS.unsqueeze(1)
    heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal and mask is None, scale=scale)
    return heads.transpose(1, 2)


def _repeated(x_NSHP: Tensor, group: int) -> Tensor:
    """Return every head `group` times. Its gradient is the sum over the group, in order."""
    return x_NSHP.unsqueeze(3).expand(-1, -1, -1, group, -1).flatten(2, 3)
