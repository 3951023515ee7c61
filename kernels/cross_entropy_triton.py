# mypy: ignore-errors
"""The Triton kernel of `cross_entropy`."""

from __future__ import annotations

import triton
import triton.language as tl


def block_of(num_columns: int, most: int) -> dict[str, int]:
    """Return the block and the warps for rows of this length."""
    block = min(most, int(triton.next_power_of_2(num_columns)))
    return {"BLOCK_V": block, "num_warps": max(1, min(8, block // 256))}


@triton.jit
def cross_entropy_rows_kernel(x_ptr, target_ptr, loss_ptr, stride_xn, num_columns, BLOCK_V: tl.constexpr):
    """One program per row. It computes the maximum and the sum of exponentials, then writes the gradient."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xn
    column = tl.arange(0, BLOCK_V)
    target = tl.load(target_ptr + row)
    inside = (target >= 0) & (target < num_columns)
    # Read before the first reduction, whose barrier keeps it before the stores of the second pass.
    x_target = tl.load(x_ptr + target, mask=inside, other=float("nan")).to(tl.float32)

    peak = -float("inf")
    total = 0.0
    for begin in range(0, num_columns, BLOCK_V):
        x = tl.load(x_ptr + begin + column, mask=begin + column < num_columns, other=-float("inf")).to(tl.float32)
        new_peak = tl.maximum(peak, tl.max(x, 0))
        # A block that holds only -inf has no maximum to subtract.
        shift = tl.where(new_peak == -float("inf"), 0.0, new_peak)
        total = total * tl.exp(peak - shift) + tl.sum(tl.exp(x - shift), 0)
        peak = new_peak
    tl.store(loss_ptr + row, tl.log(total) + (peak - x_target))

    for begin in range(0, num_columns, BLOCK_V):
        mask = begin + column < num_columns
        x = tl.load(x_ptr + begin + column, mask=mask, other=-float("inf")).to(tl.float32)
        share = tl.exp(x - peak) / total
        tl.store(x_ptr + begin + column, tl.where(begin + column == target, share - 1.0, share), mask=mask)
