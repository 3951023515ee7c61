"""Layer norm and RMS norm, with a gain and a bias where there are any: y * gain + bias.

    layernorm    y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps)   dx = (dy - mean(dy) - y mean(dy y)) / sqrt(...)
    rmsnorm      y = x / sqrt(mean(x^2) + eps)                           dx = (dy - y mean(dy y)) / sqrt(...)

`added_norm` adds y to the stream before the norm. For RMS norm this sum, the norm and the gain are one Triton kernel,
and their backward pass is one kernel and, for the gain, a split sum. Layer norm and the sum before it are torch's.

    reads x, y: 4D          writes x + y and h: 4D         bytes per token, for 2-byte numbers
    reads d(x + y), dh and x + y: 6D                       writes dx: 2D; the gain reads dh and x + y once more: 4D

Letters: K trials, T tokens, D features; "..." rows of any shape.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend, launch
from hpxfer.kernels.grouped_launch import power_of_2
from hpxfer.kernels.sums import aligned, column_sums, spread

EPS = 1e-5
Kind = Literal["layernorm", "rmsnorm"]
# Tokens whose share of a gain's gradient one program sums, and the elements of its block (derived, not measured).
ROWS, ELEMENTS = 256, 2048


def norm(
    x_KTD: Tensor,
    gain_KD: Tensor | None,
    bias_KD: Tensor | None,
    backend: Backend = TORCH,
    *,
    kind: Kind = "layernorm",
    eps: float = EPS,
) -> Tensor:
    """Return the norm of x in its dtype, with the gain and the bias of every trial where there are any."""
    y_KTD = layer_norm(x_KTD, eps) if kind == "layernorm" else rms_norm(x_KTD, eps)
    return with_gain(y_KTD, gain_KD, bias_KD, backend)


def added_norm(
    x_KTD: Tensor,
    y_KTD: Tensor | None,
    gain_KD: Tensor | None,
    bias_KD: Tensor | None,
    backend: Backend = TORCH,
    *,
    kind: Kind = "layernorm",
    eps: float = EPS,
) -> tuple[Tensor, Tensor]:
    """Return x + y, or x if there is no y, and its norm. The gain and the bias are [K, D] float32."""
    if backend.is_triton and kind == "rmsnorm":
        total_KTD, h_KTD, _ = _add_rms_norm(x_KTD, y_KTD, gain_KD, eps)
        return x_KTD if y_KTD is None else total_KTD, with_gain(h_KTD, None, bias_KD, backend)
    x_KTD = x_KTD if y_KTD is None else x_KTD + y_KTD
    return x_KTD, norm(x_KTD, gain_KD, bias_KD, backend, kind=kind, eps=eps)


def with_gain(h_KTD: Tensor, gain_KD: Tensor | None, bias_KD: Tensor | None, backend: Backend = TORCH) -> Tensor:
    """Return h * gain + bias, for those that there are."""
    if gain_KD is not None:
        h_KTD = h_KTD * spread(gain_KD, h_KTD.shape[1], h_KTD.dtype, backend)
    if bias_KD is not None:
        h_KTD = h_KTD + spread(bias_KD, h_KTD.shape[1], h_KTD.dtype, backend)
    return h_KTD


def layer_norm(x: Tensor, eps: float = EPS) -> Tensor:
    """Return x [..., D] with mean 0 and variance 1 over its last dimension, in its dtype.

    On a CPU in float32 the rows of a small model are too short for torch's own kernel, which reduces row by row: 1.8 ns
    per element at 32 features against 0.7 here (torch 2.13, AVX-512). Torch's backward pass has no such loss.
    """
    if not _in_steps(x):
        return F.layer_norm(x, x.shape[-1:], eps=eps)
    out: Tensor = _LayerNorm.apply(x, eps)  # type: ignore[no-untyped-call]
    return out


def rms_norm(x: Tensor, eps: float = EPS) -> Tensor:
    """Return x [..., D] with mean square 1 over its last dimension, in its dtype.

    On a CPU torch's own keeps float32 copies of a half precision for the backward pass.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.rms_norm(x, x.shape[-1:], eps=eps)
    out: Tensor = _RMSNorm.apply(x, eps)  # type: ignore[no-untyped-call]
    return out


def _in_steps(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling()


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        share = 1.0 / x.shape[-1]
        mean = x.sum(-1, keepdim=True).mul_(share)
        y = x - mean
        rstd = torch.linalg.vector_norm(y, dim=-1, keepdim=True).square_().mul_(share).add_(eps).rsqrt_()
        ctx.save_for_backward(x, mean, rstd)
        return y.mul_(rstd)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        x, mean, rstd = ctx.saved_tensors
        dx: Tensor = torch.ops.aten.native_layer_norm_backward(
            grads[0].contiguous(), x, x.shape[-1:], mean, rstd, None, None, [True, False, False]
        )[0]
        return dx, None


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        rstd = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
        rstd = rstd.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
        y: Tensor = (exact * rstd).to(x.dtype)
        ctx.save_for_backward(y, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        saved, rstd = ctx.saved_tensors
        dy, y = grads[0].to(rstd.dtype), saved.to(rstd.dtype)
        projection = (dy * y).sum(-1, keepdim=True).mul_(1.0 / y.shape[-1])
        dx = torch.addcmul(dy, y, projection, value=-1).mul_(rstd)
        return dx.to(saved.dtype), None


@torch.library.custom_op("hpxfer::add_rms_norm", mutates_args=())
def _add_rms_norm(x: Tensor, y: Tensor | None, gain: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return x + y, or an empty tensor without y, its RMS norm times the gain, and 1 / the root of its mean square."""
    from hpxfer.kernels.norm_triton import add_rms_norm

    num_trials, num_tokens, size_d = x.shape
    x, y, gain = aligned(x), None if y is None else aligned(y), None if gain is None else aligned(gain)
    assert y is None or y.dtype == x.dtype, (x.dtype, y)
    assert gain is None or gain.dtype == torch.float32, gain
    total, h, rstd = _outputs(x, y)
    launch(
        add_rms_norm,
        (-(-num_tokens // _blocks(size_d)["BLOCK_T"]), num_trials),
        *(x, x if y is None else y, rstd if gain is None else gain, total, h, rstd, num_tokens, size_d, eps),
        HAS_Y=y is not None,
        HAS_GAIN=gain is not None,
        **_blocks(size_d),
    )
    return total, h, rstd


@_add_rms_norm.register_fake
def _(x: Tensor, y: Tensor | None, gain: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(x, y)


@torch.library.custom_op("hpxfer::rms_norm_gradients", mutates_args=())
def _gradients(
    dtotal: Tensor | None, dh: Tensor, total: Tensor, rstd: Tensor, gain: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x, which is that of y, and of the gain, which is empty without one."""
    from hpxfer.kernels.norm_triton import rms_gain_gradient, rms_norm_gradient

    num_trials, num_tokens, size_d = total.shape
    dh, total, dtotal = aligned(dh), aligned(total), None if dtotal is None else aligned(dtotal)
    dx, blocks = torch.empty_like(total), _blocks(size_d)
    launch(
        rms_norm_gradient,
        (-(-num_tokens // blocks["BLOCK_T"]), num_trials),
        *(dh if dtotal is None else dtotal, dh, total, rstd, rstd if gain is None else aligned(gain), dx),
        *(num_tokens, size_d),
        HAS_Y=dtotal is not None,
        HAS_GAIN=gain is not None,
        **blocks,
    )
    if gain is None:
        return dx, rstd.new_empty(0)
    pieces, blocks_d = max(1, -(-num_tokens // ROWS)), -(-size_d // min(blocks["BLOCK_D"], 64))
    dgain_KCD = rstd.new_empty((num_trials, pieces, size_d))
    sizes = num_tokens, size_d, pieces, blocks_d
    block_d = min(blocks["BLOCK_D"], 64)
    launch(
        rms_gain_gradient,
        (pieces * blocks_d, num_trials),
        *(dh, total, rstd, dgain_KCD, *sizes),
        ROWS=ROWS,
        BLOCK_T=32,
        BLOCK_D=block_d,
        num_warps=4,
    )
    return dx, dgain_KCD.squeeze(1) if pieces == 1 else column_sums(dgain_KCD, _IN_TRITON)


@_gradients.register_fake
def _(dtotal: Tensor | None, dh: Tensor, total: Tensor, rstd: Tensor, gain: Tensor | None) -> tuple[Tensor, Tensor]:
    return total.new_empty(total.shape), rstd.new_empty(0 if gain is None else gain.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, y, gain, _ = inputs
    total, _, rstd = output
    ctx.has_y = y is not None
    ctx.save_for_backward(total if ctx.has_y else x, rstd, gain)
    ctx.mark_non_differentiable(rstd)


def _backward(ctx: Any, dtotal: Tensor, dh: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    total, rstd, gain = ctx.saved_tensors
    dx, dgain = _gradients(dtotal if ctx.has_y else None, dh, total, rstd, gain)
    return dx, dx if ctx.has_y else None, None if gain is None else dgain, None


_add_rms_norm.register_autograd(_backward, setup_context=_save)

_IN_TRITON = Backend(name="triton", reason="the norm's", strict=True)


def _outputs(x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    total = x.new_empty(0 if y is None else x.shape)
    return total, x.new_empty(x.shape), x.new_empty(x.shape[:2], dtype=torch.float32)


def _blocks(size_d: int) -> dict[str, int]:
    """Return the tokens and features of a program: whole rows of up to 1,024 features."""
    block_d = min(max(16, power_of_2(size_d)), 1024)
    return {"BLOCK_T": max(1, min(64, ELEMENTS // block_d)), "BLOCK_D": block_d, "num_warps": 4}
