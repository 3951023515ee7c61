"""Sums of every trial in an order that the shape of one trial fixes. The bits do not depend on K.

    column_sums: y[k, d] = sum over t of x[k, t, d]              backward: dx[k, t, d] = dy[k, d]
    spread:      y[k, t, d] = x[k, d]                            backward: dx[k, d] = sum over t of dy[k, t, d]
    squares:     y[k] = sum over n of x[k, n]^2

In Triton, one program sums each piece of ROWS rows (or ELEMENTS elements). The sums of the pieces are summed in the
same way, in order, until one is left. Sums are float32. Inputs are made contiguous and 16-byte aligned, because Triton
compiles another kernel, with another order, for other pointers and strides.

Letters: K trials, T rows, D columns, N elements, C pieces.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend, launch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Rows or elements that one program sums, and the blocks that it reads (derived, not measured).
ROWS, BLOCK_T, BLOCK_D = 256, 32, 64
ELEMENTS, BLOCK_N = 2**15, 2048
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}


def column_sums(x_KTD: Tensor, backend: Backend = TORCH) -> Tensor:
    """Return [K, D] float32: the sum over the rows of every trial. Differentiable."""
    assert x_KTD.ndim == 3, f"column_sums takes [K, T, D], got {tuple(x_KTD.shape)}"
    assert x_KTD.dtype in DTYPES, f"column_sums takes one of {DTYPES}, got {x_KTD.dtype}"
    if backend.is_triton:
        sums: Tensor = _column_sums(x_KTD)
        return sums
    return x_KTD.sum(1, dtype=torch.float32)


def spread(x_KD: Tensor, num_rows: int, dtype: torch.dtype, backend: Backend = TORCH) -> Tensor:
    """Return [K, T, D] in `dtype`: float32 x for every row of its trial, as a view.

    It is for gains, biases and positions: `h + spread(bias, T, h.dtype)` is plain broadcasting whose gradient is summed
    in a fixed order and in float32.
    """
    assert x_KD.dtype == torch.float32, f"spread takes float32, got {x_KD.dtype}"
    if backend.is_triton and backend.strict:
        out: Tensor = _Spread.apply(x_KD, num_rows, dtype)  # type: ignore[no-untyped-call]
        return out
    return x_KD.to(dtype).unsqueeze(1).expand(-1, num_rows, -1)


def squares(x_KN: Tensor) -> Tensor:
    """Return [K] float32: the sum of squares of every trial, in Triton. No gradient."""
    assert x_KN.ndim == 2, f"squares takes [K, N], got {tuple(x_KN.shape)}"
    assert x_KN.dtype in DTYPES, f"squares takes one of {DTYPES}, got {x_KN.dtype}"
    sums_K: Tensor = _squares(x_KN)
    return sums_K


def aligned(x: Tensor) -> Tensor:
    """Return x, or a copy if x is not contiguous or not on a 16-byte boundary."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_KD: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
        return x_KD.to(dtype).unsqueeze(1).expand(-1, num_rows, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _column_sums(grads[0]), None, None


@torch.library.custom_op("hpxfer::column_sums", mutates_args=())
def _column_sums(x_KTD: Tensor) -> Tensor:
    from hpxfer.kernels.sums_triton import column_sums_kernel

    num_trials, num_rows, num_columns = x_KTD.shape
    blocks = -(-num_columns // BLOCK_D)
    x_KTD = aligned(x_KTD)
    while True:
        pieces = max(1, -(-num_rows // ROWS))
        sums_KCD = torch.empty(num_trials, pieces, num_columns, dtype=torch.float32, device=x_KTD.device)
        launch(
            column_sums_kernel,
            (pieces * blocks, num_trials),
            x_KTD,
            sums_KCD,
            num_rows,
            num_columns,
            pieces,
            blocks,
            ROWS=ROWS,
            BLOCK_T=BLOCK_T,
            BLOCK_D=BLOCK_D,
            **_OPTIONS,
        )
        if pieces == 1:
            return sums_KCD.squeeze(1)
        x_KTD, num_rows = sums_KCD, pieces


@_column_sums.register_fake
def _(x_KTD: Tensor) -> Tensor:
    return torch.empty(x_KTD.shape[0], x_KTD.shape[2], dtype=torch.float32, device=x_KTD.device)


def _keep_shape(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.shape, ctx.dtype = inputs[0].shape, inputs[0].dtype


def _column_sums_backward(ctx: Any, grad_KD: Tensor) -> Tensor:
    return grad_KD.to(ctx.dtype).unsqueeze(1).expand(ctx.shape)


_column_sums.register_autograd(_column_sums_backward, setup_context=_keep_shape)


@torch.library.custom_op("hpxfer::squares", mutates_args=())
def _squares(x_KN: Tensor) -> Tensor:
    from hpxfer.kernels.sums_triton import squares_kernel

    num_trials, num_elements = x_KN.shape
    pieces = max(1, -(-num_elements // ELEMENTS))
    sums_KC = torch.empty(num_trials, pieces, dtype=torch.float32, device=x_KN.device)
    launch(
        squares_kernel,
        (pieces, num_trials),
        aligned(x_KN),
        sums_KC,
        num_elements,
        pieces,
        ELEMENTS=ELEMENTS,
        BLOCK_N=BLOCK_N,
        **_OPTIONS,
    )
    sums_K1: Tensor = _column_sums(sums_KC.unsqueeze(2))
    return sums_K1.squeeze(1)


@_squares.register_fake
def _(x_KN: Tensor) -> Tensor:
    return torch.empty(x_KN.shape[0], dtype=torch.float32, device=x_KN.device)
