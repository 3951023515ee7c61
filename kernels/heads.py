"""Queries or keys by heads, as attention takes them: their norm, then their rotation.

    x [T, H*P]  ->  n = norm(x) * gain + bias                over each head (`head`), over all of them (`all`), or none
    n           ->  y [N, S, H, P], rotated by `rope`         or not

In torch these are the operations of `norm` and `rope`. In Triton they are one kernel, which reads x where the joined
product of queries, keys and values left it, and one for the backward pass, which computes the norm again from x. With
separate operations the rotation alone writes every number twice, in float32, and bfloat16 is rounded before it.

    heads_forward      reads x: 2HP                 writes y: 2HP            bytes per token, for 2-byte numbers
    heads_gradients    reads dy, x: 4HP             writes dx: 2HP           x only if there is a norm

The gradient of a gain or a bias is summed over the tokens of each program, then over programs in order.

Letters: K trials, T tokens, S context, N sequences of all trials, H heads, P head features, R rotated features,
C programs of a trial.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend, launch
from hpxfer.kernels.grouped_launch import power_of_2
from hpxfer.kernels.norm import EPS, Kind, norm
from hpxfer.kernels.rope import rope
from hpxfer.kernels.sums import aligned, column_sums

Scope = Literal["none", "head", "all"]
_SCOPES: tuple[Scope, ...] = ("none", "head", "all")
# The elements of a head's block of a program (derived, not measured).
ELEMENTS = 1024


def place_heads(
    x_KTO: Tensor,
    gain_KG: Tensor | None,
    bias_KG: Tensor | None,
    rotation: tuple[Tensor, Tensor] | None,
    *,
    head_dim: int,
    context: int,
    scope: Scope = "none",
    kind: Kind = "rmsnorm",
    eps: float = EPS,
    backend: Backend = TORCH,
) -> Tensor:
    """Return [N, S, H, P] in the dtype of x [K, T, H*P].

    The gain and the bias are float32: [K, P] if `scope` is head, [K, H*P] if it is all. `rotation` is (cos, sin) of
    `rope.rotation`. The tokens of a trial are whole sequences of `context`.
    """
    if backend.is_triton and (scope != "none" or rotation is not None):
        cos, sin = (None, None) if rotation is None else rotation
        sizes = head_dim, context, _SCOPES.index(scope), kind == "rmsnorm", eps
        y_KTO: Tensor = _place(x_KTO, gain_KG, bias_KG, cos, sin, *sizes)
        return by_heads(y_KTO, head_dim, context)
    if scope == "all":
        x_KTO = norm(x_KTO, gain_KG, bias_KG, backend, kind=kind, eps=eps)
    elif scope == "head":
        rows = x_KTO.reshape(x_KTO.shape[0], -1, head_dim)
        x_KTO = norm(rows, gain_KG, bias_KG, backend, kind=kind, eps=eps).view(x_KTO.shape)
    x_NSHP = by_heads(x_KTO, head_dim, context)
    return x_NSHP if rotation is None else rope(x_NSHP, *rotation)


def by_heads(x_KTO: Tensor, head_dim: int, context: int) -> Tensor:
    """Return [N, S, H, P]."""
    return x_KTO.reshape(-1, context, x_KTO.shape[-1] // head_dim, head_dim)


@torch.library.custom_op("hpxfer::place_heads", mutates_args=())
def _place(
    x: Tensor,
    gain: Tensor | None,
    bias: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    head_dim: int,
    context: int,
    scope: int,
    is_rms: bool,
    eps: float,
) -> Tensor:
    from hpxfer.kernels.heads_triton import heads_forward

    num_trials, num_tokens, _ = x.shape
    x, y = _by_rows(x), x.new_empty(x.shape)
    gain, bias, cos, sin = (None if one is None else aligned(one) for one in (gain, bias, cos, sin))
    stand_in = next((one for one in (gain, bias, cos) if one is not None), y)  # for what the kernel does not read
    launch(
        heads_forward,
        (-(-num_tokens // _blocks(head_dim)["BLOCK_T"]), num_trials),
        *(x, *(stand_in if one is None else one for one in (gain, bias, cos, sin)), y),
        *_sizes(x, cos, head_dim, context, eps),
        **_given(scope, is_rms, gain, bias, cos),
        **_blocks(head_dim),
    )
    return y


@_place.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("hpxfer::place_heads_gradients", mutates_args=())
def _gradients(
    dy: Tensor,
    x: Tensor,
    gain: Tensor | None,
    bias: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    head_dim: int,
    context: int,
    scope: int,
    is_rms: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, of the gain and of the bias. Those of what there is not are empty."""
    from hpxfer.kernels.heads_triton import heads_gradients

    num_trials, num_tokens, size_o = x.shape
    dy, x, dx = aligned(dy), _by_rows(x), dy.new_empty(x.shape)
    gain, bias, cos, sin = (None if one is None else aligned(one) for one in (gain, bias, cos, sin))
    pieces = -(-num_tokens // _blocks(head_dim)["BLOCK_T"])
    size = num_trials, pieces, size_o if _SCOPES[scope] == "all" else head_dim
    parts = [dx.new_empty(0 if one is None else size, dtype=torch.float32) for one in (gain, bias)]
    stand_in = next((one for one in (gain, bias, cos) if one is not None), dy)
    launch(
        heads_gradients,
        (pieces, num_trials),
        *(dy, x, *(stand_in if one is None else one for one in (gain, cos, sin)), dx),
        *(dx if one.numel() == 0 else one for one in parts),
        *_sizes(x, cos, head_dim, context, eps),
        pieces,
        **_given(scope, is_rms, gain, bias, cos),
        **_blocks(head_dim),
    )
    dgain, dbias = (part if part.numel() == 0 else column_sums(part, _IN_TRITON) for part in parts)
    return dx, dgain, dbias


@_gradients.register_fake
def _(dy: Tensor, x: Tensor, gain: Tensor | None, bias: Tensor | None, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    dgain, dbias = (dy.new_empty(0 if one is None else one.shape, dtype=torch.float32) for one in (gain, bias))
    return dy.new_empty(dy.shape), dgain, dbias


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.sizes = inputs[5:]


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, gain, bias, *rotation = ctx.saved_tensors
    dx, dgain, dbias = _gradients(dy, x, gain, bias, *rotation, *ctx.sizes)
    return dx, None if gain is None else dgain, None if bias is None else dbias, *(None,) * 7


_place.register_autograd(_backward, setup_context=_save)

_IN_TRITON = Backend(name="triton", reason="the heads'", strict=True)


def _by_rows(x_KTO: Tensor) -> Tensor:
    """Return x, whose rows may be parts of longer ones that lie one after the other, or a copy."""
    rows = x_KTO.stride(1)
    lies_so = x_KTO.stride(2) == 1 and x_KTO.stride(0) == x_KTO.shape[1] * rows and x_KTO.data_ptr() % 16 == 0
    return x_KTO if lies_so else aligned(x_KTO)


def _sizes(x: Tensor, cos: Tensor | None, head_dim: int, context: int, eps: float) -> tuple[int | float, ...]:
    half = 0 if cos is None else cos.shape[1]
    return x.shape[1], x.shape[2] // head_dim, head_dim, half, context, x.stride(1), eps


def _given(
    scope: int, is_rms: bool, gain: Tensor | None, bias: Tensor | None, cos: Tensor | None
) -> dict[str, int | bool]:
    found = {"HAS_GAIN": gain is not None, "HAS_BIAS": bias is not None, "IS_ROTATED": cos is not None}
    return {"NORM": scope, "IS_RMS": is_rms, **found}


def _blocks(head_dim: int) -> dict[str, int]:
    """Return the tokens and features of a program."""
    block_p = max(16, power_of_2(head_dim))
    return {"BLOCK_T": max(1, min(64, ELEMENTS // block_p)), "BLOCK_P": block_p, "num_warps": 4}
