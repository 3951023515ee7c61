"""The state of one stack in training, and the moves that it makes: one code path for training and for checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hpxfer.data import TokenData, open_data
from hpxfer.data.batches import Batch
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.model.draws import draw
from hpxfer.model.flat import Flat, Weights, gradients
from hpxfer.model.gpt import GPT, Output, gpt
from hpxfer.model.layout import moe_blocks, tensors
from hpxfer.model.linear import Tap
from hpxfer.stack import Stack
from hpxfer.train.feed import Feed
from hpxfer.train.optimizer import StackOptimizer
from hpxfer.train.snapshot import Snapshot, keep, keep_flat


class State:
    """Parameters, model, optimizer and router biases of a stack, at the start of its training.

    `layout` says where the tensors lie in the vector `flat`; `weights` are its views as leaves of autograd, which show
    what is written to it. `roles` maps a tensor's name to its role. All that differs between the stacks of one shape,
    setting and size is written into tensors that stay where they are (`take`, `start`).
    """

    def __init__(
        self,
        stack: Stack,
        device: torch.device,
        data: TokenData | None = None,
        *,
        backend: Backend = TORCH,
        compiled: bool = False,
        start: bool = True,
    ) -> None:
        self.device, self.setting, self.backend = device, stack.setting, backend
        self.num_trials = len(stack.trials)
        self.data = open_data(self.setting) if data is None else data
        self.layout = Flat(tensors=tensors(stack.shape, self.setting), num_trials=self.num_trials)
        self.roles = {tensor.name: tensor.role for tensor in self.layout.tensors}
        self.moe_blocks = moe_blocks(stack.shape, self.setting)
        self.flat = torch.empty(self.layout.numel, device=device)
        self.weights: Weights = self.layout.leaves(self.flat)
        self.model: GPT = gpt(stack.trials, device, backend)
        self._forward: Any = torch.compile(self.model.__call__, dynamic=False) if compiled else self.model
        self.optimizer = StackOptimizer(self.layout, self.flat, self.setting.optimizer, backend)
        # [L, K, E] over the MoE layers; moved by the balancing rule at the rate of each trial.
        self.router_bias = torch.zeros(len(self.moe_blocks), self.num_trials, stack.shape.num_experts, device=device)
        self._bias_rate = torch.zeros(1, self.num_trials, 1, device=device)
        self._grad_out = torch.full(
            (self.num_trials, self.setting.batch_tokens), 1.0 / self.setting.batch_tokens, device=device
        )
        self.take(stack)
        if start:
            self.start()

    def take(self, stack: Stack) -> None:
        """Make this the state of another stack of the same shape, setting and size. Parameters stay as they are."""
        self.stack = stack
        _refill(self.model, gpt(stack.trials, self.device, self.backend))
        self._resolved = [trial.resolved() for trial in stack.trials]
        globals_ = [trial.globals() for trial in stack.trials]
        self.optimizer.take([(one.beta1, one.beta2) for one in globals_], self._resolved)
        rates = [one["router_bias"].lr if self.moe_blocks else 0.0 for one in self._resolved]
        self._bias_rate.copy_(torch.tensor(rates).view(1, -1, 1))
        self._feed = Feed(self.data, stack.trials, self.device, self.moe_blocks)

    def start(self) -> None:
        """Go to the start of the training: parameters drawn, moments, router biases and counters at zero."""
        self.zero()
        self.flat.copy_(self.initial())

    def zero(self) -> None:
        """Set all that training moves to zero."""
        self.flat.zero_()
        self.router_bias.zero_()
        self.optimizer.start()

    def follow(self, other: Snapshot, kept: Sequence[int]) -> None:
        """Go on where `other` stands, with those of its trials that are kept: they are those of this stack."""
        keep_flat(other.layout, other.parameters, self.layout, self.flat, kept)
        self.optimizer.follow(other, kept)
        keep(other.router_bias, 1, kept, self.router_bias)

    def initial(self) -> Tensor:
        """Return the flat vector of initial parameters, drawn anew: the same bits every time."""
        stds = [{role: one.init_std for role, one in roles.items()} for roles in self._resolved]
        tied = [trial.structure().tied_experts for trial in self.stack.trials]
        return draw(self.layout, [trial.seed for trial in self.stack.trials], stds, tied).to(self.device)

    @property
    def has_noise(self) -> bool:
        """Whether a trial has a router-bias schedule."""
        return self._feed.has_noise

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets [K, B, S] of a step: each trial's own, by its seed."""
        return self._feed.batch(step)

    def noise(self, step: int) -> Tensor | None:
        """Return b_t [L, K, E] of the router-bias schedule, or None if no trial has one."""
        return self._feed.noise(step)

    def for_all(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return one batch as inputs and targets [K, B, S], the same for every trial."""
        inputs, targets = (torch.from_numpy(one).to(self.device) for one in batch)
        size = (self.num_trials, -1, -1)
        return inputs.expand(size).contiguous(), targets.expand(size).contiguous()

    def forward(
        self,
        inputs: Tensor,
        targets: Tensor,
        step: int,
        *,
        weights: Weights | None = None,
        probe: bool = False,
        tap: Tap | None = None,
    ) -> Output:
        """Return the model's output on a batch, with the router biases that the schedule has at `step`.

        `weights` stand in for the state's own, `tap` listens (see `GPT`). Evaluation is at step = steps.
        """
        model = self.model if tap is None else dataclasses.replace(self.model, tap=tap)
        used = self.weights if weights is None else weights
        return model(used, self.router_bias, inputs, targets, noise_LKE=self.noise(step), probe=probe)

    def forward_backward(self, step: int, *, probe: bool = False) -> tuple[Output, Weights]:
        """Return the output on the batch of a step, and the gradients of every trial's mean loss."""
        inputs, targets = self.batch(step)
        return self.gradients(inputs, targets, self.noise(step), probe=probe)

    def gradients(
        self, inputs: Tensor, targets: Tensor, noise: Tensor | None, *, probe: bool = False
    ) -> tuple[Output, Weights]:
        """Return the same of a batch and of router noise."""
        output: Output = self._forward(self.weights, self.router_bias, inputs, targets, noise_LKE=noise, probe=probe)
        return output, gradients(output.losses_KT, self.weights, self._grad_out)

    def load(self, output: Output) -> Tensor:
        """Return the share [L, K, E] of the tokens that chose each expert."""
        return output.load_LKE.float() / self.setting.batch_tokens

    def update(self, output: Output, grads: Weights, factor: float | Tensor = 1.0) -> None:
        """Take the optimizer's step at `factor` times the peak LR, then the step of the balancing rule.

        `grads` is used up: clipping scales it in place.
        """
        self.optimizer.step(grads, factor, self.setting.gradient_clip)
        # Loss-free balancing (2601.20205, section 3.1): the bias falls where the load is above kappa.
        self.router_bias -= self._bias_rate * (self.load(output) - self.stack.shape.kappa)


def _refill(model: GPT, fresh: GPT) -> None:
    """Copy the numbers of `fresh` into the tensors of `model`: what was compiled or captured for it goes on."""
    for field in dataclasses.fields(model):
        mine, new = getattr(model, field.name), getattr(fresh, field.name)
        pairs = [(mine[key], new[key]) for key in mine] if isinstance(mine, Mapping) else [(mine, new)]
        for old, value in pairs:
            if isinstance(old, Tensor):
                old.copy_(value)
