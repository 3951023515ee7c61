# mypy: ignore-errors
"""The Triton kernel of `cross_entropy`."""

from __future__ import annotations

import triton
import triton.language as tl


def launch_options(num_columns: int, most: int) -> dict[str, int]:
    """Return the block, the warps and the limit on registers for rows of this length, see `cross_entropy`.

    A thread has 8 elements of a block, or 16 of the largest. 32 warps with 32 registers per thread run twice on a
    multiprocessor. Rows that 16 does not divide are loaded element by element. That takes more registers, so their
    blocks are half as large and have no limit, which would make them spill.
    """
    padded = num_columns % 16 == 0
    block = min(most if padded else most // 2, int(triton.next_power_of_2(num_columns)))
    warps = max(1, min(32, block // 256))
    return {"BLOCK_V": block, "num_warps": warps, **({"maxnreg": 32} if padded and warps == 32 else {})}


@triton.jit
def cross_entropy_rows_kernel(x_ptr, target_ptr, loss_ptr, stride_xn, num_columns, BLOCK_V: tl.constexpr):
    """One program per row. It computes the maximum and the sum of exponentials, then writes the gradient.

    The second pass goes backward: what was read last is the likeliest to be in the cache still.
    """
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

    last = (num_columns - 1) // BLOCK_V * BLOCK_V
    for before in range(0, num_columns, BLOCK_V):
        begin = last - before
        mask = begin + column < num_columns
        x = tl.load(x_ptr + begin + column, mask=mask, other=-float("inf")).to(tl.float32)
        share = tl.exp(x - peak) / total
        tl.store(x_ptr + begin + column, tl.where(begin + column == target, share - 1.0, share), mask=mask)
