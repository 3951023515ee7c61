"""Grouped product: y[n] = x[n] @ w[g] for every row n of group g.

    dx[n] = dy[n] @ w[g]^T          dw[g] = sum over n in g of x[n]^T dy[n]

`w` may be float32 master weights beside rows in another dtype. It is rounded to that dtype for the product. Torch's
code is F.grouped_mm. In Triton (`grouped_triton.py`) the results of a group depend on that group alone, and the
gradient of `w` has the dtype of `w` without a rounding to the dtype of the rows.

Letters: N rows, G groups, I input features, O output features.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.kernels import grouped_launch as launchers
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.configs import find_config


def grouped_product(
    x_NI: Tensor, w_GIO: Tensor, ends_G: Tensor, backend: Backend = TORCH, *, groups_per_trial: int = 1
) -> Tensor:
    """Return [N, O]. `ends_G` (int32) is where every group's rows end. An empty group has zero gradient.

    In torch's code I and O must be whole 16-byte units of the dtype (float32: multiples of 4), which `Shape`
    guarantees. `groups_per_trial` delimits a trial, so that in strict mode the parts of a sum do not depend on the
    number of trials.
    """
    if not backend.is_triton:
        return F.grouped_mm(x_NI, w_GIO.to(x_NI.dtype), offs=ends_G)
    at_once = groups_per_trial if backend.strict else w_GIO.shape[0]
    y_NO: Tensor = _product(x_NI, w_GIO, ends_G, at_once)
    return y_NO


@torch.library.custom_op("hpxfer::grouped_product", mutates_args=())
def _product(x: Tensor, w: Tensor, ends: Tensor, groups_at_once: int) -> Tensor:
    x = x.contiguous()
    config = find_config(x.device, x.dtype, x.shape[0] // w.shape[0], min(w.shape[1:]))
    tiles = launchers.tiles_of(ends, x.shape[0], config.m)
    return launchers.product(x, w.to(x.dtype).contiguous(), tiles, config.product)


@_product.register_fake
def _(x: Tensor, w: Tensor, ends: Tensor, groups_at_once: int) -> Tensor:
    return x.new_empty((x.shape[0], w.shape[2]))


@torch.library.custom_op("hpxfer::grouped_product_gradients", mutates_args=())
def _gradients(x: Tensor, w: Tensor, ends: Tensor, dy: Tensor, groups_at_once: int) -> tuple[Tensor, Tensor]:
    x, dy = x.contiguous(), dy.contiguous()
    config = find_config(x.device, x.dtype, x.shape[0] // w.shape[0], min(w.shape[1:]))
    tiles = launchers.tiles_of(ends, x.shape[0], config.m)
    dx = launchers.product(dy, w.to(x.dtype).contiguous().transpose(1, 2), tiles, config.product)
    dw = launchers.matrix_gradient(x, dy, ends, config, groups_at_once, x.shape[0], w.dtype)
    return dx, dw


@_gradients.register_fake
def _(x: Tensor, w: Tensor, ends: Tensor, dy: Tensor, groups_at_once: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), w.new_empty(w.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, ends, ctx.groups_at_once = inputs
    ctx.save_for_backward(x, w, ends)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    dx, dw = _gradients(*ctx.saved_tensors, dy, ctx.groups_at_once)
    return dx, dw, None, None


_product.register_autograd(_backward, setup_context=_save)
