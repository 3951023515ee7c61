# mypy: ignore-errors
"""The Triton kernels of `embedding`: an ordered segment sum.

The positions of one (trial, id) are a segment [start, end) of the sorted order. A segment of more than PIECE positions
is long, and is cut into pieces from its start. A window is PIECE consecutive positions of the sorted order. In each
window at most one long segment starts, because it reaches beyond the window. At most one later piece starts there,
because the pieces of a segment are PIECE apart, and the second piece of another segment lies beyond. Therefore slot 2 *
window + 1 holds the sum of a first piece that starts in the window, and slot 2 * window holds the sum of a later piece.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _sum_rows(
    grad_ptr,
    order_ptr,
    begin,
    end,
    column,
    num_features,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Return the sum of grad[order[n]] for n in [begin, end)."""
    total = tl.zeros([BLOCK_T, BLOCK_D], dtype=tl.float32)
    for low in range(begin, end, BLOCK_T):
        place = low + tl.arange(0, BLOCK_T)
        row = tl.load(order_ptr + place, mask=place < end, other=0).to(tl.int64)
        mask = (place < end)[:, None] & (column < num_features)[None, :]
        at = grad_ptr + row[:, None] * num_features + column[None, :]
        total += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    return tl.sum(total, 0)


# This number grows with the trials. Without the option, Triton compiles another kernel where 16 divides it.
@triton.jit(do_not_specialize=["count"])
def long_pieces_kernel(
    grad_ptr,
    piece_ptr,
    sorted_ptr,
    order_ptr,
    start_ptr,
    num_features,
    count,
    PIECE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One program per slot and block of features: the sum of the piece of a long segment that belongs to the slot."""
    slot = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    low = slot // 2 * PIECE
    high = tl.minimum(low + PIECE, count)
    is_first = slot % 2 == 1
    # A long segment that starts in the window holds its last position. One that enters it holds its first.
    key = tl.load(sorted_ptr + tl.where(is_first, high - 1, low))
    start = tl.load(start_ptr + key)
    end = tl.load(start_ptr + key + 1)
    # Where a segment starts with the window, its first piece is summed in both slots, and read from one of them.
    later = start + (low - start + PIECE - 1) // PIECE * PIECE
    begin = tl.where(is_first, start, later)
    if (end - start > PIECE) & (begin >= low) & (begin < tl.minimum(high, end)):
        total = _sum_rows(
            grad_ptr,
            order_ptr,
            begin,
            tl.minimum(begin + PIECE, end),
            column,
            num_features,
            BLOCK_T,
            BLOCK_D,
        )
        tl.store(piece_ptr + slot * num_features + column, total, mask=column < num_features)


@triton.jit
def table_rows_kernel(
    grad_ptr,
    out_ptr,
    piece_ptr,
    order_ptr,
    start_ptr,
    num_features,
    PIECE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One program per table row and block of features: the sum of its segment, zero where it is empty."""
    key = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    start = tl.load(start_ptr + key)
    end = tl.load(start_ptr + key + 1)
    out_at = out_ptr + key * num_features + column
    if end - start > PIECE:
        pieces = (end - start + PIECE - 1) // PIECE
        partial = tl.zeros([BLOCK_T, BLOCK_D], dtype=tl.float32)
        for low in range(0, pieces, BLOCK_T):
            piece = low + tl.arange(0, BLOCK_T)
            slot = (start + piece * PIECE) // PIECE * 2 + tl.where(piece == 0, 1, 0)
            mask = (piece < pieces)[:, None] & (column < num_features)[None, :]
            partial += tl.load(piece_ptr + slot[:, None] * num_features + column[None, :], mask=mask, other=0.0)
        tl.store(out_at, tl.sum(partial, 0), mask=column < num_features)
    else:
        total = _sum_rows(grad_ptr, order_ptr, start, end, column, num_features, BLOCK_T, BLOCK_D)
        tl.store(out_at, total, mask=column < num_features)
