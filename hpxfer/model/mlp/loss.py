"""The losses of the MLP mixture, their gradients, and which classes a model takes a sample for.

Letters: K trials, B samples, C classes or outputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.spec.mlp import SampleLoss


def losses(kind: SampleLoss, f_KBC: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses [K, B], and what `loss_backward` needs.

    `targets` are classes [K, B] or real numbers [K, B, C].
    """
    if kind == "cross_entropy":
        log_p = f_KBC.log_softmax(-1)
        return -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1), log_p
    missing = f_KBC - wanted(targets, f_KBC.shape[-1])
    return missing.square().sum(-1), missing


def loss_backward(kind: SampleLoss, kept: Tensor, targets: Tensor, grad_KB: Tensor) -> Tensor:
    """Return the gradient by the outputs, [K, B, C]. It takes the memory of what was kept."""
    if kind == "cross_entropy":
        p = kept.exp_()
        p.scatter_add_(-1, targets.unsqueeze(-1), torch.full_like(p[..., :1], -1.0))
        return p.mul_(grad_KB.unsqueeze(-1))
    return kept.mul_(2 * grad_KB.unsqueeze(-1))


def wanted(targets: Tensor, num_outputs: int) -> Tensor:
    """Return what the outputs should be under a squared error, [K, B, C].

    Of several classes the right one has 1 and the others 0. Of two classes the first has 1 and the second -1.
    """
    if targets.is_floating_point():
        return targets
    if num_outputs == 1:
        return (1.0 - 2.0 * targets).unsqueeze(-1)
    return F.one_hot(targets, num_outputs).float()


def ranks(f_KBC: Tensor, targets_KB: Tensor) -> Tensor:
    """Return [K, B] int64: how many other classes have an output that is not below the right one.

    A sample is right if this is 0, and among the first five if it is below 5. So equal outputs and NaN count as wrong.
    """
    if f_KBC.shape[-1] == 1:
        return (~(f_KBC.squeeze(-1) * (1.0 - 2.0 * targets_KB) > 0)).long()
    own = f_KBC.gather(-1, targets_KB.unsqueeze(-1))
    return (~(f_KBC < own)).sum(-1) - 1
