# mypy: ignore-errors
"""Triton kernels of the experts: products fused with the activation, and sums over the slots of a token.

    up:      u[n] = x[token(n)] @ w_in[g] + b_in[g]       v[n] = x[token(n)] @ w_gate[g] + b_gate[g]
             h[n] = gelu(u), relu(u) or silu(v) * u
    hidden:  q[n] = dy[token(n)] @ w_out[g]^T             the gradient of h[n], before the gate
             du[n], dv[n] = gate * q * dh/du, gate * q * dh/dv
             gated[n] = gate * h[n]                       so that dw_out[g] = sum of gated[n]^T dy[token(n)]
             dgate[n] = <q[n], h[n]> + <dy[token(n)], b_out[g]>, from partial sums over the blocks of columns

`u` and `v` are rounded to the dtype of the output before they are used, because the backward pass reads them so.
"""

import triton
import triton.language as tl

from hpxfer.kernels.tiles_triton import accumulate, corner, dot, in_units, rows_of, tile_and_block


@triton.jit
def activated(u, v, ACTIVATION: tl.constexpr):
    """Return the hidden features. Only swiglu uses `v`."""
    if ACTIVATION == "gelu":
        return 0.5 * u * (1.0 + tl.erf(u * 0.7071067811865476))
    if ACTIVATION == "relu":
        return tl.where(u <= 0.0, 0.0, u)
    return v * tl.sigmoid(v) * u


@triton.jit
def derivative(u, v, ACTIVATION: tl.constexpr):
    """Return dh/du."""
    if ACTIVATION == "gelu":
        return 0.5 * (1.0 + tl.erf(u * 0.7071067811865476)) + u * 0.3989422804014327 * tl.exp(-0.5 * u * u)
    if ACTIVATION == "relu":
        return tl.where(u > 0.0, 1.0, 0.0)
    return v * tl.sigmoid(v)


@triton.jit
def halves(x):
    """Return the left and the right half of the columns of x."""
    M: tl.constexpr = x.shape[0]
    N: tl.constexpr = x.shape[1]
    return tl.split(tl.permute(tl.reshape(x, (M, 2, N // 2)), (0, 2, 1)))


@triton.jit
def quarters(x):
    """Return the columns of x in four blocks. An epilogue of all at once needs more registers than there are."""
    left, right = halves(x)
    a, b = halves(left)
    c, d = halves(right)
    return a, b, c, d


@triton.jit
def eighths(x):
    """Return the columns of x in eight blocks."""
    left, right = halves(x)
    a, b, c, d = quarters(left)
    e, f, g, h = quarters(right)
    return a, b, c, d, e, f, g, h


@triton.jit
def plus_bias(acc, b_ptr, group, cols, num_cols):
    b_ptrs = b_ptr + group.to(tl.int64) * num_cols + cols
    return acc + tl.load(b_ptrs, mask=cols < num_cols, other=0.0).to(tl.float32)[None, :]


@triton.jit
def store_up(
    u,
    v,
    first_col,
    b_ptr,
    bv_ptr,
    u_ptr,
    v_ptr,
    h_ptr,
    group,
    row_mask,
    num_cols,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_GATE_BIAS: tl.constexpr,
):
    """Write some columns of u, v and h. The pointers are to the first row."""
    cols = first_col + tl.arange(0, u.shape[1])
    out = tl.arange(0, u.shape[0])[:, None] * num_cols + cols[None, :]
    mask = row_mask[:, None] & (cols < num_cols)[None, :]
    if HAS_BIAS:
        u = plus_bias(u, b_ptr, group, cols, num_cols)
    u = u.to(u_ptr.dtype.element_ty)
    tl.store(u_ptr + out, u, mask=mask)
    if ACTIVATION == "swiglu":
        if HAS_GATE_BIAS:
            v = plus_bias(v, bv_ptr, group, cols, num_cols)
        v = v.to(v_ptr.dtype.element_ty)
        tl.store(v_ptr + out, v, mask=mask)
    h = activated(u.to(tl.float32), v.to(tl.float32), ACTIVATION)
    tl.store(h_ptr + out, h.to(h_ptr.dtype.element_ty), mask=mask)


@triton.jit
def up(
    x_ptr,
    token_ptr,
    w_ptr,
    wv_ptr,
    b_ptr,
    bv_ptr,
    u_ptr,
    v_ptr,
    h_ptr,
    tile_group_ptr,
    tile_row_ptr,
    ends_ptr,
    num_tiles,
    size_k,
    num_cols,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_GATE_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    UNIT: tl.constexpr,
    SWIZZLE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    size_k = in_units(size_k, UNIT)
    num_cols = in_units(num_cols, UNIT)
    tile, block = tile_and_block(num_tiles, tl.cdiv(num_cols, BLOCK_N), SWIZZLE)
    group = tl.load(tile_group_ptr + tile)
    if group < 0:
        return
    rows, row_mask = rows_of(tile, group, tile_row_ptr, ends_ptr, BLOCK_M)
    token = tl.load(token_ptr + rows)
    cols = block * BLOCK_N + tl.arange(0, BLOCK_N)
    col_mask = cols < num_cols
    u = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    v = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if ACTIVATION == "swiglu":
        # Both matrices share a loop, so that every block of x is read once.
        k = tl.arange(0, BLOCK_K)
        x_ptrs = x_ptr + token.to(tl.int64)[:, None] * size_k + k[None, :]
        w_off = group.to(tl.int64) * size_k * num_cols + k[:, None] * num_cols + cols[None, :]
        for start in range(0, size_k, BLOCK_K):
            if EVEN_K:
                x = tl.load(x_ptrs)
                w_mask = col_mask[None, :]
            else:
                x = tl.load(x_ptrs, mask=(k < size_k - start)[None, :], other=0.0)
                w_mask = (k < size_k - start)[:, None] & col_mask[None, :]
            u = dot(x, tl.load(w_ptr + w_off, mask=w_mask, other=0.0), u, UPCAST)
            v = dot(x, tl.load(wv_ptr + w_off, mask=w_mask, other=0.0), v, UPCAST)
            x_ptrs += BLOCK_K
            w_off += BLOCK_K * num_cols
    else:
        u = accumulate(
            u, x_ptr, token, size_k, w_ptr, group, size_k * num_cols, num_cols, 1, cols, num_cols, size_k,
            BLOCK_K, EVEN_K, UPCAST,
        )  # fmt: skip
    u_ptr = corner(u_ptr, tile, tile_row_ptr, num_cols)
    v_ptr = corner(v_ptr, tile, tile_row_ptr, num_cols)
    h_ptr = corner(h_ptr, tile, tile_row_ptr, num_cols)
    us = quarters(u)
    vs = quarters(v)
    for quarter in tl.static_range(4):
        store_up(
            us[quarter], vs[quarter], block * BLOCK_N + quarter * (BLOCK_N // 4), b_ptr, bv_ptr, u_ptr, v_ptr, h_ptr,
            group, row_mask, num_cols, ACTIVATION, HAS_BIAS, HAS_GATE_BIAS,
        )  # fmt: skip


@triton.jit
def store_hidden(
    q,
    first_col,
    u_ptr,
    v_ptr,
    du_ptr,
    dv_ptr,
    gated_ptr,
    gate,
    row_mask,
    num_cols,
    ACTIVATION: tl.constexpr,
):
    """Write the gradients from some columns of q, and return their part of <q, h>. Pointers are to the first row."""
    BLOCK_M: tl.constexpr = q.shape[0]
    cols = first_col + tl.arange(0, q.shape[1])
    out = tl.arange(0, BLOCK_M)[:, None] * num_cols + cols[None, :]
    mask = row_mask[:, None] & (cols < num_cols)[None, :]
    u = tl.load(u_ptr + out, mask=mask, other=0.0).to(tl.float32)
    v = u
    if ACTIVATION == "swiglu":
        v = tl.load(v_ptr + out, mask=mask, other=0.0).to(tl.float32)
    h = activated(u, v, ACTIVATION)
    # Columns beyond the last have h = 0.
    share = tl.sum(q * h, axis=1)
    tl.store(gated_ptr + out, (gate[:, None] * h).to(gated_ptr.dtype.element_ty), mask=mask)
    q *= gate[:, None]
    tl.store(du_ptr + out, (q * derivative(u, v, ACTIVATION)).to(du_ptr.dtype.element_ty), mask=mask)
    if ACTIVATION == "swiglu":
        s = tl.sigmoid(v)
        dv = q * u * s * (1.0 + v * (1.0 - s))
        tl.store(dv_ptr + out, dv.to(dv_ptr.dtype.element_ty), mask=mask)
    return share


@triton.jit
def hidden_gradient(
    dy_ptr,
    token_ptr,
    w_ptr,
    u_ptr,
    v_ptr,
    gate_ptr,
    slot_ptr,
    du_ptr,
    dv_ptr,
    gated_ptr,
    part_ptr,
    tile_group_ptr,
    tile_row_ptr,
    ends_ptr,
    num_tiles,
    num_rows,
    size_k,
    num_cols,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    UNIT: tl.constexpr,
    SWIZZLE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    size_k = in_units(size_k, UNIT)
    num_cols = in_units(num_cols, UNIT)
    tile, block = tile_and_block(num_tiles, tl.cdiv(num_cols, BLOCK_N), SWIZZLE)
    group = tl.load(tile_group_ptr + tile)
    if group < 0:
        return
    rows, row_mask = rows_of(tile, group, tile_row_ptr, ends_ptr, BLOCK_M)
    token = tl.load(token_ptr + rows)
    cols = block * BLOCK_N + tl.arange(0, BLOCK_N)
    q = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    q = accumulate(
        q, dy_ptr, token, size_k, w_ptr, group, size_k * num_cols, 1, size_k, cols, num_cols, size_k,
        BLOCK_K, EVEN_K, UPCAST,
    )  # fmt: skip
    gate = tl.load(gate_ptr + tl.load(slot_ptr + rows))
    u_ptr = corner(u_ptr, tile, tile_row_ptr, num_cols)
    v_ptr = corner(v_ptr, tile, tile_row_ptr, num_cols)
    du_ptr = corner(du_ptr, tile, tile_row_ptr, num_cols)
    dv_ptr = corner(dv_ptr, tile, tile_row_ptr, num_cols)
    gated_ptr = corner(gated_ptr, tile, tile_row_ptr, num_cols)
    share = tl.zeros((BLOCK_M,), dtype=tl.float32)
    qs = eighths(q)
    for eighth in tl.static_range(8):
        share += store_hidden(
            qs[eighth], block * BLOCK_N + eighth * (BLOCK_N // 8), u_ptr, v_ptr, du_ptr, dv_ptr, gated_ptr, gate,
            row_mask, num_cols, ACTIVATION,
        )  # fmt: skip
    tl.store(part_ptr + block.to(tl.int64) * num_rows + rows, share, mask=row_mask)


@triton.jit
def gate_gradient(
    part_ptr,
    dy_ptr,
    token_ptr,
    b_ptr,
    slot_ptr,
    dgate_ptr,
    tile_group_ptr,
    tile_row_ptr,
    ends_ptr,
    num_rows,
    num_parts,
    size_d,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program `tile` owns its rows: dgate[slot(n)] = sum of the parts in order (+ <dy[token(n)], b_out[g]>)."""
    tile = tl.program_id(0)
    group = tl.load(tile_group_ptr + tile)
    if group < 0:
        return
    rows, row_mask = rows_of(tile, group, tile_row_ptr, ends_ptr, BLOCK_M)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    part_ptrs = part_ptr + rows
    for _ in range(num_parts):
        total += tl.load(part_ptrs)
        part_ptrs += num_rows
    if HAS_BIAS:
        token = tl.load(token_ptr + rows)
        for start in range(0, size_d, BLOCK_D):
            d = start + tl.arange(0, BLOCK_D)
            b = tl.load(b_ptr + group.to(tl.int64) * size_d + d, mask=d < size_d, other=0.0).to(tl.float32)
            dy_ptrs = dy_ptr + token.to(tl.int64)[:, None] * size_d + d[None, :]
            dy = tl.load(dy_ptrs, mask=(d < size_d)[None, :], other=0.0).to(tl.float32)
            total += tl.sum(dy * b[None, :], axis=1)
    tl.store(dgate_ptr + tl.load(slot_ptr + rows), total, mask=row_mask)


@triton.jit
def sum_slots(slot_ptr, out_ptr, size, size_d, NUM_ACTIVE: tl.constexpr, BLOCK: tl.constexpr):
    """Write out[t, d] = slot[t * A, d] + slot[t * A + 1, d] + ..., in order."""
    j = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    first = (j // size_d) * (NUM_ACTIVE * size_d) + j % size_d
    total = tl.load(slot_ptr + first, mask=j < size, other=0.0)
    for a in range(1, NUM_ACTIVE):
        total += tl.load(slot_ptr + first + a * size_d, mask=j < size, other=0.0)
    tl.store(out_ptr + j, total.to(out_ptr.dtype.element_ty), mask=j < size)
