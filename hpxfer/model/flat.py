"""Flat storage: every parameter of a stack in one vector, of which each layer's copy of a tensor is a [K, ...] view.

Order: tensor, layer, trial. Moments and updates are vectors of the same order. Gradients are not: autograd makes one
a view, and joining them would cost a pass over all parameters a step.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass

import torch

from hpxfer.model.layout import Tensor

Weights = dict[str, tuple[torch.Tensor, ...]]


@dataclass(frozen=True, kw_only=True)
class Flat:
    """Where the tensors of `num_trials` stacked trials lie in one vector."""

    tensors: tuple[Tensor, ...]
    num_trials: int

    @property
    def numel(self) -> int:
        return sum(tensor.numel * tensor.layers for tensor in self.tensors) * self.num_trials

    def weights(self, flat: torch.Tensor) -> Weights:
        """Return name -> one [K, *size] view a layer."""
        sizes = [tensor.numel * self.num_trials for tensor in self.tensors for _ in range(tensor.layers)]
        pieces = iter(torch.split(flat, sizes))
        return {
            tensor.name: tuple(next(pieces).view(self.num_trials, *tensor.size) for _ in range(tensor.layers))
            for tensor in self.tensors
        }

    def leaves(self, flat: torch.Tensor) -> Weights:
        """Return the same views as leaves of autograd: what is written to `flat` between two passes, they show."""
        return {
            name: tuple(copy.detach().requires_grad_() for copy in copies)
            for name, copies in self.weights(flat).items()
        }


def gradients(losses_KT: torch.Tensor, weights: Weights, grad_KT: torch.Tensor) -> Weights:
    """Return name -> one contiguous [K, *size] gradient a layer of sum(losses * grad)."""
    leaves = [copy for copies in weights.values() for copy in copies]
    pieces = iter(torch.autograd.grad(losses_KT, leaves, grad_KT))
    return {name: tuple(next(pieces).contiguous() for _ in copies) for name, copies in weights.items()}


def sums_of_squares(weights: Weights, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return name -> [K] sum of squares over a tensor and its layers.

    Row by row and layer by layer: one reduction over layers and elements at once would order its additions by K.
    """
    return {
        name: functools.reduce(operator.add, (copy.flatten(1).to(dtype).square().sum(-1) for copy in copies))
        for name, copies in weights.items()
    }
