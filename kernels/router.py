"""The router of a MoE layer, from the residual stream to the chosen experts.

    s      = x + y                                                     y: what the branch before adds to the stream
    h      = norm(s)                                                   layer norm or RMS norm, in the dtype of x
    logits = h @ w + noise                                             float32: h is rounded, w is not
    chosen = the experts of largest score(logits) + balance            as `choose_experts` says

In Triton this is one kernel, and its backward pass is one kernel and a split sum:

    g  = dh + dlogits w^T
    dx = dy = ds + (g - mean(g) - h mean(g h)) rstd                    without mean(g) under RMS norm
    dw = sum over t of h[t] dlogits[t]                                 pieces of rows, then their sum in order

No float32 copy of h is written. The backward pass needs h, which the experts save too, and one number per token. Bytes
per token and layer, for 2-byte numbers (what is read a second time comes from a cache):

    route              reads x, y: 4D                       writes s, h: 4D, logits, chosen and rstd: 4E + 8A + 4
    stream_gradient    reads ds, dh, h: 6D, dlogits: 4E     writes dx: 2D
    weight_gradient    reads h: 2D, dlogits: 4E             writes pieces of dw: D/2 at most, which their sum reads

Separate operations, with all that a compiler fuses, take 8D for x + y and its norm, 4D to write h in float32 and 4D to
multiply it. Backward they take 4D to multiply the copy by dlogits, 4D to write dlogits w^T, and 12D for the norm. That
is 36D against 19D here: at 32,768 tokens of 512 features 285 MB per layer, or 66 us at 4.3 TB/s (predicted).

A gain and a bias of the norm are put into w and the noise, so the kernel knows only the plain norm:

    (h * gain + bias) @ w = h @ (gain * w) + bias @ w

The experts' input h * gain + bias is then an operation of its own, which reads and writes 2D bytes each.

Letters: K trials, T tokens, D features, E experts, A active experts, G groups, C pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend, launch
from hpxfer.kernels.grouped_launch import power_of_2
from hpxfer.kernels.narrow import narrow_product
from hpxfer.kernels.norm import EPS, Kind, norm, with_gain
from hpxfer.kernels.sums import aligned, column_sums

# Scores that the kernel computes. `scaled_softmax` is the scale of a trial times its softmax.
Score = Literal["sigmoid", "softmax", "scaled_softmax"]
# The same in torch: (logits [K, T, E], scale [K, 1, 1]) -> scores.
SCORES: dict[Score, Callable[[Tensor, Tensor], Tensor]] = {
    "sigmoid": lambda logits_KTE, _: logits_KTE.sigmoid(),
    "softmax": lambda logits_KTE, _: logits_KTE.softmax(-1),
    "scaled_softmax": lambda logits_KTE, scale_K11: scale_K11 * logits_KTE.softmax(-1),
}


class Routed(NamedTuple):
    """What `router` returns."""

    stream: Tensor  # [K, T, D], x + y
    h: Tensor  # [K, T, D], the norm with gain and bias
    logits: Tensor  # [K, T, E] float32
    chosen: Tensor | None  # [K, T, A] int64; None if the caller must choose by its own scores


def router(
    x_KTD: Tensor,
    y_KTD: Tensor,
    w_KDE: Tensor,
    *,
    gain_KD: Tensor | None = None,
    bias_KD: Tensor | None = None,
    noise_KE: Tensor | None = None,
    balance_KE: Tensor,
    score: Score | None,
    scale_K: Tensor,
    ties_K: Tensor | None = None,
    num_active: int,
    num_groups: int = 1,
    kind: Kind = "layernorm",
    eps: float = EPS,
    backend: Backend = TORCH,
) -> Routed:
    """Return the stream, its norm, the logits, and in Triton the chosen experts of the scores that it knows.

    `gain`, `bias`, `kind` and `eps` are the norm's. `balance` is added to the scores that choose, `scale` is that of
    the softmax, and `ties` are the keys of `choose_experts`.
    """
    if not backend.is_triton:
        x_KTD = x_KTD + y_KTD
        h_KTD = norm(x_KTD, gain_KD, bias_KD, backend, kind=kind, eps=eps)
        logits_KTE = narrow_product(h_KTD.float(), w_KDE)
        return Routed(x_KTD, h_KTD, logits_KTE if noise_KE is None else logits_KTE + noise_KE.unsqueeze(1), None)
    if bias_KD is not None:
        shift_KE = column_sums(bias_KD.unsqueeze(2) * w_KDE, backend)
        noise_KE = shift_KE if noise_KE is None else shift_KE + noise_KE
    if gain_KD is not None:
        w_KDE = w_KDE * gain_KD.unsqueeze(2)
    sizes = num_active if score else 0, num_groups, score or "", kind, eps
    x_KTD, h_KTD, _, logits_KTE, chosen_KTA = _route(
        x_KTD, y_KTD, w_KDE, noise_KE, balance_KE.detach(), scale_K, ties_K, *sizes
    )
    h_KTD = with_gain(h_KTD, gain_KD, bias_KD, backend)
    return Routed(x_KTD, h_KTD, logits_KTE, chosen_KTA if score else None)


@torch.library.custom_op("hpxfer::router", mutates_args=())
def _route(
    x: Tensor,
    y: Tensor,
    w: Tensor,
    noise: Tensor | None,
    balance: Tensor,
    scale: Tensor,
    ties: Tensor | None,
    num_active: int,
    num_groups: int,
    score: str,
    kind: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from hpxfer.kernels.router_triton import route

    num_trials, num_tokens, size_d = x.shape
    num_experts = w.shape[2]
    assert x.dtype == y.dtype, (x.dtype, y.dtype)
    assert w.dtype == torch.float32, w.dtype
    x, y, w, balance, scale = (aligned(tensor) for tensor in (x, y, w, balance, scale))
    total, h, rstd, logits, chosen = _outputs(x, w, num_active)
    blocks = _row_blocks(size_d, num_experts, x.dtype)
    num_noise, num_ties = 0 if noise is None else num_experts, 0 if ties is None else num_trials
    # A stand-in has the same dtype and alignment: for others, Triton would compile other code.
    noise = logits if noise is None else aligned(noise)
    ties = chosen.view(torch.int32) if ties is None else aligned(ties)
    launch(
        route,
        (-(-num_tokens // blocks["BLOCK_T"]), num_trials),
        *(x, y, w, noise, balance, scale, ties, total, h, rstd, logits, chosen),
        *(num_tokens, size_d, num_experts, num_active, num_groups, num_noise, num_ties, eps),
        SCORE=score,
        IS_RMS=kind == "rmsnorm",
        **blocks,
    )
    return total, h, rstd, logits, chosen


@_route.register_fake
def _(
    x: Tensor,
    y: Tensor,
    w: Tensor,
    noise: Tensor | None,
    balance: Tensor,
    scale: Tensor,
    ties: Tensor | None,
    num_active: int,
    num_groups: int,
    score: str,
    kind: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _outputs(x, w, num_active)


@torch.library.custom_op("hpxfer::router_gradients", mutates_args=())
def _gradients(
    dtotal: Tensor, dh: Tensor, dlogits: Tensor, h: Tensor, rstd: Tensor, w: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x, which is that of y, and of w."""
    from hpxfer.kernels.router_triton import stream_gradient, weight_gradient

    num_trials, num_tokens, size_d = h.shape
    num_experts = w.shape[2]
    dtotal, dh, dlogits, h, w = (aligned(tensor) for tensor in (dtotal, dh, dlogits, h, w))
    sizes = num_tokens, size_d, num_experts
    dx, blocks = torch.empty_like(h), _row_blocks(size_d, num_experts, h.dtype, backward=True)
    grid = -(-num_tokens // blocks["BLOCK_T"]), num_trials
    launch(stream_gradient, grid, dtotal, dh, dlogits, h, rstd, w, dx, *sizes, IS_RMS=kind == "rmsnorm", **blocks)
    blocks = _weight_blocks(size_d, num_experts)
    pieces, blocks_d = max(1, -(-num_tokens // blocks["ROWS"])), -(-size_d // blocks["BLOCK_D"])
    dw_KCF = w.new_empty((num_trials, pieces, size_d * num_experts))
    grid = pieces * blocks_d, num_trials
    launch(weight_gradient, grid, h, dlogits, dw_KCF, *sizes, pieces, blocks_d, **blocks)
    dw_KF = dw_KCF.squeeze(1) if pieces == 1 else column_sums(dw_KCF, _IN_TRITON)
    return dx, dw_KF.view(w.shape)


@_gradients.register_fake
def _(
    dtotal: Tensor, dh: Tensor, dlogits: Tensor, h: Tensor, rstd: Tensor, w: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape), w.new_empty(w.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, h, rstd, _, chosen = output
    ctx.save_for_backward(h, rstd, inputs[2])
    ctx.kind = inputs[10]
    ctx.mark_non_differentiable(rstd, chosen)


def _backward(ctx: Any, dtotal: Tensor, dh: Tensor, _: Any, dlogits: Tensor, __: Any) -> tuple[Tensor | None, ...]:
    dx, dw = _gradients(dtotal, dh, dlogits, *ctx.saved_tensors, ctx.kind)
    dnoise = column_sums(dlogits, _IN_TRITON) if ctx.needs_input_grad[3] else None
    return dx, dx, dw, dnoise, *(None,) * 8


_route.register_autograd(_backward, setup_context=_save)

_IN_TRITON = Backend(name="triton", reason="the router's", strict=True)


def _outputs(x: Tensor, w: Tensor, num_active: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return empty tensors: x + y, h, rstd, logits, chosen."""
    rows = x.shape[:2]
    total, h = (x.new_empty(x.shape) for _ in range(2))
    rstd, logits = w.new_empty(rows), w.new_empty((*rows, w.shape[2]))
    return total, h, rstd, logits, w.new_empty((*rows, num_active), dtype=torch.int64)


def _row_blocks(size_d: int, num_experts: int, dtype: torch.dtype, *, backward: bool = False) -> dict[str, int]:
    """Return the blocks of a program that owns tokens. More experts need more tokens per load of w.

    They are derived from what the compiler reports, not measured: the most tokens and features that spill next to
    nothing. float32 products do not run on tensor cores and need more registers, so they take fewer tokens.
    """
    block_e = max(16, power_of_2(num_experts))
    if dtype == torch.bfloat16:
        block_t, most_d = (32, 64) if block_e == 16 else (64, 32)
        if block_e > 64 and backward:
            most_d = 16
        elif block_e > 128:
            block_t = 32
    else:
        block_t, most_d = 16, 64 if block_e == 16 else 32
    block_d, num_warps = min(max(16, power_of_2(size_d)), most_d), 4 if block_e <= 64 else 8
    return {"BLOCK_T": block_t, "BLOCK_D": block_d, "BLOCK_E": block_e, "num_warps": num_warps, "num_stages": 2}


def _weight_blocks(size_d: int, num_experts: int) -> dict[str, int]:
    """Return the blocks of dw. One program sums ROWS tokens: the pieces are D/2 bytes per token, for any E above 16."""
    block_e = max(16, power_of_2(num_experts))
    block_t, most_d, num_warps = (64, 64, 4) if block_e == 16 else (32, 64, 4) if block_e <= 64 else (32, 32, 8)
    block_d = min(max(16, power_of_2(size_d)), most_d)
    blocks = {"ROWS": max(256, 8 * block_e), "BLOCK_T": block_t, "BLOCK_D": block_d, "BLOCK_E": block_e}
    return {**blocks, "num_warps": num_warps, "num_stages": 3}
