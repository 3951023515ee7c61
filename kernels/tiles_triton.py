# mypy: ignore-errors
"""What the Triton products share: the rows of a program, and the loop over the inner dimension.

N rows lie in G groups one after the other. A tile is BLOCK_M rows of one group. The host knows only a bound on the
number of tiles, cdiv(N, BLOCK_M) + G, so that it waits for no load. Programs after the last tile find group -1 and end.

The bits of a row's result depend on its row and its group's matrix, summed in a fixed order of the inner dimension.
They do not depend on where the row lies or what lies beside it.

Letters: M rows of a tile, N columns of a tile, K inner dimension of a tile. Offsets of rows and groups are int64 before
they are multiplied by a stride. UPCAST is on only in Triton's interpreter, whose dot is wrong for bfloat16.
"""

import triton
import triton.language as tl


@triton.jit
def tiles_of_groups(g, ends_ptr, num_groups, BLOCK_M: tl.constexpr):
    """Return the number of tiles of groups g, 0 beyond the last group, and their first rows."""
    ends = tl.load(ends_ptr + g, mask=g < num_groups, other=0)
    begins = tl.load(ends_ptr + g - 1, mask=(g > 0) & (g < num_groups), other=0)
    return (ends - begins + BLOCK_M - 1) // BLOCK_M, begins


@triton.jit
def map_tiles(
    ends_ptr,
    tile_group_ptr,
    tile_row_ptr,
    num_groups,
    num_tiles,
    BLOCK_M: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program b writes (g, first row) of every tile of its BLOCK_G groups. The last one has no groups: it writes -1.

    Every program counts the tiles before its own, BLOCK groups at a time, so that no program waits for another.
    """
    first_group = tl.program_id(0) * BLOCK_G
    count = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, tl.minimum(first_group, num_groups), BLOCK):
        before = start + tl.arange(0, BLOCK)
        tiles, _ = tiles_of_groups(before, ends_ptr, num_groups, BLOCK_M)
        count += tl.where(before < first_group, tiles, 0)
    first = tl.sum(count)
    g = first_group + tl.arange(0, BLOCK_G)
    tiles, begins = tiles_of_groups(g, ends_ptr, num_groups, BLOCK_M)
    firsts = first + tl.cumsum(tiles) - tiles
    for start in range(0, tl.max(tiles), BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)[None, :]
        mask = t < tiles[:, None]
        tl.store(tile_group_ptr + firsts[:, None] + t, tl.zeros_like(t) + g[:, None], mask=mask)
        tl.store(tile_row_ptr + firsts[:, None] + t, begins[:, None] + t * BLOCK_M, mask=mask)
    if first_group >= num_groups:
        for start in range(first, num_tiles, BLOCK):
            t = start + tl.arange(0, BLOCK)
            tl.store(tile_group_ptr + t, tl.full((BLOCK,), -1, dtype=tl.int32), mask=t < num_tiles)


@triton.jit
def tile_and_block(num_tiles, num_blocks, SWIZZLE: tl.constexpr):
    """Return the tile and the block of columns of this program. SWIZZLE tiles share a block in turn, for L2."""
    pid = tl.program_id(0)
    band = pid // (SWIZZLE * num_blocks)
    height = tl.minimum(num_tiles - band * SWIZZLE, SWIZZLE)
    within = pid % (SWIZZLE * num_blocks)
    return band * SWIZZLE + within % height, within // height


@triton.jit
def rows_of(tile, group, tile_row_ptr, ends_ptr, BLOCK_M: tl.constexpr):
    """Return the rows of a tile, and which belong to its group. The others repeat its first row."""
    begin = tl.load(tile_row_ptr + tile)
    rows = begin + tl.arange(0, BLOCK_M)
    mask = rows < tl.load(ends_ptr + group)
    return tl.where(mask, rows, begin), mask


@triton.jit
def corner(ptr, tile, tile_row_ptr, num_cols):
    """Return where a tile's first row starts. Offsets from there fit int32, which halves their registers."""
    return ptr + tl.load(tile_row_ptr + tile).to(tl.int64) * num_cols


@triton.jit
def in_units(size, UNIT: tl.constexpr):
    """Return `size`, which UNIT divides, so that the compiler knows it: rows of whole units are copied ahead.

    Triton itself sees only whether 16 divides an argument. Of rows that it takes for unaligned it loads every number
    alone, without a pipeline.
    """
    if UNIT == 16:
        return size
    return size // UNIT * UNIT


@triton.jit
def dot(a, b, acc, UPCAST: tl.constexpr):
    """Return acc + a @ b in float32. float32 operands are not rounded to TF32."""
    if UPCAST:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def accumulate(
    acc,
    x_ptr,
    x_rows,
    stride_xm,
    w_ptr,
    group,
    stride_wg,
    stride_wk,
    stride_wn,
    cols,
    num_cols,
    size_k,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Return acc + x[x_rows] @ w[group][:, cols]. All of `x_rows` must be legal. Columns beyond the last are 0."""
    k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + x_rows.to(tl.int64)[:, None] * stride_xm + k[None, :]
    w_ptrs = w_ptr + group.to(tl.int64) * stride_wg + k[:, None] * stride_wk + cols[None, :] * stride_wn
    col_mask = cols < num_cols
    for start in range(0, size_k, BLOCK_K):
        if EVEN_K:
            x = tl.load(x_ptrs)
            w = tl.load(w_ptrs, mask=col_mask[None, :], other=0.0)
        else:
            k_mask = k < size_k - start
            x = tl.load(x_ptrs, mask=k_mask[None, :], other=0.0)
            w = tl.load(w_ptrs, mask=k_mask[:, None] & col_mask[None, :], other=0.0)
        acc = dot(x, w, acc, UPCAST)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K * stride_wk
    return acc
