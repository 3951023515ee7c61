"""Flat storage: all parameters of a stack in one vector. Each copy of a parameter is a [K, ...] view of it.

The order is parameter, copy, trial. Adam's moments are vectors of the same order. Gradients are separate tensors:
autograd makes one per view, and joining them would cost one pass over all parameters per step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpxfer.model.parameters import ParameterSpec

Weights = dict[str, tuple[torch.Tensor, ...]]


@dataclass(frozen=True, kw_only=True)
class FlatLayout:
    """Where the parameters of `num_trials` stacked trials lie in one vector."""

    parameters: tuple[ParameterSpec, ...]
    num_trials: int

    @property
    def numel(self) -> int:
        return sum(spec.numel * spec.layers for spec in self.parameters) * self.num_trials

    @property
    def copy_sizes(self) -> list[int]:
        """The elements of every copy of a parameter, in the order of the vector."""
        return [spec.numel * self.num_trials for spec in self.parameters for _ in range(spec.layers)]

    def part(self, shard: torch.Tensor, low: int) -> Weights:
        """Return the same views of a shard of the vector, which begins at `low` and has whole copies.

        A copy that is not in the shard is empty: [K, 0].
        """
        out: Weights = {}
        begin = -low
        for spec in self.parameters:
            copies = []
            for _ in range(spec.layers):
                end = begin + spec.numel * self.num_trials
                if begin >= 0 and end <= len(shard):
                    copies.append(shard[begin:end].view(self.num_trials, *spec.size))
                else:
                    copies.append(shard.new_empty(self.num_trials, 0))
                begin = end
            out[spec.name] = tuple(copies)
        return out

    def weights(self, flat: torch.Tensor) -> Weights:
        """Return name -> one [K, *size] view per copy."""
        return self.part(flat, 0)

    def leaves(self, flat: torch.Tensor) -> Weights:
        """Return the same views as leaves of autograd. They follow what is written to `flat` between two passes."""
        return {
            name: tuple(copy.detach().requires_grad_() for copy in copies)
            for name, copies in self.weights(flat).items()
        }


def gradients(
    losses_KT: torch.Tensor, weights: Weights, grad_KT: torch.Tensor, regularizer_K: torch.Tensor | None = None
) -> Weights:
    """Return name -> one contiguous [K, *size] gradient of sum(losses * grad) + sum(regularizer) per copy."""
    leaves = [copy for copies in weights.values() for copy in copies]
    if regularizer_K is None:
        pieces = iter(torch.autograd.grad(losses_KT, leaves, grad_KT))
    else:
        ones_K = torch.ones_like(regularizer_K)
        pieces = iter(torch.autograd.grad([losses_KT, regularizer_K], leaves, [grad_KT, ones_K]))
    return {name: tuple(next(pieces).contiguous() for _ in copies) for name, copies in weights.items()}
