"""A stack in training, looked at after every update: its passes over a fixed batch, split into pieces.

The trials are trained by the trainer's own state: its draws, batches, optimizer, router biases and ties.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hpxfer.coordinates.mlp.passes import BlockBackward, Forward, Split, backward, forward
from hpxfer.model.flat import Weights
from hpxfer.model.mlp.stack import MLPStack, loss_backward, losses, ranks
from hpxfer.train.state import TrainState


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The state of a stack after `step` updates, with the gradients for the next update."""

    step: int
    model: MLPStack
    weights: Split
    forward: Forward
    backward: tuple[BlockBackward, ...]
    gradients: Weights
    losses: Tensor  # of every sample, [K, P]
    ranks: Tensor | None  # how many classes beat the right one, [K, P] int64; None of real targets
    by_outputs: Tensor  # gradient of every sample's loss by the model's outputs, [K, P, C]


@dataclass(kw_only=True)
class _Probe:
    """A fixed batch, and the passes of the model over it before training."""

    state: TrainState
    inputs: Tensor
    targets: Tensor
    first: tuple[Forward, tuple[BlockBackward, ...]] | None = None
    initial: Weights = field(default_factory=dict)

    @torch.no_grad()
    def look(self, step: int, gradients: Weights) -> Moment:
        """Return what is seen after `step` updates."""
        state = self.state
        model = state.model
        assert isinstance(model, MLPStack), "only the family mlp is split into pieces"
        now = state.layout.weights(state.flat)
        if not self.initial:
            self.initial = state.layout.weights(state.initial())
        change = {
            name: tuple(new - old for new, old in zip(copies, self.initial[name], strict=True))
            for name, copies in now.items()
        }
        weights = Split(initial=self.initial, change=change)
        before = (None, None) if self.first is None else self.first
        seen = forward(model, weights, self.inputs, state.router_bias, state.noise(step), before[0])
        back = backward(model, weights, seen, before[1])
        self.first = self.first or (seen, back)
        loss = model.setting.mlp.loss
        losses_KP, kept = losses(loss, seen.outputs.total, self.targets)
        by_outputs = loss_backward(loss, kept, self.targets, torch.ones_like(losses_KP))
        return Moment(
            step=step,
            model=model,
            weights=weights,
            forward=seen,
            backward=back,
            gradients=gradients,
            losses=losses_KP,
            ranks=None if self.targets.is_floating_point() else ranks(seen.outputs.total, self.targets),
            by_outputs=by_outputs,
        )


def moments(state: TrainState, steps: int, probe: tuple[Tensor, Tensor]) -> Iterator[Moment]:
    """Yield the states of a stack after 0, 1, ... `steps` updates at the peak LR. `probe` are inputs and targets."""
    inputs, targets = probe
    watched = _Probe(state=state, inputs=inputs, targets=targets)
    for step in range(steps + 1):
        output, gradients = state.forward_backward(step)
        yield watched.look(step, gradients)
        if step < steps:
            state.update(output, gradients)
