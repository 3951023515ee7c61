"""The state of one stack in training, and the moves that it makes: one code path for training and for checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hpxfer.data import TokenData, open_data
from hpxfer.data.batches import Batch
from hpxfer.model.draws import draw, router_biases
from hpxfer.model.flat import Flat, Weights, gradients
from hpxfer.model.gpt import GPT, Output, gpt
from hpxfer.model.layout import moe_blocks, tensors
from hpxfer.model.linear import Tap
from hpxfer.stack import Stack
from hpxfer.train.optimizer import StackOptimizer


class State:
    """Parameters, model, optimizer and router biases of a stack, at the start of its training.

    `layout` says where the tensors lie in the vector `flat`; `weights` are its views as leaves of autograd, which show
    what is written to it. `roles` maps a tensor's name to its role.
    """

    def __init__(self, stack: Stack, device: torch.device, data: TokenData | None = None) -> None:
        self.stack, self.device, self.setting = stack, device, stack.setting
        self.num_trials = len(stack.trials)
        self.data = open_data(self.setting) if data is None else data
        self.layout = Flat(tensors=tensors(stack.shape, self.setting), num_trials=self.num_trials)
        self.roles = {tensor.name: tensor.role for tensor in self.layout.tensors}
        self.moe_blocks = moe_blocks(stack.shape, self.setting)
        self._resolved = [trial.resolved() for trial in stack.trials]
        self._structures = [trial.structure() for trial in stack.trials]
        self.flat = self.initial()
        self.weights: Weights = self.layout.leaves(self.flat)
        self.model: GPT = gpt(stack.trials, device)
        globals_ = [trial.globals() for trial in stack.trials]
        self.optimizer = StackOptimizer(
            self.layout, self.flat, self.setting.optimizer, [(one.beta1, one.beta2) for one in globals_], self._resolved
        )
        # [L, K, E] over the MoE layers; moved by the balancing rule at the rate of each trial.
        self.router_bias = torch.zeros(len(self.moe_blocks), self.num_trials, stack.shape.num_experts, device=device)
        rates = [one["router_bias"].lr if self.moe_blocks else 0.0 for one in self._resolved]
        self._bias_rate = torch.tensor(rates, device=device).view(1, -1, 1)
        self._grad_out = torch.full(
            (self.num_trials, self.setting.batch_tokens), 1.0 / self.setting.batch_tokens, device=device
        )

    def initial(self) -> Tensor:
        """Return the flat vector of initial parameters, drawn anew: the same bits every time."""
        stds = [{role: one.init_std for role, one in roles.items()} for roles in self._resolved]
        tied = [one.tied_experts for one in self._structures]
        return draw(self.layout, [trial.seed for trial in self.stack.trials], stds, tied).to(self.device)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets [K, B, S] of a step: each trial's own, by its seed."""
        by_seed = {seed: self.data.train_batch(seed, step) for seed in {trial.seed for trial in self.stack.trials}}
        return self.to_device([by_seed[trial.seed] for trial in self.stack.trials])

    def to_device(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Return one batch a trial as inputs and targets [K, B, S]."""
        inputs, targets = (torch.from_numpy(np.stack(one)) for one in zip(*batches, strict=True))
        return inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)

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
        return model(used, self.router_bias, inputs, targets, noise_LKE=self._noise(step), probe=probe)

    def forward_backward(self, step: int, *, probe: bool = False) -> tuple[Output, Weights]:
        """Return the output on the batch of a step, and the gradients of every trial's mean loss."""
        inputs, targets = self.batch(step)
        output = self.forward(inputs, targets, step, probe=probe)
        return output, gradients(output.losses_KT, self.weights, self._grad_out)

    def load(self, output: Output) -> Tensor:
        """Return the share [L, K, E] of the tokens that chose each expert."""
        return output.load_LKE.float() / self.setting.batch_tokens

    def update(self, output: Output, grads: Weights, factor: float = 1.0) -> None:
        """Take the optimizer's step at `factor` times the peak LR, then the step of the balancing rule.

        `grads` is used up: clipping scales it in place.
        """
        self.optimizer.step(grads, factor, self.setting.gradient_clip)
        # Loss-free balancing (2601.20205, section 3.1): the bias falls where the load is above kappa.
        self.router_bias -= self._bias_rate * (self.load(output) - self.stack.shape.kappa)

    def _noise(self, step: int) -> Tensor | None:
        """Return b_t [L, K, E] of the router-bias schedule, or None if no trial has one."""
        drawn = router_biases(
            [one.router_bias_std for one in self._structures],
            [trial.seed for trial in self.stack.trials],
            self.moe_blocks,
            self.stack.shape.num_experts,
            step,
        )
        return None if drawn is None else drawn.to(self.device)
