# mypy: ignore-errors
"""Triton kernels around the products of a library: what the kernels of `expert_triton.py` do within a product.

    gather_rows     out[n] = x[token(n)]
    activate        u[n] += b_in[g], v[n] += b_gate[g], h[n] = gelu(u), relu(u) or silu(v) * u
    hidden_rows     from q[n] = dy[token(n)] @ w_out[g]^T: du, dv, gated, and the parts of dgate
    place_rows      y[slot(n)] = (d[n] (+ d2[n]) (+ b[g])) (* gate[slot(n)])
    cast_matrices   dw[g] in the dtype of the weight, exact zeros for a group without rows

Each pass reads and writes every row once.
"""

import triton
import triton.language as tl

from hpxfer.kernels.expert_triton import activated, plus_bias, store_hidden
from hpxfer.kernels.tiles_triton import corner, in_units, rows_of


@triton.jit
def gather_rows(
    x_ptr,
    token_ptr,
    out_ptr,
    num_rows,
    num_cols,
    UNIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    num_cols = in_units(num_cols, UNIT)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (rows < num_rows)[:, None] & (cols < num_cols)[None, :]
    token = tl.load(token_ptr + rows, mask=rows < num_rows, other=0).to(tl.int64)
    x = tl.load(x_ptr + token[:, None] * num_cols + cols[None, :], mask=mask)
    tl.store(out_ptr + rows.to(tl.int64)[:, None] * num_cols + cols[None, :], x, mask=mask)


@triton.jit
def activate(
    u_ptr,
    v_ptr,
    b_ptr,
    bv_ptr,
    h_ptr,
    tile_group_ptr,
    tile_row_ptr,
    ends_ptr,
    num_cols,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_GATE_BIAS: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write h, and u and v where they get a bias, in place. They are rounded before they are used, as in `up`."""
    tile = tl.program_id(0)
    group = tl.load(tile_group_ptr + tile)
    if group < 0:
        return
    num_cols = in_units(num_cols, UNIT)
    _, row_mask = rows_of(tile, group, tile_row_ptr, ends_ptr, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = tl.arange(0, BLOCK_M)[:, None] * num_cols + cols[None, :]
    mask = row_mask[:, None] & (cols < num_cols)[None, :]
    u_ptrs = corner(u_ptr, tile, tile_row_ptr, num_cols) + at
    u = tl.load(u_ptrs, mask=mask, other=0.0)
    if HAS_BIAS:
        u = plus_bias(u.to(tl.float32), b_ptr, group, cols, num_cols).to(u_ptr.dtype.element_ty)
        tl.store(u_ptrs, u, mask=mask)
    v = u
    if ACTIVATION == "swiglu":
        v_ptrs = corner(v_ptr, tile, tile_row_ptr, num_cols) + at
        v = tl.load(v_ptrs, mask=mask, other=0.0)
        if HAS_GATE_BIAS:
            v = plus_bias(v.to(tl.float32), bv_ptr, group, cols, num_cols).to(v_ptr.dtype.element_ty)
            tl.store(v_ptrs, v, mask=mask)
    h = activated(u.to(tl.float32), v.to(tl.float32), ACTIVATION)
    tl.store(corner(h_ptr, tile, tile_row_ptr, num_cols) + at, h.to(h_ptr.dtype.element_ty), mask=mask)


@triton.jit
def hidden_rows(
    q_ptr,
    u_ptr,
    v_ptr,
    gate_ptr,
    slot_ptr,
    dv_ptr,
    gated_ptr,
    part_ptr,
    tile_group_ptr,
    tile_row_ptr,
    ends_ptr,
    num_rows,
    num_cols,
    ACTIVATION: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write du over q, dv, gated and this block's part of <q, h>."""
    tile = tl.program_id(0)
    group = tl.load(tile_group_ptr + tile)
    if group < 0:
        return
    num_cols = in_units(num_cols, UNIT)
    rows, row_mask = rows_of(tile, group, tile_row_ptr, ends_ptr, BLOCK_M)
    first_col = tl.program_id(1) * BLOCK_N
    cols = first_col + tl.arange(0, BLOCK_N)
    mask = row_mask[:, None] & (cols < num_cols)[None, :]
    q_ptr = corner(q_ptr, tile, tile_row_ptr, num_cols)
    q = tl.load(q_ptr + tl.arange(0, BLOCK_M)[:, None] * num_cols + cols[None, :], mask=mask, other=0.0)
    share = store_hidden(
        q.to(tl.float32),
        first_col,
        corner(u_ptr, tile, tile_row_ptr, num_cols),
        corner(v_ptr, tile, tile_row_ptr, num_cols),
        q_ptr,
        corner(dv_ptr, tile, tile_row_ptr, num_cols),
        corner(gated_ptr, tile, tile_row_ptr, num_cols),
        tl.load(gate_ptr + tl.load(slot_ptr + rows)),
        row_mask,
        num_cols,
        ACTIVATION,
    )
    tl.store(part_ptr + tl.program_id(1).to(tl.int64) * num_rows + rows, share, mask=row_mask)


@triton.jit
def place_rows(
    d_ptr,
    d2_ptr,
    b_ptr,
    gate_ptr,
    slot_ptr,
    y_ptr,
    tile_group_ptr,
    tile_row_ptr,
    ends_ptr,
    num_cols,
    TWO: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_GATE: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    tile = tl.program_id(0)
    group = tl.load(tile_group_ptr + tile)
    if group < 0:
        return
    num_cols = in_units(num_cols, UNIT)
    rows, row_mask = rows_of(tile, group, tile_row_ptr, ends_ptr, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = tl.arange(0, BLOCK_M)[:, None] * num_cols + cols[None, :]
    mask = row_mask[:, None] & (cols < num_cols)[None, :]
    y = tl.load(corner(d_ptr, tile, tile_row_ptr, num_cols) + at, mask=mask, other=0.0).to(tl.float32)
    if TWO:
        y += tl.load(corner(d2_ptr, tile, tile_row_ptr, num_cols) + at, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        y = plus_bias(y, b_ptr, group, cols, num_cols)
    slot = tl.load(slot_ptr + rows)
    if HAS_GATE:
        y *= tl.load(gate_ptr + slot)[:, None]
    tl.store(y_ptr + slot.to(tl.int64)[:, None] * num_cols + cols[None, :], y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def cast_matrices(dw_ptr, ends_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """Program (group, block) casts some elements. A library may leave the matrix of a group without rows unwritten."""
    group = tl.program_id(0)
    begin = tl.load(ends_ptr + group - 1, mask=group > 0, other=0)
    written = tl.where(begin < tl.load(ends_ptr + group), size, 0)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = group.to(tl.int64) * size + j
    dw = tl.load(dw_ptr + at, mask=j < written, other=0.0)
    tl.store(out_ptr + at, dw.to(out_ptr.dtype.element_ty), mask=j < size)
