"""The MLP mixtures of a stack with their losses, and a backward pass by hand.

All experts of a block are computed for every sample, as one product: h W2^T with [experts * hidden, width], and
(phi * act) W3. Those that are not active have weight zero. Autograd would keep and pass several times as much.

Letters: K trials, B samples, D inputs, N width, E experts, H hidden features of an expert, C outputs, L blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.model.draws import tie_keys
from hpxfer.model.flat import Weights
from hpxfer.model.mlp.block import Run, activate, activate_backward, block_backward, block_forward, product, route
from hpxfer.model.mlp.layout import FORWARD_ROLES
from hpxfer.model.output import Output, Tap
from hpxfer.model.router_measures import RouterView
from hpxfer.scaling.shape import Shape
from hpxfer.spec import SampleLoss
from hpxfer.trial import Setting, Trial

# The losses of the MLP mixture, their gradients, and which classes a model takes a sample for.
#
# Letters: K trials, B samples, C classes or outputs.


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


@dataclass(frozen=True, kw_only=True)
class MLPStack:
    """The forward and backward pass of the trials of a stack, which share shape and setting."""

    shape: Shape
    setting: Setting
    forward: Mapping[str, Tensor]  # role -> [K] float32
    route_scale: Tensor  # [K] float32
    ties: Tensor | None  # [L, K] int32
    tap: Tap | None = None

    @torch.no_grad()
    def __call__(
        self,
        weights: Weights,
        router_bias_LKE: Tensor,
        inputs_KBS: Tensor,
        targets_KBS: Tensor,
        *,
        noise_LKE: Tensor | None = None,
    ) -> Output:
        """Return the losses [K, B] of samples [K, B, D] with classes [K, B] or real targets [K, B, C].

        Autograd does not differentiate them: `with_gradients` does.
        """
        run = Run(self, router_bias_LKE, noise_LKE)
        return _output(run, _forward(run, weights, inputs_KBS, targets_KBS), targets_KBS)

    @torch.no_grad()
    def with_gradients(
        self,
        weights: Weights,
        router_bias_LKE: Tensor,
        inputs_KBS: Tensor,
        targets_KBS: Tensor,
        grad_KB: Tensor,
        *,
        noise_LKE: Tensor | None = None,
    ) -> tuple[Output, Weights]:
        """Return the same output, and the gradients of sum(losses * grad) by the weights, without autograd."""
        run = Run(self, router_bias_LKE, noise_LKE)
        losses_KB = _forward(run, weights, inputs_KBS, targets_KBS)
        return _output(run, losses_KB, targets_KBS), _backward(run, weights, inputs_KBS, targets_KBS, grad_KB)

    @torch.no_grad()
    def router_views(
        self, weights: Weights, router_bias_LKE: Tensor, inputs_KBS: Tensor, *, noise_LKE: Tensor | None = None
    ) -> tuple[RouterView, ...]:
        """Return what the router of every block does on samples. The experts of the last block are not computed."""
        run = Run(self, router_bias_LKE, noise_LKE, logits=[])
        h, gated = _input(run, weights, inputs_KBS), []
        for block in range(self.shape.depth - 1):
            h = _through(run, weights, block, h)
            gated.append(run.blocks.pop().gated)  # and no more of what a backward pass needs
        last = self.shape.depth - 1
        gated.append(route(run, run.local(weights, last), last, h))
        scale = 1.0 if self.setting.gate == "sigmoid" else self.route_scale.double().view(-1, 1, 1)
        return tuple(
            RouterView(
                logits_KPE=logits,
                weights_KPE=each.weights.double() / scale,
                scores_KPE=each.scores,
                active_KPE=each.active,
                num_active=self.shape.num_active,
            )
            for logits, each in zip(run.logits or (), gated, strict=True)
        )

    def balancing(self, bias_LKE: Tensor, block: int) -> Tensor | None:
        """Return the bias [K, E] of the balancing rule of a block. It is None if there is no such rule."""
        return None if self.setting.balance.bias == "none" else bias_LKE[block]

    def with_tap(self, tap: Tap) -> MLPStack:
        """Return this model with a tap on its maps, by the names of its parameters."""
        return replace(self, tap=tap)

    def numbers(self) -> Mapping[str, Tensor]:
        """Return the numbers of the trials by name."""
        ties = {} if self.ties is None else {"ties": self.ties}
        return {**{f"forward/{role}": value for role, value in self.forward.items()}, "route": self.route_scale, **ties}


def build_mlp(trials: Sequence[Trial], device: torch.device) -> MLPStack:
    """Return the model of the trials' stack."""
    first = trials[0]
    shape, setting = first.shape, first.setting
    resolved = [trial.resolved() for trial in trials]
    # Tables average over the active experts. With a gate that sums to one the route scale undoes this.
    share = shape.num_active / shape.num_experts if setting.mlp.aggregation == "1/M" else 1.0
    factors = {
        role: torch.tensor(
            [numbers[role].forward * (share if role == "expert_out" else 1.0) for numbers in resolved], device=device
        )
        for role in FORWARD_ROLES
    }
    scales = torch.tensor([trial.globals().route_scale for trial in trials], device=device)
    ties = None
    if any(trial.setting.ties == "random" for trial in trials):
        by_index = torch.tensor([trial.setting.ties != "random" for trial in trials])
        keys = tie_keys([trial.seed for trial in trials], range(shape.depth))
        ties = keys.masked_fill(by_index, -1).to(device)
    return MLPStack(shape=shape, setting=setting, forward=factors, route_scale=scales, ties=ties)


def _output(run: Run, losses_KB: Tensor, targets: Tensor) -> Output:
    outputs = run.outputs  # not the run, which holds all that the backward pass needs
    return Output(
        losses_KT=losses_KB,
        load_LKE=torch.stack([block.gated.load for block in run.blocks]),
        scores=tuple(block.gated.scores for block in run.blocks),
        ranks=None if targets.is_floating_point() else lambda: ranks(outputs, targets),
    )


def _forward(run: Run, weights: Weights, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the losses [K, B], and leave in `run` what the backward pass needs."""
    h = _input(run, weights, inputs)
    for block in range(run.model.shape.depth):
        h = _through(run, weights, block, h)
    run.last = h
    run.outputs = product(h, weights["readout"][0]).mul_(run.scale("readout"))
    run.show("readout", 0, h, run.outputs)
    losses_KB, run.kept = losses(run.model.setting.mlp.loss, run.outputs, targets)
    return losses_KB


def _input(run: Run, weights: Weights, inputs: Tensor) -> Tensor:
    """Return what the input layer gives, [K, B, N]."""
    x = product(inputs, weights["input"][0]).mul_(run.scale("embedding"))
    h = activate(run.model.setting.mlp.input_activation, x)
    run.show("input", 0, inputs, x)
    run.inner = x, h
    return h


def _through(run: Run, weights: Weights, block: int, h: Tensor) -> Tensor:
    """Return what a block makes of its input."""
    out = block_forward(run, run.local(weights, block), block, h)
    return h + out if run.model.setting.mlp.residual else out


def _backward(run: Run, weights: Weights, inputs: Tensor, targets: Tensor, by_loss_KB: Tensor) -> Weights:
    """Return the gradients by the weights, given those by the losses. It uses up what `run` holds."""
    options = run.model.setting.mlp
    by_f = loss_backward(options.loss, run.kept, targets, by_loss_KB).mul_(run.scale("readout"))
    out: dict[str, list[Any]] = {name: [None] * len(copies) for name, copies in weights.items()}
    out["readout"][0] = product(run.last.transpose(1, 2), by_f)
    by_h = product(by_f, weights["readout"][0].transpose(1, 2))
    for block in reversed(range(run.model.shape.depth)):
        passed = by_h if options.residual else None
        by_h, of_block = block_backward(run, run.local(weights, block), run.blocks[block], by_h)
        if passed is not None:
            by_h += passed
        for name, gradient in of_block.items():
            out[name][block] = gradient
    by_x = activate_backward(options.input_activation, by_h, *run.inner).mul_(run.scale("embedding"))
    out["input"][0] = product(inputs.transpose(1, 2), by_x)
    return {name: tuple(copies) for name, copies in out.items()}
