"""A layer of experts whose products are torch's F.grouped_mm, with Triton kernels around them.

The formulas are those of `experts.py`. The library's products are expected to be faster where the matrices are large.
In return rows are gathered, activated and stored in passes of their own (`experts_library_triton.py`), and the weights'
gradients are rounded to the dtype of x. An entry of `configs.json` says `products: library` where a measurement favors
it.

The library chooses its blocks by the average number of rows of all groups, so a strict layer never uses it.

Letters: M tokens of all trials, A active experts, N = M*A rows, G = K*E groups, D width, H hidden features.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.kernels import configs
from hpxfer.kernels.backend import launch
from hpxfer.kernels.experts_launch import (
    Gradients,
    Layer,
    Weights,
    bias_gradients,
    gate_gradient,
    like,
    sum_slots,
)

# Elements of a program's block, rows of one that gathers, and warps: 16 elements per thread, which spills nothing.
_BLOCK, _GATHERED, _WARPS = 4096, 32, 8
# F.grouped_mm takes fewer groups, and matrices whose rows are whole units of so many bytes.
_MAX_GROUPS, _UNIT_BYTES = 1024, 16


def can_run(x_MD: Tensor, weights: Weights) -> bool:
    """Return whether F.grouped_mm takes this layer. Elsewhere on a GPU it is a loop that waits for the host."""
    num_groups, size_d, size_h = weights.w_in.shape
    arch = configs.architecture(x_MD.device)
    return (
        (arch == "interpreter" or (arch == "sm90" and x_MD.dtype == torch.bfloat16))
        and num_groups < _MAX_GROUPS
        and all(size * x_MD.itemsize % _UNIT_BYTES == 0 for size in (size_d, size_h))
    )


def forward(layer: Layer, x_MD: Tensor, weights: Weights, gate_MA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return y [M, D], and u and v [N, H] for the backward pass, as `experts_launch.forward` does."""
    x_ND = _gathered(layer, x_MD)
    u_NH = _product(layer, x_ND, weights.w_in)
    v_NH = u_NH.new_empty((0, u_NH.shape[1])) if weights.w_gate is None else _product(layer, x_ND, weights.w_gate)
    del x_ND
    down_ND = _product(layer, _activated(layer, weights, u_NH, v_NH), weights.w_out)
    return _placed(layer, down_ND, bias_GD=weights.b_out, gate_MA=gate_MA), u_NH, v_NH


def backward(
    layer: Layer, x_MD: Tensor, weights: Weights, gate_MA: Tensor, u_NH: Tensor, v_NH: Tensor, dy_MD: Tensor
) -> Gradients:
    """Return all gradients."""
    dy_ND = _gathered(layer, dy_MD)
    q_NH = _product(layer, dy_ND, weights.w_out, transposed=True)
    du_NH, dv_NH, gated_NH, dgate_MA = _hidden(layer, weights, gate_MA, u_NH, v_NH, q_NH, dy_MD)
    dw_out = _matrix_gradient(layer, gated_NH, dy_ND, weights.w_out)
    del gated_NH, dy_ND
    dx_ND = _product(layer, du_NH, weights.w_in, transposed=True)
    second_ND = None if weights.w_gate is None else _product(layer, dv_NH, weights.w_gate, transposed=True)
    dx_MD = _placed(layer, dx_ND, second_ND)
    del dx_ND, second_ND
    x_ND = _gathered(layer, x_MD)
    return Gradients(
        x=dx_MD,
        gate=dgate_MA,
        weights=Weights(
            _matrix_gradient(layer, x_ND, du_NH, weights.w_in),
            None if weights.w_gate is None else _matrix_gradient(layer, x_ND, dv_NH, weights.w_gate),
            dw_out,
            *bias_gradients(layer, weights, gate_MA, du_NH, dv_NH, dy_MD),
        ),
    )


def _product(layer: Layer, x_NI: Tensor, w: Tensor, *, transposed: bool = False) -> Tensor:
    """Return x[n] @ w[group of n], or its transpose. Every row lies in a group, so no row is left unwritten."""
    w = like(w, x_NI)
    if w.data_ptr() % _UNIT_BYTES:
        w = w.clone()
    return F.grouped_mm(x_NI, w.transpose(1, 2) if transposed else w, offs=layer.rows.ends)


def _matrix_gradient(layer: Layer, l_NI: Tensor, r_NO: Tensor, w: Tensor) -> Tensor:
    """Return [G, I, O] in the dtype of w: the sum of l[n]^T r[n] over each group's rows, exact zeros if it has none."""
    from hpxfer.kernels.experts_library_triton import cast_matrices

    dw = F.grouped_mm(l_NI.t(), r_NO, offs=layer.rows.ends)
    out, size = dw.new_empty(dw.shape, dtype=w.dtype), dw[0].numel()
    launch(cast_matrices, (len(dw), -(-size // _BLOCK)), dw, layer.rows.ends, out, size, BLOCK=_BLOCK, num_warps=_WARPS)
    return out


def _gathered(layer: Layer, x_MD: Tensor) -> Tensor:
    """Return [N, D]: the row of x of every row's token."""
    from hpxfer.kernels.experts_library_triton import gather_rows

    num_rows, size = layer.rows.token.shape[0], x_MD.shape[1]
    out = x_MD.new_empty((num_rows, size))
    num_blocks, options = _blocks(_GATHERED, size)
    launch(gather_rows, (-(-num_rows // _GATHERED), num_blocks), x_MD, layer.rows.token, out, num_rows, size, **options)
    return out


def _activated(layer: Layer, weights: Weights, u_NH: Tensor, v_NH: Tensor) -> Tensor:
    """Return h [N, H]. Add the biases to u and v."""
    from hpxfer.kernels.experts_library_triton import activate

    h_NH = torch.empty_like(u_NH)
    grid, where, options = _by_tiles(layer, u_NH.shape[1])
    launch(
        activate,
        grid,
        *(u_NH, v_NH, _or(weights.b_in, u_NH), _or(weights.b_gate, u_NH), h_NH, *where, u_NH.shape[1]),
        ACTIVATION=layer.activation,
        HAS_BIAS=weights.b_in is not None,
        HAS_GATE_BIAS=weights.b_gate is not None,
        **options,
    )
    return h_NH


def _hidden(
    layer: Layer, weights: Weights, gate_MA: Tensor, u_NH: Tensor, v_NH: Tensor, q_NH: Tensor, dy_MD: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return du (written over q), dv, the gated hidden features [N, H], and the gradient of the gates [M, A]."""
    from hpxfer.kernels.experts_library_triton import hidden_rows

    num_rows, size = u_NH.shape
    dv_NH, gated_NH = torch.empty_like(v_NH), torch.empty_like(u_NH)
    grid, where, options = _by_tiles(layer, size)
    part_BN = gate_MA.new_empty((grid[1], num_rows))
    launch(
        hidden_rows,
        grid,
        *(q_NH, u_NH, v_NH, gate_MA, layer.rows.slot, dv_NH, gated_NH, part_BN, *where, num_rows, size),
        ACTIVATION=layer.activation,
        **options,
    )
    return q_NH, dv_NH, gated_NH, gate_gradient(layer, weights, gate_MA, part_BN, dy_MD)


def _placed(
    layer: Layer,
    d_ND: Tensor,
    second_ND: Tensor | None = None,
    *,
    bias_GD: Tensor | None = None,
    gate_MA: Tensor | None = None,
) -> Tensor:
    """Return [M, D]: the rows, plus the second rows and the bias, times the gate, summed over each token's slots."""
    from hpxfer.kernels.experts_library_triton import place_rows

    out = torch.empty_like(d_ND, dtype=d_ND.dtype if layer.num_active == 1 else torch.float32)
    grid, where, options = _by_tiles(layer, d_ND.shape[1])
    launch(
        place_rows,
        grid,
        *(d_ND, _or(second_ND, d_ND), _or(bias_GD, d_ND), _or(gate_MA, d_ND), layer.rows.slot, out),
        *(*where, d_ND.shape[1]),
        TWO=second_ND is not None,
        HAS_BIAS=bias_GD is not None,
        HAS_GATE=gate_MA is not None,
        **options,
    )
    return sum_slots(out, layer.num_active, d_ND.dtype)


def _by_tiles(layer: Layer, size: int) -> tuple[tuple[int, int], tuple[Tensor, Tensor, Tensor], dict[str, int]]:
    """Return the grid of (tile, block of columns), the tensors that say where a tile lies, and the blocks."""
    tiles = layer.tiles
    num_blocks, options = _blocks(tiles.m, size)
    return (tiles.number, num_blocks), (tiles.group, tiles.row, tiles.ends), options


def _blocks(rows: int, size: int) -> tuple[int, dict[str, int]]:
    """Return the number of blocks of columns, and the blocks."""
    columns = _BLOCK // rows
    options = {"UNIT": math.gcd(size, 16), "BLOCK_M": rows, "BLOCK_N": columns, "num_warps": _WARPS}
    return -(-size // columns), options


def _or(tensor: Tensor | None, instead: Tensor) -> Tensor:
    """Return a tensor for an argument that a kernel does not read."""
    return instead if tensor is None else tensor
