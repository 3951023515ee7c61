"""A few steps of SGD or Adam on the block, all samples in every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hpxfer.coordinates.block.backward import Backward, backward, gradients
from hpxfer.coordinates.block.forward import Forward, forward
from hpxfer.coordinates.block.weights import Rules, Weights, draw, inputs, router_bias, rules
from hpxfer.model.draws import tie_keys
from hpxfer.scaling.claims.block import Block
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column


@dataclass(frozen=True, kw_only=True)
class Training:
    """The base HPs of a run of the block. The table multiplies lr and eps."""

    lr: float
    eps: float
    beta1: float = 0.9
    beta2: float = 0.95


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The state of a run after `step` updates, with the gradients for the next update."""

    step: int
    weights: Weights
    forward: Forward
    backward: Backward
    gradients: Mapping[str, Tensor]  # of the loss, by role
    chi: Tensor  # dL/df of every sample, [K, P]


def run(
    choice: Parameterization,
    shape: Shape,
    block: Block,
    optimizer: Column,
    training: Training,
    *,
    seeds: Sequence[int],
    steps: int,
    dtype: torch.dtype = torch.float64,
) -> Iterator[Moment]:
    """Yield the states of all seeds together after 0, 1, ... `steps` updates. The weights change in place.

    A router that starts at zero chooses among equal experts at random, and any other the lowest index.
    """
    rule = rules(choice, shape, block, optimizer)
    weights = draw(choice, shape, block, rule, seeds, dtype)
    x, y = inputs(block, dtype)
    update = _Update(rule, optimizer, training, training.lr * shape.width**block.lr_exponent)
    ties = tie_keys(seeds, (0,))[0] if choice.zero_router(optimizer) else None
    first = None
    for step in range(steps + 1):
        bias = router_bias(choice, block, shape.num_experts, seeds, step, dtype)
        fwd = forward(weights, rule, block, shape, x, bias, first, ties)
        back = backward(weights, rule, block, fwd)
        grads, chi = gradients(rule, block, fwd, back, x, y)
        yield Moment(step=step, weights=weights, forward=fwd, backward=back, gradients=grads, chi=chi)
        first = first or fwd
        if step < steps:
            update(weights, grads)


@dataclass
class _Update:
    """The optimizer, with an LR and an eps per role. Adam has bias correction, and there is no weight decay."""

    rule: Rules
    optimizer: Column
    training: Training
    lr: float
    step: int = 0
    moments: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __call__(self, weights: Weights, grads: Mapping[str, Tensor]) -> None:
        self.step += 1
        for role, gradient in grads.items():
            numbers = self.rule.roles[role]
            direction = gradient if self.optimizer == "sgd" else self._adam(role, gradient, numbers.eps)
            weights.change[role].sub_(direction, alpha=self.lr * numbers.lr)

    def _adam(self, role: str, gradient: Tensor, eps: float) -> Tensor:
        b1, b2 = self.training.beta1, self.training.beta2
        if role not in self.moments:
            self.moments[role] = (torch.zeros_like(gradient), torch.zeros_like(gradient))
        m, v = self.moments[role]
        m.mul_(b1).add_(gradient, alpha=1 - b1)
        v.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        root = (v / (1 - b2**self.step)).sqrt_()
        return (m / (1 - b1**self.step)).div_(root.add_(self.training.eps * eps))
