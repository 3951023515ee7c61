"""RoPE: queries and keys are rotated by angles that grow with the position (arXiv 2104.09864).

    of the first R features of a head, feature i < R/2 and feature i + R/2 turn together by position * theta^(-2i/R):
    y[i]       = x[i] cos - x[i + R/2] sin
    y[i + R/2] = x[i + R/2] cos + x[i] sin

The other features stay. The pairs are those of `transformers` ("rotate_half"). Angles, sines and cosines are float32.

Letters: N sequences of all trials, S context, H heads, P head features, R rotated features.
"""

from __future__ import annotations

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
    half = cos_SR.shape[1]
    cos, sin = cos_SR.unsqueeze(1), sin_SR.unsqueeze(1)
    x = x_NSHP.float() if x_NSHP.dtype in (torch.bfloat16, torch.float16) else x_NSHP
    first, second = x[..., :half], x[..., half : 2 * half]
    parts = [first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]]
    return torch.cat(parts, -1).to(x_NSHP.dtype)
