"""The experts of a layer, from the tokens to the gated sum.

    y[t] = sum over a of gate[t, a] * E_g(x[t])          g: the group (trial, expert) of slot a of token t
    E_g(x) = h(x w_in[g] + b_in[g]) w_out[g] + b_out[g]
    h = gelu or relu; SwiGLU, where there is w_gate: h = silu(x w_gate[g] + b_gate[g]) * (x w_in[g] + b_in[g])

The gates are float32 and include the multiplier of the branch. In Triton (`expert_triton.py`, `grouped_triton.py`):

    up         gathers the tokens and applies h
    down       applies the gate and stores to the token. A single active expert needs no sum. Several write float32
               slots, which are then summed in order.
    backward   reads x and the products before the activation. There are no atomics. The gradient of an expert without
               tokens is exactly zero.

The weights may be float32 masters beside x in another dtype. They are rounded to it for the products. Their gradients
are float32 and are never rounded to the dtype of x, unless a library multiplies (`experts_library.py`).

Letters: M tokens of all trials, A active experts, N = M*A rows, G = K*E groups, D width, H hidden features.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hpxfer.kernels import experts_launch, experts_library
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.experts_launch import Gradients, Layer, Rows, Weights
from hpxfer.kernels.experts_torch import experts_torch
from hpxfer.kernels.routing import Groups


def experts(
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
    backend: Backend = TORCH,
) -> Tensor:
    """Return [M, D] in the dtype of x. b_in, b_gate [G, H] and b_out [G, D] may each be missing.

    `relu` stands in for gelu, where there is no w_gate.
    """
    if not backend.is_triton:
        return experts_torch(
            *(x_MD, w_in_GDH, w_gate_GDH, w_out_GHD, gate_MA, groups, num_active),
            b_in=b_in,
            b_gate=b_gate,
            b_out=b_out,
            relu=relu,
        )
    assert gate_MA.dtype == torch.float32, gate_MA.dtype
    assert gate_MA.shape == (x_MD.shape[0], num_active), (gate_MA.shape, x_MD.shape, num_active)
    rows = Rows(*(index.to(torch.int32) for index in (groups.token, groups.slot, groups.ends)))
    at_once = groups.load.shape[1] if backend.strict else w_in_GDH.shape[0]
    weights = Weights(w_in_GDH, w_gate_GDH, w_out_GHD, b_in, b_gate, b_out)
    activation = "swiglu" if w_gate_GDH is not None else "relu" if relu else "gelu"
    y_MD: Tensor = _forward(x_MD, *weights, gate_MA, *rows, num_active, at_once, activation, backend.strict)[0]
    return y_MD


def forward(layer: Layer, x_MD: Tensor, weights: Weights, gate_MA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return y [M, D], and u and v [N, H] for the backward pass, by the products that the layer's config names."""
    if layer.config.products == "library":
        return experts_library.forward(layer, x_MD, weights, gate_MA)
    return experts_launch.forward(layer, x_MD, weights, gate_MA)


def backward(
    layer: Layer, x_MD: Tensor, weights: Weights, gate_MA: Tensor, u_NH: Tensor, v_NH: Tensor, dy_MD: Tensor
) -> Gradients:
    """Return all gradients, by the products that the layer's config names."""
    if layer.config.products == "library":
        return experts_library.backward(layer, x_MD, weights, gate_MA, u_NH, v_NH, dy_MD)
    return experts_launch.backward(layer, x_MD, weights, gate_MA, u_NH, v_NH, dy_MD)


def _layer(
    x: Tensor, weights: Weights, rows: Rows, num_active: int, groups_at_once: int, activation: str, strict: bool
) -> Layer:
    """Return the layer. A strict one, or one that the library does not take, multiplies in our own kernels."""
    layer = experts_launch.layer_for(x, weights, rows, num_active, groups_at_once, activation)
    if layer.config.products == "triton" or (not strict and experts_library.can_run(x, weights)):
        return layer
    return replace(layer, config=replace(layer.config, products="triton"))


@torch.library.custom_op("hpxfer::experts", mutates_args=())
def _forward(
    x: Tensor,
    w_in: Tensor,
    w_gate: Tensor | None,
    w_out: Tensor,
    b_in: Tensor | None,
    b_gate: Tensor | None,
    b_out: Tensor | None,
    gate: Tensor,
    token: Tensor,
    slot: Tensor,
    ends: Tensor,
    num_active: int,
    groups_at_once: int,
    activation: str,
    strict: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    x, gate = x.contiguous(), gate.contiguous()
    weights = Weights(w_in, w_gate, w_out, *(_contiguous(b) for b in (b_in, b_gate, b_out)))
    layer = _layer(x, weights, Rows(token, slot, ends), num_active, groups_at_once, activation, strict)
    return forward(layer, x, weights, gate)


@_forward.register_fake
def _(
    x: Tensor,
    w_in: Tensor,
    w_gate: Tensor | None,
    w_out: Tensor,
    b_in: Tensor | None,
    b_gate: Tensor | None,
    b_out: Tensor | None,
    gate: Tensor,
    token: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, size_h = token.shape[0], w_in.shape[2]
    return (
        x.new_empty(x.shape),
        x.new_empty((num_rows, size_h)),
        x.new_empty((0 if w_gate is None else num_rows, size_h)),
    )


@torch.library.custom_op("hpxfer::experts_gradients", mutates_args=())
def _gradients(
    x: Tensor,
    w_in: Tensor,
    w_gate: Tensor | None,
    w_out: Tensor,
    b_in: Tensor | None,
    b_gate: Tensor | None,
    b_out: Tensor | None,
    gate: Tensor,
    token: Tensor,
    slot: Tensor,
    ends: Tensor,
    u: Tensor,
    v: Tensor,
    dy: Tensor,
    num_active: int,
    groups_at_once: int,
    activation: str,
    strict: bool,
) -> list[Tensor]:
    """Return the gradients of x, of the gates, and of those of the six weights that are given."""
    x, gate, dy = x.contiguous(), gate.contiguous(), dy.contiguous()
    weights = Weights(w_in, w_gate, w_out, *(_contiguous(b) for b in (b_in, b_gate, b_out)))
    layer = _layer(x, weights, Rows(token, slot, ends), num_active, groups_at_once, activation, strict)
    grads = backward(layer, x, weights, gate, u, v, dy)
    return [grads.x, grads.gate, *(grad for grad in grads.weights if grad is not None)]


@_gradients.register_fake
def _(
    x: Tensor,
    w_in: Tensor,
    w_gate: Tensor | None,
    w_out: Tensor,
    b_in: Tensor | None,
    b_gate: Tensor | None,
    b_out: Tensor | None,
    gate: Tensor,
    *_: Any,
) -> list[Tensor]:
    present = [weight for weight in (w_in, w_gate, w_out, b_in, b_gate, b_out) if weight is not None]
    return [tensor.new_empty(tensor.shape) for tensor in (x, gate, *present)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:11], *output[1:])
    ctx.sizes = inputs[11:]
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    dx, dgate, *present = _gradients(*saved, dy, *ctx.sizes)
    left = iter(present)
    weights = [None if weight is None else next(left) for weight in saved[1:7]]
    return dx, *weights, dgate, *(None,) * 7


_forward.register_autograd(_backward, setup_context=_save)


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()
