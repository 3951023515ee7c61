"""Dispatch and combine: tokens to expert rows and back.

    dispatch: rows[n] = x[token[n]]                      backward: dx[t] = sum over slots a of drows[row[t, a]]
    combine:  y[t]    = sum over slots a of rows[row[t, a]]   backward: drows[n] = dy[token[n]]

Both directions are gathers with a sum over the slots in order: no scatter, no atomics, the same bits in any stack.
Letters: N rows, M tokens of all trials, A active experts, D features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpxfer.kernels.routing import Groups


def _sum_slots(rows_ND: Tensor, row_N: Tensor, num_active: int) -> Tensor:
    slots = rows_ND.index_select(0, row_N)
    if num_active == 1:
        return slots
    out = slots.view(-1, num_active, slots.shape[-1]).unbind(1)
    total = out[0] + out[1]
    for one in out[2:]:
        total = total + one
    return total


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, token_N: Tensor, row_N: Tensor, num_active: int) -> Tensor:
        ctx.save_for_backward(row_N)
        ctx.num_active = num_active
        return x_MD.index_select(0, token_N)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (row_N,) = ctx.saved_tensors
        return _sum_slots(grads[0], row_N, ctx.num_active), None, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_ND: Tensor, token_N: Tensor, row_N: Tensor, num_active: int) -> Tensor:
        ctx.save_for_backward(token_N)
        return _sum_slots(rows_ND, row_N, num_active)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (token_N,) = ctx.saved_tensors
        return grads[0].index_select(0, token_N), None, None, None


def dispatch(x_MD: Tensor, groups: Groups, num_active: int) -> Tensor:
    """Return [N, D]: the input of every expert row."""
    out: Tensor = _Dispatch.apply(x_MD, groups.token, groups.row, num_active)  # type: ignore[no-untyped-call]
    return out


def combine(rows_ND: Tensor, groups: Groups, num_active: int) -> Tensor:
    """Return [M, D]: the sum of every token's expert rows."""
    out: Tensor = _Combine.apply(rows_ND, groups.token, groups.row, num_active)  # type: ignore[no-untyped-call]
    return out
