"""Stacks of the MLP mixture with random numbers, and one trial as the papers write it, for torch's own autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.model.flat import FlatLayout, Weights
from hpxfer.model.mlp.layout import FORWARD_ROLES, outputs_of, parameters
from hpxfer.model.mlp.stack import MLPStack
from hpxfer.model.output import Output
from hpxfer.scaling.shape import Shape
from hpxfer.spec.model_section import MLP
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
        return MLPStack(
            shape=self.shape, setting=self.setting, forward=self.forward, route_scale=self.route_scale, ties=None
        )

    def gradients(self, grad_KB: Tensor) -> tuple[Output, list[Tensor]]:
        """Return the output, and the gradients of sum(losses * grad) in the order of `leaves`."""
        given = self.weights, self.balance_LKE, self.inputs, self.targets, grad_KB
        output, found = self.model().with_gradients(*given, noise_LKE=self.noise_LKE)
        return output, [copy for name in self.weights for copy in found[name]]

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


FUNCTIONS = {"linear": lambda x: x, "relu": torch.relu, "gelu": F.gelu, "tanh": torch.tanh}


def plain_losses(case: Case, k: int) -> Tensor:
    """Return the losses [B] of trial `k`."""
    weights, options = case.weights, case.setting.mlp
    factor = {role: values[k] for role, values in case.forward.items()}
    act = FUNCTIONS[options.activation]
    h = FUNCTIONS[options.input_activation](factor["embedding"] * case.inputs[k] @ weights["input"][0][k])
    for block in range(case.shape.depth):
        logits = h @ weights["router"][block][k] * factor["router"] + case.noise_LKE[block, k]
        if "router_logit_bias" in weights:
            logits = logits + weights["router_logit_bias"][block][k]
        phi = gates(case, logits * options.inverse_temperature, case.route_scale[k])
        out = torch.zeros_like(h)
        for expert in range(case.shape.num_experts):
            inner = h
            if options.expert_matrices == 2:
                inner = act(h @ weights["expert_in"][block][k][expert].T)
            y = inner @ weights["expert_out"][block][k][expert]
            out = out + phi[:, expert : expert + 1] * (y if options.expert_matrices == 2 else act(y))
        out = out * factor["expert_out"]
        h = h + out if options.residual else out
    f = h @ weights["readout"][0][k] * factor["readout"]
    return sample_losses(options.loss, f, case.targets[k])


def gates(case: Case, logits: Tensor, scale: Tensor) -> Tensor:
    """Return the weights [B, E] of the experts, zero for those that are not active."""
    kind = case.setting.gate
    scores = logits.sigmoid() if kind == "sigmoid" else logits.softmax(-1)
    active = torch.zeros_like(scores).scatter(-1, scores.topk(case.shape.num_active, -1).indices, 1.0)
    if kind == "normalized_softmax":
        return scale * logits.masked_fill(active == 0, -torch.inf).softmax(-1)
    return scores * active * (1 if kind == "sigmoid" else scale)


def sample_losses(kind: str, f: Tensor, y: Tensor) -> Tensor:
    """Return the losses [B] of outputs [B, C]."""
    if kind == "cross_entropy":
        return F.cross_entropy(f, y, reduction="none")
    if y.is_floating_point():
        wanted = y
    elif f.shape[-1] == 1:
        wanted = torch.where(y == 0, 1.0, -1.0).unsqueeze(1)
    else:
        wanted = F.one_hot(y, f.shape[-1])
    return ((f - wanted) ** 2).sum(-1)
