"""The head: readout and cross entropy, computed for a few trials at a time.

    logits = h w         loss = log(sum(exp(logits))) - logits[target]         G = softmax(logits) - onehot(target)
    dh = g (G w^T)       dw = (g h)^T G            g: the gradient of the loss, one number per token

G overwrites the logits, in their dtype, and there is no float32 copy of all of them. It is kept for the backward pass
up to a limit. Beyond the limit the logits are computed again.

Letters: K trials, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.cross_entropy import cross_entropy_rows_
from hpxfer.kernels.head_limits import KEPT_BYTES, pieces
from hpxfer.kernels.product import batched_product


def head_losses(h_KTD: Tensor, readout_KDV: Tensor, targets_KT: Tensor, *, backend: Backend = TORCH) -> Tensor:
    """Return the cross entropy [K, T] of every token in nats, float32.

    `readout` includes its forward multiplier. It is rounded to the dtype of h. Its gradient has its own dtype.
    """
    if not torch.is_grad_enabled():
        return _losses(h_KTD, readout_KDV.to(h_KTD.dtype), targets_KT, backend, None)
    losses: Tensor = _Head.apply(h_KTD, readout_KDV, targets_KT, backend)  # type: ignore[no-untyped-call]
    return losses


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h_KTD: Tensor, readout_KDV: Tensor, targets_KT: Tensor, backend: Backend) -> Tensor:
        kept: list[Tensor] | None = None
        if h_KTD.shape[0] * h_KTD.shape[1] * readout_KDV.shape[2] * h_KTD.element_size() <= KEPT_BYTES:
            kept = []
        rounded_KDV = readout_KDV.to(h_KTD.dtype)
        losses_KT = _losses(h_KTD, rounded_KDV, targets_KT, backend, kept)
        ctx.save_for_backward(h_KTD, rounded_KDV, targets_KT, *(kept or ()))
        ctx.backend, ctx.kept, ctx.dtype = backend, kept is not None, readout_KDV.dtype
        return losses_KT

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        h_KTD, readout_KDV, targets_KT, *kept = ctx.saved_tensors
        g_KT1 = grads[0].unsqueeze(-1)  # float32, because bfloat16 cannot hold 1/T
        dh_KTD = torch.empty_like(h_KTD, memory_format=torch.contiguous_format)
        dreadout_KDV = torch.empty_like(readout_KDV, dtype=ctx.dtype, memory_format=torch.contiguous_format)
        for index, (trials, tokens) in enumerate(_pieces(h_KTD, readout_KDV)):
            h, readout, g = h_KTD[trials, tokens], readout_KDV[trials], g_KT1[trials, tokens]
            if ctx.kept:
                onto_logits = kept[index]
            else:
                onto_logits, _ = _gradient_and_losses(h, readout, targets_KT[trials, tokens], ctx.backend)
            torch.mul(batched_product(onto_logits, readout.transpose(1, 2), ctx.backend), g, out=dh_KTD[trials, tokens])
            dreadout = batched_product((h * g).to(h.dtype).transpose(1, 2), onto_logits, ctx.backend)
            if tokens.start == 0:
                dreadout_KDV[trials] = dreadout
            else:
                dreadout_KDV[trials] += dreadout
            del onto_logits, dreadout  # before the next piece is made
        return dh_KTD, dreadout_KDV, None, None


def _losses(
    h_KTD: Tensor, readout_KDV: Tensor, targets_KT: Tensor, backend: Backend, kept: list[Tensor] | None
) -> Tensor:
    """Return the losses. If `kept` is given, append the gradient of the losses by the logits of every piece to it."""
    losses_KT = torch.empty(h_KTD.shape[:2], dtype=torch.float32, device=h_KTD.device)
    for trials, tokens in _pieces(h_KTD, readout_KDV):
        onto_logits, losses = _gradient_and_losses(
            h_KTD[trials, tokens], readout_KDV[trials], targets_KT[trials, tokens], backend
        )
        losses_KT[trials, tokens] = losses
        if kept is not None:
            kept.append(onto_logits)
        del onto_logits  # before the next piece is made
    return losses_KT


def _gradient_and_losses(h: Tensor, readout: Tensor, targets: Tensor, backend: Backend) -> tuple[Tensor, Tensor]:
    logits = batched_product(h, readout, backend)
    losses = cross_entropy_rows_(logits.flatten(0, 1), targets.flatten(), backend=backend)
    return logits, losses.view(targets.shape)


def _pieces(h_KTD: Tensor, readout_KDV: Tensor) -> list[tuple[slice, slice]]:
    row_bytes = readout_KDV.shape[2] * h_KTD.element_size()
    return pieces(h_KTD.shape[0], h_KTD.shape[1], row_bytes, cuda=h_KTD.is_cuda)
