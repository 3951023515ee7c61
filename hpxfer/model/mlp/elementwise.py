"""Elementwise functions of a stack, and their slopes, with the same bits in every stack.

Torch computes the last numbers of a tensor by another code than the rest, and sigmoid and GELU then differ in the last
bit. A trial is therefore padded to whole vectors: the code of a number depends on its place in its trial alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.spec.mlp import Activation

# Numbers of a trial. Four AVX2 vectors of float32 are computed at once (measured with torch 2.13).
WHOLE = 32

_aten: Any = torch.ops.aten


def padded(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Return function(*tensors) of tensors [K, ...], computed in rows of whole vectors."""
    first = tensors[0]
    count = first[0].numel()
    if count % WHOLE == 0:
        return function(*(tensor.contiguous() for tensor in tensors))
    rows = [F.pad(tensor.reshape(len(first), -1), (0, -count % WHOLE)) for tensor in tensors]
    return function(*rows)[:, :count].view(first.shape)


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
