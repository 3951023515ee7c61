# mypy: ignore-errors
"""The grouped product in Triton and the gradient of its matrices.

    y[place(n)] = (x[n] @ w[g] (+ x2[n] @ w2[g]) (+ b[g])) (* gate[slot(n)])            for n in group g
    dw[g]       = sum over n in g of l[lrow(n)]^T r[rrow(n)]                            P partial sums, then their sum

`place` and `slot` are the token slot of row n, or n itself. The P parts of a group split its rows evenly, so that they
depend on the group alone. The gradient of an empty group is an exact zero.
"""

import triton
import triton.language as tl

from hpxfer.kernels.tiles_triton import accumulate, dot, in_units, rows_of, tile_and_block


@triton.jit
def rows_product(
    x_ptr,
    w_ptr,
    x2_ptr,
    w2_ptr,
    b_ptr,
    gate_ptr,
    slot_ptr,
    y_ptr,
    tile_group_ptr,
    tile_row_ptr,
    ends_ptr,
    num_tiles,
    size_k,
    num_cols,
    TRANSPOSED: tl.constexpr,
    TWO: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_GATE: tl.constexpr,
    TO_SLOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    UNIT: tl.constexpr,
    SWIZZLE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """The matrices are [G, K, N], or [G, N, K] if TRANSPOSED."""
    size_k = in_units(size_k, UNIT)
    num_cols = in_units(num_cols, UNIT)
    stride_wk = 1 if TRANSPOSED else num_cols
    stride_wn = size_k if TRANSPOSED else 1
    tile, block = tile_and_block(num_tiles, tl.cdiv(num_cols, BLOCK_N), SWIZZLE)
    group = tl.load(tile_group_ptr + tile)
    if group < 0:
        return
    rows, row_mask = rows_of(tile, group, tile_row_ptr, ends_ptr, BLOCK_M)
    cols = block * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    acc = accumulate(
        acc, x_ptr, rows, size_k, w_ptr, group, size_k * num_cols, stride_wk, stride_wn, cols, num_cols, size_k,
        BLOCK_K, EVEN_K, UPCAST,
    )  # fmt: skip
    if TWO:
        acc = accumulate(
            acc, x2_ptr, rows, size_k, w2_ptr, group, size_k * num_cols, stride_wk, stride_wn, cols, num_cols, size_k,
            BLOCK_K, EVEN_K, UPCAST,
        )  # fmt: skip
    if HAS_BIAS:
        b_ptrs = b_ptr + group.to(tl.int64) * num_cols + cols
        acc += tl.load(b_ptrs, mask=cols < num_cols, other=0.0).to(tl.float32)[None, :]
    place = rows
    if TO_SLOT:
        place = tl.load(slot_ptr + rows)
    if HAS_GATE:
        acc *= tl.load(gate_ptr + place)[:, None]
    y_ptrs = y_ptr + place.to(tl.int64)[:, None] * num_cols + cols[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), mask=row_mask[:, None] & (cols < num_cols)[None, :])


@triton.jit
def part_of_group(group, part, ends_ptr, NUM_PARTS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the first row of part `part` of a group, and its end. Parts are whole blocks, as even as possible."""
    begin = tl.load(ends_ptr + group - 1, mask=group > 0, other=0)
    end = tl.load(ends_ptr + group)
    size = tl.cdiv(tl.cdiv(end - begin, BLOCK_N), NUM_PARTS) * BLOCK_N
    first = begin + part * size
    return first, tl.minimum(first + size, end)


@triton.jit
def row_at(row_ptr, n, end, GATHER: tl.constexpr):
    """Return where row n of the groups lies: what `row_ptr` says, or n itself."""
    row = n
    if GATHER:
        row = tl.load(row_ptr + n, mask=n < end, other=0)
    return row


@triton.jit
def matrix_gradient(
    l_ptr,
    l_row_ptr,
    r_ptr,
    r_row_ptr,
    part_ptr,
    ends_ptr,
    num_groups,
    size_i,
    size_o,
    GATHER_L: tl.constexpr,
    GATHER_R: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_N: tl.constexpr,
    UNIT: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Program (part of a group, block of i and o) writes part[p, g, i, o] = sum over the part's rows, in order.

    Every iteration loads the places of the next one's rows. If it loaded its own, the rows would wait for them, and the
    compiler would not copy rows ahead of the product.
    """
    size_i = in_units(size_i, UNIT)
    size_o = in_units(size_o, UNIT)
    blocks_o = tl.cdiv(size_o, BLOCK_O)
    blocks = tl.cdiv(size_i, BLOCK_I) * blocks_o
    block = tl.program_id(0) % blocks
    i = (block // blocks_o) * BLOCK_I + tl.arange(0, BLOCK_I)
    o = (block % blocks_o) * BLOCK_O + tl.arange(0, BLOCK_O)
    group = tl.program_id(0) // (blocks * NUM_PARTS)
    part = tl.program_id(0) // blocks % NUM_PARTS
    first, end = part_of_group(group, part, ends_ptr, NUM_PARTS, BLOCK_N)
    n = first + tl.arange(0, BLOCK_N)
    l_row = row_at(l_row_ptr, n, end, GATHER_L)
    r_row = row_at(r_row_ptr, n, end, GATHER_R)
    acc = tl.zeros((BLOCK_I, BLOCK_O), dtype=tl.float32)
    for start in range(first, end, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        mask = n < end
        l_ptrs = l_ptr + l_row.to(tl.int64)[:, None] * size_i + i[None, :]
        r_ptrs = r_ptr + r_row.to(tl.int64)[:, None] * size_o + o[None, :]
        l = tl.load(l_ptrs, mask=mask[:, None] & (i < size_i)[None, :], other=0.0)  # noqa: E741
        r = tl.load(r_ptrs, mask=mask[:, None] & (o < size_o)[None, :], other=0.0)
        acc = dot(tl.trans(l), r, acc, UPCAST)
        l_row = row_at(l_row_ptr, n + BLOCK_N, end, GATHER_L)
        r_row = row_at(r_row_ptr, n + BLOCK_N, end, GATHER_R)
    base = (part.to(tl.int64) * num_groups + group) * size_i * size_o
    out = part_ptr + base + i.to(tl.int64)[:, None] * size_o + o[None, :]
    tl.store(out, acc.to(part_ptr.dtype.element_ty), mask=(i < size_i)[:, None] & (o < size_o)[None, :])


@triton.jit
def bias_gradient(
    x_ptr,
    row_ptr,
    gate_ptr,
    slot_ptr,
    part_ptr,
    ends_ptr,
    num_groups,
    num_cols,
    GATHER: tl.constexpr,
    HAS_GATE: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Program (part of a group, block of columns) writes part[p, g, c] = sum of (gate *) x over the part's rows."""
    blocks = tl.cdiv(num_cols, BLOCK_C)
    c = (tl.program_id(0) % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
    group = tl.program_id(0) // (blocks * NUM_PARTS)
    part = tl.program_id(0) // blocks % NUM_PARTS
    first, end = part_of_group(group, part, ends_ptr, NUM_PARTS, BLOCK_N)
    acc = tl.zeros((BLOCK_C,), dtype=tl.float32)
    for start in range(first, end, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        mask = n < end
        row = n
        if GATHER:
            row = tl.load(row_ptr + n, mask=mask, other=0)
        x_ptrs = x_ptr + row.to(tl.int64)[:, None] * num_cols + c[None, :]
        x = tl.load(x_ptrs, mask=mask[:, None] & (c < num_cols)[None, :], other=0.0).to(tl.float32)
        if HAS_GATE:
            x *= tl.load(gate_ptr + tl.load(slot_ptr + n, mask=mask, other=0), mask=mask, other=0.0)[:, None]
        acc += tl.sum(x, axis=0)
    out = part_ptr + (part.to(tl.int64) * num_groups + group) * num_cols + c
    tl.store(out, acc.to(part_ptr.dtype.element_ty), mask=c < num_cols)


@triton.jit
def sum_parts(part_ptr, out_ptr, size, NUM_PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Write out[j] = part[0, j] + part[1, j] + ..., in order."""
    j = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    part_ptrs = part_ptr + j
    total = tl.load(part_ptrs, mask=j < size, other=0.0)
    for _ in range(1, NUM_PARTS):
        part_ptrs += size
        total += tl.load(part_ptrs, mask=j < size, other=0.0)
    tl.store(out_ptr + j, total.to(out_ptr.dtype.element_ty), mask=j < size)
