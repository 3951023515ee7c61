"""RoPE: queries and keys are rotated by angles that grow with the position (arXiv 2104.09864).

    of the first R features of a head, feature i < R/2 and feature i + R/2 turn together by position * theta^(-2i/R):
    y[i]       = x[i] cos - x[i + R/2] sin
    y[i + R/2] = x[i + R/2] cos + x[i] sin

The other features stay. The pairs are those of `transformers` ("rotate_half"). Angles, sines and cosines are float32.

Letters: N sequences of all trials, S context, H heads, P head features, R rotated features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rotation(context: int, head_dim: int, *, theta: float, share: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (cos, sin), each [S, R/2] float32, for `share` of the features of a head."""
    rotated = rotated_features(head_dim, share)
    exponents = torch.arange(0, rotated, 2, dtype=torch.int64).float() / rotated
    frequencies = 1.0 / theta**exponents
    angles_SR = torch.arange(context, dtype=torch.float32).unsqueeze(1) * frequencies
    return angles_SR.cos().to(device), angles_SR.sin().to(device)


def rotated_features(head_dim: int, share: float) -> int:
    """Return R, the number of rotated features of a head. A share such as 0.333333 is rounded, as it is meant."""
    return round(head_dim * share)


def rope(x_NSHP: Tensor, cos_SR: Tensor, sin_SR: Tensor) -> Tensor:
    """Return x with its first features rotated, in its dtype."""
    out: Tensor = _Rope.apply(x_NSHP, cos_SR, sin_SR)  # type: ignore[no-untyped-call]
    return out


class _Rope(torch.autograd.Function):
    """The gradient is turned back by the same operations, which halves what separate derivatives of them take."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(grads[0], cos, -sin), None, None


def _turned(x_NSHP: Tensor, cos_SR: Tensor, sin_SR: Tensor) -> Tensor:
    """Return x turned by the angles: whole heads times cosines, plus the heads with swapped halves times sines."""
    half, rest = cos_SR.shape[1], x_NSHP.shape[-1] - 2 * cos_SR.shape[1]
    ones, zeros = cos_SR.new_ones(len(cos_SR), rest), cos_SR.new_zeros(len(cos_SR), rest)
    cos = torch.cat([cos_SR, cos_SR, ones], -1).unsqueeze(1)
    sin = torch.cat([-sin_SR, sin_SR, zeros], -1).unsqueeze(1)
    x = x_NSHP.to(torch.promote_types(x_NSHP.dtype, torch.float32))
    swapped = torch.cat([x[..., half : 2 * half], x[..., :half], x[..., 2 * half :]], -1)
    return (x * cos).add_(swapped.mul_(sin)).to(x_NSHP.dtype)
