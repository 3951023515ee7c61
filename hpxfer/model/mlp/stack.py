"""The MLP mixtures of a stack, with a backward pass by hand.

All experts of a block are computed for every sample, as one product: h W2^T with [experts * hidden, width], and
(phi * act) W3. Those that are not active have weight zero. Autograd would keep and pass several times as much.

Letters: K trials, B samples, D inputs, N width, E experts, H hidden features of an expert, C outputs, L blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hpxfer.model.draws import tie_keys
from hpxfer.model.flat import Weights
from hpxfer.model.mlp.elementwise import activate, activate_backward
from hpxfer.model.mlp.gate import Gated, gate, gate_backward
from hpxfer.model.mlp.loss import loss_backward, losses, ranks
from hpxfer.model.mlp.products import product
from hpxfer.model.output import Output, Tap
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting, Trial

FORWARD = ("embedding", "router", "expert_out", "readout")


@dataclass(frozen=True, kw_only=True)
class MLPStack:
    """The forward and backward pass of the trials of a stack, which share shape and setting."""

    shape: Shape
    setting: Setting
    forward: Mapping[str, Tensor]  # role -> [K] float32
    route_scale: Tensor  # [K] float32
    ties: Tensor | None  # [L, K] int32
    tap: Tap | None = None

    def __call__(
        self,
        weights: Weights,
        router_bias_LKE: Tensor,
        inputs_KBS: Tensor,
        targets_KBS: Tensor,
        *,
        noise_LKE: Tensor | None = None,
        load_LKE: Tensor | None = None,
        piece_K: Tensor | None = None,
    ) -> Output:
        """Return the losses [K, B] of samples [K, B, D] with classes [K, B] or real targets [K, B, C]."""
        names = tuple((name, len(copies)) for name, copies in weights.items())
        leaves = [copy for copies in weights.values() for copy in copies]
        run = _Run(self, names, router_bias_LKE, noise_LKE)
        losses_KB: Tensor = _Pass.apply(run, inputs_KBS, targets_KBS, *leaves)  # type: ignore[no-untyped-call]
        is_class = not targets_KBS.is_floating_point()
        return Output(
            losses_KT=losses_KB,
            load_LKE=torch.stack([block.gated.load for block in run.blocks]),
            scores=tuple(block.gated.scores for block in run.blocks),
            ranks=(lambda: ranks(run.outputs, targets_KBS)) if is_class else None,
        )

    def loads(
        self,
        weights: Weights,
        router_bias_LKE: Tensor,
        inputs_KBS: Tensor,
        *,
        noise_LKE: Tensor | None = None,
        piece_K: Tensor | None = None,
    ) -> Tensor:
        """Return the samples of every expert, [L, K, E] int64."""
        targets = torch.zeros(inputs_KBS.shape[:2], dtype=torch.int64, device=inputs_KBS.device)
        return self(weights, router_bias_LKE, inputs_KBS, targets, noise_LKE=noise_LKE).load_LKE

    def with_recomputation(self) -> MLPStack:
        """Return this model: its memory has no block to compute again, so nothing asks for it."""
        return self

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
        for role in FORWARD
    }
    scales = torch.tensor([trial.globals().route_scale for trial in trials], device=device)
    ties = None
    if any(trial.setting.ties == "random" for trial in trials):
        by_index = torch.tensor([trial.setting.ties != "random" for trial in trials])
        keys = tie_keys([trial.seed for trial in trials], range(shape.depth))
        ties = keys.masked_fill(by_index, -1).to(device)
    return MLPStack(shape=shape, setting=setting, forward=factors, route_scale=scales, ties=ties)


@dataclass(kw_only=True)
class _Block:
    """What the backward pass of a block needs."""

    h: Tensor  # [K, B, N], its input
    gated: Gated
    weights: Tensor  # [K, B, E, 1]: of the experts, times the factor of the branch
    z: Tensor  # [K, B, E*H] or, of experts with one matrix, [K, E, B, N]: before the activation
    a: Tensor  # after it


@dataclass(kw_only=True)
class _Local:
    """The parameters of one block."""

    router: Tensor
    expert_out: Tensor
    expert_in: Tensor | None = None
    router_logit_bias: Tensor | None = None


@dataclass
class _Run:
    """One forward pass, and what it leaves for the backward pass and for the output."""

    model: MLPStack
    names: tuple[tuple[str, int], ...]
    balance: Tensor
    noise: Tensor | None
    blocks: list[_Block] = field(default_factory=list)
    inner: tuple[Tensor, ...] = ()  # the input layer before and after its activation
    outputs: Any = None  # [K, B, C]
    kept: Any = None  # by the loss

    def named(self, leaves: Sequence[Tensor]) -> dict[str, tuple[Tensor, ...]]:
        parts = iter(leaves)
        return {name: tuple(next(parts) for _ in range(count)) for name, count in self.names}

    def local(self, weights: Mapping[str, tuple[Tensor, ...]], block: int) -> _Local:
        of_blocks = ("router", "expert_in", "expert_out", "router_logit_bias")
        return _Local(**{name: weights[name][block] for name in of_blocks if name in weights})

    def scale(self, role: str) -> Tensor:
        return self.model.forward[role].view(-1, 1, 1)

    def show(self, name: str, block: int, x: Tensor, y: Tensor) -> None:
        if self.model.tap is not None:
            self.model.tap(name, block, x.detach(), y.detach())


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, inputs: Tensor, targets: Tensor, *leaves: Tensor) -> Tensor:
        weights, options = run.named(leaves), run.model.setting.mlp
        x = product(inputs, weights["input"][0]).mul_(run.scale("embedding"))
        h = activate(options.input_activation, x)
        run.show("input", 0, inputs, x)
        run.inner = x, h
        for block in range(run.model.shape.depth):
            out = _block(run, run.local(weights, block), block, h)
            h = h + out if options.residual else out
        run.outputs = product(h, weights["readout"][0]).mul_(run.scale("readout"))
        run.show("readout", 0, h, run.outputs)
        losses_KB, run.kept = losses(options.loss, run.outputs, targets)
        ctx.run, ctx.last = run, h
        ctx.save_for_backward(inputs, targets, *leaves)
        return losses_KB

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        run: _Run = ctx.run
        inputs, targets, *leaves = ctx.saved_tensors
        weights, options = run.named(leaves), run.model.setting.mlp
        by_f = loss_backward(options.loss, run.kept, targets, grads[0]).mul_(run.scale("readout"))
        out: dict[str, list[Tensor | None]] = {name: [None] * count for name, count in run.names}
        out["readout"][0] = product(ctx.last.transpose(1, 2), by_f)
        by_h = product(by_f, weights["readout"][0].transpose(1, 2))
        for block in reversed(range(run.model.shape.depth)):
            passed = by_h if options.residual else None
            by_h, of_block = _block_backward(run, run.local(weights, block), run.blocks[block], by_h)
            if passed is not None:
                by_h += passed
            for name, gradient in of_block.items():
                out[name][block] = gradient
        by_x = activate_backward(options.input_activation, by_h, *run.inner).mul_(run.scale("embedding"))
        out["input"][0] = product(inputs.transpose(1, 2), by_x)
        return (None, None, None, *(gradient for copies in out.values() for gradient in copies))


def _block(run: _Run, own: _Local, block: int, h: Tensor) -> Tensor:
    """Return the output of a block [K, B, N], and remember what its backward pass needs."""
    model, options = run.model, run.model.setting.mlp
    logits = product(h, own.router).mul_(run.scale("router"))
    run.show("router", block, h, logits)
    if own.router_logit_bias is not None:
        logits += own.router_logit_bias.unsqueeze(1)
    if run.noise is not None:
        logits += run.noise[block].unsqueeze(1)
    if options.inverse_temperature != 1.0:
        logits *= options.inverse_temperature
    ties = None if model.ties is None else model.ties[block]
    scale = model.route_scale.view(-1, 1, 1)
    gated = gate(model.setting.gate, logits, scale, model.shape.num_active, run.balance[block], ties)
    weights = (gated.weights * run.scale("expert_out")).unsqueeze(-1)
    num_trials, width = len(h), h.shape[-1]
    if own.expert_in is None:
        z = _by_expert(h.unsqueeze(1).expand(-1, own.expert_out.shape[1], -1, -1), own.expert_out)  # [K, E, B, N]
        a = activate(options.activation, z)
        out = (a * weights.transpose(1, 2)).sum(1)
    else:
        w2, w3 = own.expert_in.view(num_trials, -1, width), own.expert_out.view(num_trials, -1, width)
        z = product(h, w2.transpose(1, 2))
        run.show("expert_in", block, h, z)
        a = activate(options.activation, z)
        out = product(_weighted(a, weights), w3)
    run.show("expert_out", block, a, out)
    run.blocks.append(_Block(h=h, gated=gated, weights=weights, z=z, a=a))
    return out


def _by_expert(a_KEXY: Tensor, b_KEYZ: Tensor) -> Tensor:
    """Return a @ b of every expert of every trial, [K, E, X, Z]."""
    out = product(a_KEXY.flatten(0, 1), b_KEYZ.flatten(0, 1))
    return out.view(*a_KEXY.shape[:2], *out.shape[1:])


def _weighted(a_KBX: Tensor, weights_KBE1: Tensor) -> Tensor:
    """Return [K, B, E*H]: the features of every expert times its weight."""
    num_trials, batch, _ = a_KBX.shape
    return (a_KBX.view(num_trials, batch, weights_KBE1.shape[2], -1) * weights_KBE1).view(a_KBX.shape)


def _block_backward(run: _Run, own: _Local, kept: _Block, by_out: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the gradient by the block's input, and those by its parameters."""
    model, options = run.model, run.model.setting.mlp
    num_trials, batch, width = by_out.shape
    experts = model.shape.num_experts
    out: dict[str, Tensor] = {}
    if own.expert_in is None:
        by_weight = (kept.a * by_out.unsqueeze(1)).sum(-1).transpose(1, 2)
        by_a = by_out.unsqueeze(1) * kept.weights.transpose(1, 2)
        by_z = activate_backward(options.activation, by_a, kept.z, kept.a)
        out["expert_out"] = _by_expert(kept.h.transpose(1, 2).unsqueeze(1).expand(-1, experts, -1, -1), by_z)
        by_h = _by_expert(by_z, own.expert_out.transpose(2, 3)).sum(1)
    else:
        w2, w3 = own.expert_in.view(num_trials, -1, width), own.expert_out.view(num_trials, -1, width)
        by_weighted = product(by_out, w3.transpose(1, 2))
        out["expert_out"] = product(_weighted(kept.a, kept.weights).transpose(1, 2), by_out)
        by_weight = (by_weighted * kept.a).view(num_trials, batch, experts, -1).sum(-1)
        by_a = by_weighted.view(num_trials, batch, experts, -1).mul_(kept.weights).view(by_weighted.shape)
        by_z = activate_backward(options.activation, by_a, kept.z, kept.a)
        out["expert_in"] = product(by_z.transpose(1, 2), kept.h).view(own.expert_in.shape)
        by_h = product(by_z, w2)
    by_gate = by_weight * run.scale("expert_out")
    by_logits = gate_backward(model.setting.gate, kept.gated, model.route_scale.view(-1, 1, 1), by_gate)
    if options.inverse_temperature != 1.0:
        by_logits = by_logits * options.inverse_temperature
    if own.router_logit_bias is not None:
        out["router_logit_bias"] = by_logits.sum(1)
    by_product = by_logits * run.scale("router")
    out["router"] = product(kept.h.transpose(1, 2), by_product)
    by_h += product(by_product, own.router.transpose(1, 2))
    out["expert_out"] = out["expert_out"].view(own.expert_out.shape)
    return by_h, out
