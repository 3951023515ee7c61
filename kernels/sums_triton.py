# mypy: ignore-errors
"""The Triton kernels of `sums`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def column_sums_kernel(
    x_ptr,
    y_ptr,
    num_rows,
    num_columns,
    num_pieces,
    num_blocks,
    ROWS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One program per piece of ROWS rows and block of columns of a trial: y[k, piece, d]."""
    trial = tl.program_id(1).to(tl.int64)
    piece = tl.program_id(0) // num_blocks
    column = (tl.program_id(0) % num_blocks) * BLOCK_D + tl.arange(0, BLOCK_D)
    row = piece * ROWS + tl.arange(0, BLOCK_T)
    x_at = x_ptr + trial * num_rows * num_columns + column[None, :]
    total = tl.zeros([BLOCK_T, BLOCK_D], dtype=tl.float32)
    for begin in range(0, ROWS, BLOCK_T):
        mask = (begin + row < num_rows)[:, None] & (column < num_columns)[None, :]
        x = tl.load(x_at + (begin + row)[:, None].to(tl.int64) * num_columns, mask=mask, other=0.0)
        total += x.to(tl.float32)
    y_at = y_ptr + (trial * num_pieces + piece) * num_columns + column
    tl.store(y_at, tl.sum(total, 0), mask=column < num_columns)


@triton.jit
def squares_kernel(x_ptr, y_ptr, num_elements, num_pieces, ELEMENTS: tl.constexpr, BLOCK_N: tl.constexpr):
    """One program per piece of ELEMENTS elements of a trial: y[k, piece]."""
    trial = tl.program_id(1).to(tl.int64)
    piece = tl.program_id(0)
    element = piece.to(tl.int64) * ELEMENTS + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_N], dtype=tl.float32)
    for begin in range(0, ELEMENTS, BLOCK_N):
        mask = begin + element < num_elements
        x = tl.load(x_ptr + trial * num_elements + begin + element, mask=mask, other=0.0).to(tl.float32)
        total += x * x
    tl.store(y_ptr + trial * num_pieces + piece, tl.sum(total, 0))
