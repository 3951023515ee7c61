"""A step of Muon in plain torch, one matrix [out, in] at a time, as the public code has it."""

from __future__ import annotations

from torch import Tensor

DECAY, MOMENTUM = 0.5, 0.95


def plain_step(w: Tensor, m: Tensor, g: Tensor, lr: float, scale: float) -> tuple[Tensor, Tensor]:
    """Return a matrix and its momentum after a step."""
    m = MOMENTUM * m + (1 - MOMENTUM) * g
    x = (1 - MOMENTUM) * g + MOMENTUM * m
    x = x / (x.norm() + 1e-7)
    turned = x.shape[0] > x.shape[1]
    x = x.T if turned else x
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    x = x.T if turned else x
    return (1 - lr * DECAY) * w - lr * scale * x, m
