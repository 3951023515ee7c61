"""Cross entropy of rows of logits. Its gradient overwrites the logits.

    loss[n]  = log(sum over u of exp(x[n, u])) - x[n, target[n]]
    x[n, v] <- exp(x[n, v]) / sum over u of exp(x[n, u]) - [v = target[n]]        = d loss[n] / d x[n, v]

Sums are float32 in every dtype. The logits are read and written in place, without a float32 copy of all of them. A
row's bits depend on the row alone. A row with a NaN or +infinity has a NaN loss. A logit of -infinity adds nothing.

In Triton one program reads a row twice, and the second read should come from the GPU's cache. Rows in flight are
multiprocessors x programs per multiprocessor, and an H200 has 132 multiprocessors and a cache of 60 MB. In bfloat16:

    warps   programs   rows        V = 50,304                       V = 128,256   V = 151,936
    8       8          1,056       1,056 x 100,608 B = 106 MB       271 MB        321 MB
    32      2          264         264 x 100,608 B = 27 MB          68 MB         80 MB

So long rows have 32 warps. Above 60 MB the second pass still finds most of its row, because it goes backward
(predicted). `tests/kernels/test_cross_entropy_compiled.py` compiles the kernel and checks this count.

Letters: N rows, V columns (the vocabulary).
"""

from __future__ import annotations

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend, launch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Elements of the float32 buffer that torch's own code uses for half-precision logits: 64 MiB.
BUFFER_ELEMENTS = 2**24
# The largest block. A row of 50,304 has 4 of them (derived, not measured).
BLOCK_V = 2**14


def cross_entropy_rows_(logits_NV: Tensor, targets_N: Tensor, *, backend: Backend = TORCH) -> Tensor:
    """Return the losses [N], float32, in nats, and overwrite the logits with d loss / d logits.

    Logits are float32, bfloat16 or float16, with contiguous rows. A target outside [0, V) is an error in torch's code,
    and a NaN loss in Triton's. No gradient flows through the losses: the caller has it in the logits.
    """
    assert logits_NV.ndim == 2, f"logits must be [N, V], got {tuple(logits_NV.shape)}"
    assert logits_NV.dtype in DTYPES, f"logits must be one of {DTYPES}, got {logits_NV.dtype}"
    assert logits_NV.stride(1) == 1, f"a row of logits must be contiguous, got strides {logits_NV.stride()}"
    assert targets_N.shape == logits_NV.shape[:1], (
        f"there must be one target per row, got {targets_N.shape} for {logits_NV.shape}"
    )
    if backend.is_triton:
        losses: Tensor = _cross_entropy_rows(logits_NV, targets_N)
        return losses
    if logits_NV.dtype == torch.float32:
        return _float32_rows(logits_NV, targets_N)
    return _half_rows(logits_NV, targets_N)


def _float32_rows(x_NV: Tensor, targets_N: Tensor) -> Tensor:
    """Return the losses of float32 rows by torch's fused softmax: one exp per element.

    The largest probability, 1 / sum of exp(x - max), gives the logarithm of the sum. Unlike the probability of the
    target, it is never too small for float32.
    """
    targets_N1 = targets_N.unsqueeze(1)
    below_peak_N = x_NV.amax(1) - x_NV.gather(1, targets_N1).squeeze(1)
    torch.softmax(x_NV, -1, out=x_NV)
    losses_N = below_peak_N - x_NV.amax(1).log()
    x_NV.scatter_add_(1, targets_N1, torch.full_like(targets_N1, -1.0, dtype=x_NV.dtype))
    return losses_N


def _half_rows(x_NV: Tensor, targets_N: Tensor) -> Tensor:
    """Return the losses of rows in half precision, a few rows at a time in float32."""
    losses_N = torch.empty(x_NV.shape[0], dtype=torch.float32, device=x_NV.device)
    height = max(1, BUFFER_ELEMENTS // x_NV.shape[1])
    for low in range(0, x_NV.shape[0], height):
        rows = slice(low, low + height)
        buffer = x_NV[rows].float()
        losses_N[rows] = _float32_rows(buffer, targets_N[rows])
        x_NV[rows] = buffer
    return losses_N


@torch.library.custom_op("hpxfer::cross_entropy_rows_", mutates_args=("logits_NV",))
def _cross_entropy_rows(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    from hpxfer.kernels.cross_entropy_triton import cross_entropy_rows_kernel, launch_options

    num_rows, num_columns = logits_NV.shape
    losses_N = torch.empty(num_rows, dtype=torch.float32, device=logits_NV.device)
    launch(
        cross_entropy_rows_kernel,
        (num_rows,),
        logits_NV,
        targets_N.contiguous(),
        losses_N,
        logits_NV.stride(0),
        num_columns,
        **launch_options(num_columns, BLOCK_V),
        enable_fp_fusion=False,
    )
    return losses_N


@_cross_entropy_rows.register_fake
def _(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    return torch.empty(logits_NV.shape[0], dtype=torch.float32, device=logits_NV.device)
