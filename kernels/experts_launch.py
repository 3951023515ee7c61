"""The launches of a layer of experts in Triton. The formulas are in `experts.py` and `expert_triton.py`.

Letters: M tokens of all trials, A active experts, N = M*A rows, G = K*E groups, D width, H hidden features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hpxfer.kernels.backend import launch
from hpxfer.kernels.configs import Config, find_config
from hpxfer.kernels.grouped_launch import Tiles, bias_gradient, matrix_gradient, options, product, tiles_of

_BLOCK = 1024
_BLOCK_D = 64


class Weights(NamedTuple):
    """The weights of the experts. Only SwiGLU has gate weights."""

    w_in: Tensor  # [G, D, H]
    w_gate: Tensor | None  # [G, D, H]
    w_out: Tensor  # [G, H, D]
    b_in: Tensor | None  # [G, H]
    b_gate: Tensor | None  # [G, H]
    b_out: Tensor | None  # [G, D]


class Rows(NamedTuple):
    """How the rows lie in groups: the fields of `routing.Groups` that the products need, as int32."""

    token: Tensor  # [N]
    slot: Tensor  # [N]
    ends: Tensor  # [G]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The arguments that all launches of a layer share."""

    rows: Rows
    num_active: int
    groups_at_once: int  # groups of one trial if bits must not depend on the stack, otherwise all
    activation: str  # gelu, relu or swiglu
    config: Config
    tiles: Tiles


def layer_for(
    x_MD: Tensor, weights: Weights, rows: Rows, num_active: int, groups_at_once: int, activation: str
) -> Layer:
    """Return the layer, with the tiles of its groups."""
    num_groups, size_d, size_h = weights.w_in.shape
    num_rows = rows.token.shape[0]
    config = find_config(x_MD.device, x_MD.dtype, num_rows // num_groups, min(size_d, size_h))
    return Layer(
        rows=rows,
        num_active=num_active,
        groups_at_once=groups_at_once,
        activation=activation,
        config=config,
        tiles=tiles_of(rows.ends, num_rows, config.m),
    )


def forward(layer: Layer, x_MD: Tensor, weights: Weights, gate_MA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return y [M, D], and the products before the activation, u and v [N, H], which the backward pass reads.

    v is empty except for SwiGLU.
    """
    u_NH, v_NH, h_NH = _up(layer, x_MD, weights)
    w_out = like(weights.w_out, x_MD)
    y = product(
        *(h_NH, w_out, layer.tiles, layer.config.product),
        out_dtype=x_MD.dtype if layer.num_active == 1 else torch.float32,
        bias_GO=weights.b_out,
        gate_N=gate_MA,
        slot_N=layer.rows.slot,
    )
    return sum_slots(y, layer.num_active, x_MD.dtype), u_NH, v_NH


class Gradients(NamedTuple):
    """The gradients of a layer, each in the dtype of its tensor."""

    x: Tensor
    gate: Tensor
    weights: Weights


def backward(
    layer: Layer, x_MD: Tensor, weights: Weights, gate_MA: Tensor, u_NH: Tensor, v_NH: Tensor, dy_MD: Tensor
) -> Gradients:
    """Return all gradients, each sum in a fixed order."""
    du, dv, gated, dgate_MA = _hidden(layer, weights, gate_MA, u_NH, v_NH, dy_MD)
    second = None if weights.w_gate is None else (dv, like(weights.w_gate, x_MD).transpose(1, 2))
    dx = product(
        *(du, like(weights.w_in, x_MD).transpose(1, 2), layer.tiles, layer.config.product),
        out_dtype=x_MD.dtype if layer.num_active == 1 else torch.float32,
        second=second,
        slot_N=layer.rows.slot,
    )
    token, how = layer.rows.token, (layer.rows.ends, layer.config, layer.groups_at_once, u_NH.shape[0])

    def w_of_x(du: Tensor, w: Tensor) -> Tensor:
        return matrix_gradient(x_MD, du, *how, w.dtype, l_row_N=token)

    return Gradients(
        x=sum_slots(dx, layer.num_active, x_MD.dtype),
        gate=dgate_MA,
        weights=Weights(
            w_of_x(du, weights.w_in),
            None if weights.w_gate is None else w_of_x(dv, weights.w_gate),
            matrix_gradient(gated, dy_MD, *how, weights.w_out.dtype, r_row_N=token),
            *bias_gradients(layer, weights, gate_MA, du, dv, dy_MD),
        ),
    )


def bias_gradients(
    layer: Layer, weights: Weights, gate_MA: Tensor, du_NH: Tensor, dv_NH: Tensor, dy_MD: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of b_in, b_gate and b_out, None for a bias that is missing."""
    rows, how = layer.rows, (layer.rows.ends, layer.config, layer.groups_at_once, du_NH.shape[0])

    def bias(of_NC: Tensor, b: Tensor | None) -> Tensor | None:
        return None if b is None else bias_gradient(of_NC, *how, b.dtype)

    return (
        bias(du_NH, weights.b_in),
        bias(dv_NH, weights.b_gate),
        None
        if weights.b_out is None
        else bias_gradient(dy_MD, *how, weights.b_out.dtype, row_N=rows.token, gate_N=gate_MA, slot_N=rows.slot),
    )


def _up(layer: Layer, x_MD: Tensor, weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
    from hpxfer.kernels.expert_triton import up

    size_d, size_h = weights.w_in.shape[1:]
    num_rows = layer.rows.token.shape[0]
    blocks = layer.config.gated if layer.activation == "swiglu" else layer.config.up
    u, h = (x_MD.new_empty((num_rows, size_h)) for _ in range(2))
    v = x_MD.new_empty((num_rows if weights.w_gate is not None else 0, size_h))
    w_in = like(weights.w_in, x_MD)
    launch(
        up,
        (layer.tiles.number * -(-size_h // blocks.n),),
        *(x_MD, layer.rows.token, w_in, w_in if weights.w_gate is None else like(weights.w_gate, x_MD)),
        *(u if weights.b_in is None else weights.b_in, u if weights.b_gate is None else weights.b_gate),
        *(u, v, h, layer.tiles.group, layer.tiles.row, layer.tiles.ends, layer.tiles.number, size_d, size_h),
        ACTIVATION=layer.activation,
        HAS_BIAS=weights.b_in is not None,
        HAS_GATE_BIAS=weights.b_gate is not None,
        **options(layer.tiles, blocks, size_d, size_h),
    )
    return u, v, h


def _hidden(
    layer: Layer, weights: Weights, gate_MA: Tensor, u_NH: Tensor, v_NH: Tensor, dy_MD: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of u and v, the gated hidden features [N, H] and the gradient of the gates [M, A]."""
    from hpxfer.kernels.expert_triton import hidden_gradient

    num_rows, size_h = u_NH.shape
    size_d, blocks, tiles = dy_MD.shape[1], layer.config.hidden, layer.tiles
    du, gated, dv = torch.empty_like(u_NH), torch.empty_like(u_NH), torch.empty_like(v_NH)
    num_blocks = -(-size_h // blocks.n)
    part = gate_MA.new_empty((num_blocks, num_rows))
    launch(
        hidden_gradient,
        (tiles.number * num_blocks,),
        *(dy_MD, layer.rows.token, like(weights.w_out, dy_MD), u_NH, v_NH, gate_MA, layer.rows.slot),
        *(du, dv, gated, part, tiles.group, tiles.row, tiles.ends, tiles.number, num_rows, size_d, size_h),
        ACTIVATION=layer.activation,
        **options(tiles, blocks, size_d, size_h),
    )
    return du, dv, gated, gate_gradient(layer, weights, gate_MA, part, dy_MD)


def gate_gradient(layer: Layer, weights: Weights, gate_MA: Tensor, part_BN: Tensor, dy_MD: Tensor) -> Tensor:
    """Return the gradient of the gates [M, A] from its parts: one for every block of columns of the hidden features."""
    from hpxfer.kernels.expert_triton import gate_gradient as kernel

    dgate_MA, tiles = torch.empty_like(gate_MA), layer.tiles
    launch(
        kernel,
        (tiles.number,),
        *(part_BN, dy_MD, layer.rows.token, dy_MD if weights.b_out is None else weights.b_out, layer.rows.slot),
        *(dgate_MA, tiles.group, tiles.row, tiles.ends, part_BN.shape[1], part_BN.shape[0], dy_MD.shape[1]),
        HAS_BIAS=weights.b_out is not None,
        BLOCK_M=tiles.m,
        BLOCK_D=_BLOCK_D,
    )
    return dgate_MA


def sum_slots(slots_ND: Tensor, num_active: int, dtype: torch.dtype) -> Tensor:
    """Return [M, D]: the sum of every token's rows, in the order of its slots."""
    if num_active == 1:
        return slots_ND
    from hpxfer.kernels.expert_triton import sum_slots as kernel

    num_rows, size_d = slots_ND.shape
    out = slots_ND.new_empty((num_rows // num_active, size_d), dtype=dtype)
    grid = (-(-out.numel() // _BLOCK),)
    launch(kernel, grid, slots_ND, out, out.numel(), size_d, NUM_ACTIVE=num_active, BLOCK=_BLOCK)
    return out


def like(w: Tensor, x: Tensor) -> Tensor:
    return w.to(x.dtype).contiguous()
