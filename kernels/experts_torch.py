"""The experts of a layer in torch's own operations, from tokens to the gated sum.

    x_n = x[token[n]]          A_n = gelu(x_n W_in + b_in)    or    silu(x_n W_gate + b_gate) * (x_n W_in + b_in)
                               or relu in place of gelu
    y[t] = sum over slots a of  (g A_n) W_out + g b_out                            n = row[t, a], g = gate[t, a]

    dA'_n = dy[token[n]] W_out^T        dg = <dA'_n, A_n> + <dy, b_out>        dA_n = g dA'_n        dx[t] = sum of dx_n

The gate is applied before the last product, so that its gradient needs no output of an expert. Tokens become rows, and
rows tokens, by gathers and a sum over the slots in order, without scatter or atomics.

Letters: M tokens of all trials, A active experts, N = M*A expert rows, G = K*E groups, D width, H hidden features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.kernels.routing import Groups


def experts_torch(
    x_MD: Tensor,
    w_in_GDH: Tensor,
    w_gate_GDH: Tensor | None,
    w_out_GHD: Tensor,
    gate_MA: Tensor,
    groups: Groups,
    num_active: int,
    *,
    b_in: Tensor | None = None,
    b_gate: Tensor | None = None,
    b_out: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """Return y [M, D] in the dtype of x, to which weights and biases ([G, H], [G, H], [G, D]) are rounded."""
    weights = (w_in_GDH, w_gate_GDH, w_out_GHD, b_in, b_gate, b_out)
    biased = any(bias is not None for bias in weights[3:])
    rows = _Rows(
        token=groups.token,
        slot=groups.slot,
        row=groups.row,
        ends=groups.ends,
        group=torch.repeat_interleave(groups.load.flatten(), output_size=groups.token.shape[0]) if biased else None,
        num_active=num_active,
        relu=relu,
    )
    y: Tensor = _Experts.apply(  # type: ignore[no-untyped-call]
        rows, x_MD, gate_MA, *(None if weight is None else weight.to(x_MD.dtype) for weight in weights)
    )
    return y


class _Rows(NamedTuple):
    """The order of the rows, as integers without gradients."""

    token: Tensor  # [N], the token of every row
    slot: Tensor  # [N], the (token, slot) pair of every row
    row: Tensor  # [N], the row of every (token, slot) pair
    ends: Tensor  # [G] int32
    group: Tensor | None  # [N], the group of every row if there are biases
    num_active: int
    relu: bool


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: _Rows,
        x_MD: Tensor,
        gate_MA: Tensor,
        w_in: Tensor,
        w_gate: Tensor | None,
        w_out: Tensor,
        b_in: Tensor | None,
        b_gate: Tensor | None,
        b_out: Tensor | None,
    ) -> Tensor:
        x_ND = x_MD.index_select(0, rows.token)
        up_NH = _linear(x_ND, w_in, b_in, rows)
        swish_NH = None if w_gate is None else _linear(x_ND, w_gate, b_gate, rows)
        active_NH = _activated(up_NH, swish_NH, rows.relu)
        gate_N1 = gate_MA.reshape(-1, 1).index_select(0, rows.slot).to(x_MD.dtype)
        down_ND = _product(active_NH * gate_N1, w_out, rows)
        if b_out is not None:
            down_ND.addcmul_(gate_N1, _of_rows(b_out, rows))
        ctx.save_for_backward(x_ND, up_NH, swish_NH, active_NH, gate_N1, w_in, w_gate, w_out, b_out, *rows[:4])
        ctx.rows, ctx.gate_dtype = rows[4:], gate_MA.dtype
        return _sum_slots(down_ND, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, up_NH, swish_NH, active_NH, gate_N1, w_in, w_gate, w_out, b_out, *order = ctx.saved_tensors
        rows = _Rows(*order, *ctx.rows)
        dy_ND = grads[0].index_select(0, rows.token)
        dactive_NH = _product(dy_ND, w_out.transpose(1, 2), rows)
        dgate_N = (dactive_NH * active_NH).sum(-1, dtype=ctx.gate_dtype)
        db_in = db_gate = db_out = dw_gate = None
        if b_out is not None:
            dgate_N += (dy_ND * _of_rows(b_out, rows)).sum(-1, dtype=ctx.gate_dtype)
            db_out = _group_sums(dy_ND * gate_N1, rows)
        dw_out = _weight_gradient(active_NH * gate_N1, dy_ND, rows)
        dactive_NH.mul_(gate_N1)
        if swish_NH is None and rows.relu:
            dup_NH = torch.ops.aten.threshold_backward(dactive_NH, up_NH, 0)
        elif swish_NH is None:
            dup_NH = torch.ops.aten.gelu_backward(dactive_NH, up_NH)
        else:
            dup_NH = dactive_NH * F.silu(swish_NH)
            dswish_NH = torch.ops.aten.silu_backward(dactive_NH.mul_(up_NH), swish_NH)
            dw_gate = _weight_gradient(x_ND, dswish_NH, rows)
        dw_in = _weight_gradient(x_ND, dup_NH, rows)
        dx_ND = _product(dup_NH, w_in.transpose(1, 2), rows)
        if swish_NH is not None:
            dx_ND += _product(dswish_NH, w_gate.transpose(1, 2), rows)
        if ctx.needs_input_grad[6]:
            db_in = _group_sums(dup_NH, rows)
        if ctx.needs_input_grad[7]:
            db_gate = _group_sums(dswish_NH, rows)
        dgate_MA = dgate_N.index_select(0, rows.row).view(-1, rows.num_active)
        return None, _sum_slots(dx_ND, rows), dgate_MA, dw_in, dw_gate, dw_out, db_in, db_gate, db_out


def _activated(up_NH: Tensor, swish_NH: Tensor | None, relu: bool) -> Tensor:
    if swish_NH is not None:
        return F.silu(swish_NH).mul_(up_NH)
    return up_NH.relu() if relu else F.gelu(up_NH)


def _linear(x_NI: Tensor, w_GIO: Tensor, b_GO: Tensor | None, rows: _Rows) -> Tensor:
    y_NO = _product(x_NI, w_GIO, rows)
    return y_NO if b_GO is None else y_NO.add_(_of_rows(b_GO, rows))


def _product(x_NI: Tensor, w_GIO: Tensor, rows: _Rows) -> Tensor:
    """Return x[n] @ w[group of n]."""
    return F.grouped_mm(x_NI, w_GIO, offs=rows.ends)


def _weight_gradient(x_NI: Tensor, dy_NO: Tensor, rows: _Rows) -> Tensor:
    """Return [G, I, O]: the sum of x[n]^T dy[n] over the rows of each group, exact zeros for an empty group."""
    return F.grouped_mm(x_NI.t(), dy_NO, offs=rows.ends)


def _group_sums(x_NO: Tensor, rows: _Rows) -> Tensor:
    """Return [G, O]: the sum over the rows of each group. Torch's CPU code adds them in order."""
    assert rows.group is not None
    return x_NO.new_zeros(rows.ends.shape[0], x_NO.shape[1]).index_add_(0, rows.group, x_NO)


def _of_rows(b_GO: Tensor, rows: _Rows) -> Tensor:
    """Return [N, O]: the bias of every row."""
    assert rows.group is not None
    return b_GO.index_select(0, rows.group)


def _sum_slots(x_ND: Tensor, rows: _Rows) -> Tensor:
    """Return [M, D]: the sum of every token's rows, in the order of the slots."""
    slots_ND = x_ND.index_select(0, rows.row)
    if rows.num_active == 1:
        return slots_ND
    first, second, *others = slots_ND.view(-1, rows.num_active, slots_ND.shape[-1]).unbind(1)
    total = first + second
    for part in others:
        total += part
    return total
