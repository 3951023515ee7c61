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
def map_tiles(
    ends_ptr,
    tile_group_ptr,
    tile_row_ptr,
    num_groups,
    num_tiles,
    BLOCK_M: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Program g writes (g, first row) of every tile of group g; program `num_groups` writes -1 after the last tile."""
    group = tl.program_id(0)
    g = tl.arange(0, BLOCK_G)
    ends = tl.load(ends_ptr + g, mask=g < num_groups, other=0)
    begins = tl.load(ends_ptr + g - 1, mask=(g > 0) & (g < num_groups), other=0)
    tiles = tl.where(g < num_groups, (ends - begins + BLOCK_M - 1) // BLOCK_M, 0)
    first = tl.sum(tl.where(g < group, tiles, 0))
    begin = tl.sum(tl.where(g == group, begins, 0))
    count = tl.sum(tl.where(g == group, tiles, 0))
    count = tl.where(group == num_groups, num_tiles - first, count)
    value = tl.where(group == num_groups, -1, group)
    for start in range(0, count, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        tl.store(tile_group_ptr + first + t, tl.zeros_like(t) + value, mask=t < count)
        tl.store(tile_row_ptr + first + t, begin + t * BLOCK_M, mask=t < count)


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
