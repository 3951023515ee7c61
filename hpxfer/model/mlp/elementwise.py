"""The activations of the MLP mixture and their slopes, with the same bits in every stack."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.model.padded import WHOLE, padded
from hpxfer.spec.mlp import Activation

_aten: Any = torch.ops.aten


def activate(kind: Activation, x: Tensor) -> Tensor:
    """Return the activation of [K, ...]."""
    match kind:
        case "relu":
            return x.relu()
        case "gelu":
            return padded(F.gelu, x)
        case "tanh":
            return padded(torch.tanh, x)
        case _:
            return x


def activate_backward(kind: Activation, grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient by x of y = activation(x), given the one by y, whose memory it may take."""
    match kind:
        case "relu":
            return torch.where(x > 0, grad, 0.0)
        case "gelu":
            if grad[0].numel() % WHOLE == 0 and grad.is_contiguous() and x.is_contiguous():
                return _aten.gelu_backward.grad_input(grad, x, grad_input=grad)  # type: ignore[no-any-return]
            return padded(_aten.gelu_backward, grad, x)
        case "tanh":
            return grad.mul_(1 - y * y)
        case _:
            return grad
