"""Stacks of the MLP mixture with random numbers, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hpxfer.model.flat import FlatLayout, Weights
from hpxfer.model.mlp.layout import FORWARD_ROLES, outputs_of, parameters
from hpxfer.model.mlp.stack import MLPStack
from hpxfer.model.output import Output
from hpxfer.scaling.shape import Shape
from hpxfer.spec.mlp import MLP
from hpxfer.trial import Setting

INPUTS = 11


def setting(
    *, gate: str = "sigmoid", classes: int = 7, targets: int = 0, batch: int = 50, inputs: int = INPUTS, **options: Any
) -> Setting:
    """Return a setting of the family. `options` are those of MLP."""
    return Setting(
        family="mlp",
        context=1,
        gate=gate,
        mlp=MLP(**options),
        data_source="unused",
        data_digest="unused",
        tokenizer="none",
        vocab_size=0 if targets else classes,
        num_inputs=inputs,
        num_targets=targets,
        batch_tokens=batch,
        validation_tokens=batch,
        steps=3,
        final_window_steps=1,
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """The parameters, numbers and batch of a stack. Letters: K trials, B samples, E experts, L blocks."""

    shape: Shape
    setting: Setting
    weights: Weights
    forward: dict[str, Tensor]  # role -> [K]
    route_scale: Tensor  # [K]
    noise_LKE: Tensor
    inputs: Tensor  # [K, B, D]
    targets: Tensor  # [K, B], or real numbers [K, B, C]

    @property
    def balance_LKE(self) -> Tensor:
        """What chooses the experts beside their scores: nothing."""
        return torch.zeros_like(self.noise_LKE)

    def rows(self, trials: Sequence[int]) -> Case:
        """Return the case of some of the trials, in a vector of its own."""
        rows = list(trials)
        layout = FlatLayout(parameters=parameters(self.shape, self.setting), num_trials=len(rows))
        flat = torch.empty(layout.numel, dtype=self.inputs.dtype)
        for name, copies in layout.weights(flat).items():
            for own, copy in zip(copies, self.weights[name], strict=True):
                own.copy_(copy.detach()[rows])
        return replace(
            self,
            weights=layout.leaves(flat),
            forward={role: factor[rows] for role, factor in self.forward.items()},
            route_scale=self.route_scale[rows],
            noise_LKE=self.noise_LKE[:, rows],
            inputs=self.inputs[rows],
            targets=self.targets[rows],
        )

    @property
    def leaves(self) -> list[Tensor]:
        return [copy for copies in self.weights.values() for copy in copies]

    def model(self) -> MLPStack:
        """Return the stack's model."""
        given = self.shape, self.setting, self.forward, self.route_scale
        return MLPStack(shape=given[0], setting=given[1], forward=given[2], route_scale=given[3], ties=None)

    def output(self) -> Output:
        """Return what the model gives on the batch."""
        return self.model()(self.weights, self.balance_LKE, self.inputs, self.targets, noise_LKE=self.noise_LKE)


def random_case(
    shape: Shape, given: Setting, num_trials: int, *, dtype: torch.dtype = torch.float32, std: float = 0.5
) -> Case:
    """Return a case with random parameters, factors and data. It is the same at every call."""
    generator = torch.Generator().manual_seed(1)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=dtype)

    def factor() -> Tensor:
        return torch.rand(num_trials, generator=generator, dtype=dtype) + 0.5

    layout = FlatLayout(parameters=parameters(shape, given), num_trials=num_trials)
    size = num_trials, given.batch_tokens
    targets = torch.randint(0, given.vocab_size or 1, size, generator=generator)
    return Case(
        shape=shape,
        setting=given,
        weights=layout.leaves(normal(layout.numel) * std),
        forward={role: factor() for role in FORWARD_ROLES},
        route_scale=factor() + 0.5,
        noise_LKE=normal(shape.depth, num_trials, shape.num_experts),
        inputs=normal(*size, given.num_inputs),
        targets=normal(*size, outputs_of(given)) if given.num_targets else targets,
    )
