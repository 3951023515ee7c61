"""One block of the MLP mixtures of a stack: activations, gate, products, forward, and backward by hand.

Letters: K trials, B samples, N width, E experts, H hidden features of an expert, C outputs, L blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.kernels.routing import choose_experts
from hpxfer.model.padded import WHOLE, padded
from hpxfer.spec import Activation

if TYPE_CHECKING:
    from hpxfer.model.mlp.stack import MLPStack


_aten: Any = torch.ops.aten


def activate(kind: Activation, x: Tensor) -> Tensor:
    """Return the activation of [K, ...]."""
    match kind:
        case "relu":
            return x.relu()
        case "gelu":
            return padded(F.gelu, x)
        case "tanh":
            return padded(torch.tanh, x)
        case _:
            return x


def activate_backward(kind: Activation, grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient by x of y = activation(x), given the one by y, whose memory it may take."""
    match kind:
        case "relu":
            return torch.where(x > 0, grad, 0.0)
        case "gelu":
            if grad[0].numel() % WHOLE == 0 and grad.is_contiguous() and x.is_contiguous():
                return _aten.gelu_backward.grad_input(grad, x, grad_input=grad)  # type: ignore[no-any-return]
            return padded(_aten.gelu_backward, grad, x)
        case "tanh":
            return grad.mul_(1 - y * y)
        case _:
            return grad


# The gate of the MLP mixture: from logits to the weights of the experts, and back.
#
# The active experts are constants in the backward pass: no gradient flows through the choice, and none to the logits of
# experts that were left out (Why Routers Freeze, eqs. 376, 377 and 385).
#
# Letters: K trials, B samples, E experts.


@dataclass(frozen=True, kw_only=True)
class Gated:
    """What a gate gives."""

    scores: Tensor  # [K, B, E] of all experts, by which a balancing rule chooses
    weights: Tensor  # [K, B, E], zero for those that are not active
    active: Tensor | None  # [K, B, E] bool; None where all experts are active
    load: Tensor  # [K, E] int64


def gate(
    kind: str, logits_KBE: Tensor, scale_K11: Tensor, num_active: int, bias_KE: Tensor | None, ties_K: Tensor | None
) -> Gated:
    """Return the weights of the experts. `scale` multiplies those of a gate that sums to one.

    `bias` is that of the rule that balances experts: the largest score + bias are chosen. Without one it is None, and
    the largest logits are chosen, as two large logits may have the same rounded score.
    """
    num_trials, batch, experts = logits_KBE.shape
    is_sigmoid = kind == "sigmoid"
    scores = padded(torch.sigmoid, logits_KBE) if is_sigmoid else logits_KBE.softmax(-1)
    if num_active == experts:
        weights = scores if is_sigmoid else scores * scale_K11
        load = torch.full((num_trials, experts), batch, dtype=torch.int64, device=logits_KBE.device)
        return Gated(scores=scores, weights=weights, active=None, load=load)
    by, bias_KE = (logits_KBE, torch.zeros_like(logits_KBE[:, 0])) if bias_KE is None else (scores, bias_KE)
    chosen = choose_experts(by, bias_KE, num_active, ties_K=ties_K)
    active = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, chosen, True)
    if kind == "normalized_softmax":
        weights = logits_KBE.masked_fill(~active, -torch.inf).softmax(-1) * scale_K11
    else:
        weights = torch.where(active, scores if is_sigmoid else scores * scale_K11, 0.0)
    return Gated(scores=scores, weights=weights, active=active, load=active.sum(1))


def gate_backward(kind: str, gated: Gated, scale_K11: Tensor, grad_KBE: Tensor) -> Tensor:
    """Return the gradient by the logits, given the one by the weights."""
    if gated.active is not None:
        grad_KBE = torch.where(gated.active, grad_KBE, 0.0)
    weights = gated.weights
    if kind == "sigmoid":
        return grad_KBE * weights * (1 - gated.scores)
    mean = (grad_KBE * weights).sum(-1, keepdim=True) / scale_K11
    if kind == "softmax" and gated.active is not None:  # normalized over all experts, of which some were left out
        return grad_KBE * weights - gated.scores * mean * scale_K11
    return weights * (grad_KBE - mean)


@dataclass(kw_only=True)
class Kept:
    """What the backward pass of a block needs."""

    h: Tensor  # [K, B, N], its input
    gated: Gated
    weights: Tensor  # [K, B, E, 1]: of the experts, times the factor of the branch
    z: Tensor  # [K, B, E*H] or, of experts with one matrix, [K, E, B, N]: before the activation
    a: Tensor  # after it
    weighted: Tensor | None  # [K, B, E*H], times the weights of the experts


@dataclass(kw_only=True)
class Local:
    """The parameters of one block."""

    router: Tensor
    expert_out: Tensor
    expert_in: Tensor | None = None
    router_logit_bias: Tensor | None = None


@dataclass
class Run:
    """One forward pass, and what it leaves for the backward pass and for the output."""

    model: MLPStack
    balance: Tensor
    noise: Tensor | None
    logits: list[Tensor] | None = None  # where they are asked for: [K, B, E] of every block, as its gate gets them
    blocks: list[Kept] = field(default_factory=list)
    inner: tuple[Tensor, ...] = ()  # the input layer before and after its activation
    last: Any = None  # [K, B, N], what the readout reads
    outputs: Any = None  # [K, B, C]
    kept: Any = None  # by the loss

    def local(self, weights: Mapping[str, tuple[Tensor, ...]], block: int) -> Local:
        of_blocks = ("router", "expert_in", "expert_out", "router_logit_bias")
        return Local(**{name: weights[name][block] for name in of_blocks if name in weights})

    def scale(self, role: str) -> Tensor:
        return self.model.forward[role].view(-1, 1, 1)

    def show(self, name: str, block: int, x: Tensor, y: Tensor) -> None:
        if self.model.tap is not None:
            self.model.tap(name, block, x.detach(), y.detach())


def route(run: Run, own: Local, block: int, h: Tensor) -> Gated:
    """Return what the gate of a block gives for its input [K, B, N]."""
    model, options = run.model, run.model.setting.mlp
    logits = product(h, own.router).mul_(run.scale("router"))
    run.show("router", block, h, logits)
    if own.router_logit_bias is not None:
        logits += own.router_logit_bias.unsqueeze(1)
    if run.noise is not None:
        logits += run.noise[block].unsqueeze(1)
    if run.logits is not None:
        run.logits.append(logits.clone())
    if options.inverse_temperature != 1.0:
        logits *= options.inverse_temperature
    ties = None if model.ties is None else model.ties[block]
    scale = model.route_scale.view(-1, 1, 1)
    bias = model.balancing(run.balance, block)
    return gate(model.setting.gate, logits, scale, model.shape.num_active, bias, ties)


def block_forward(run: Run, own: Local, block: int, h: Tensor) -> Tensor:
    """Return the output of a block [K, B, N], and remember what its backward pass needs."""
    options, gated = run.model.setting.mlp, route(run, own, block, h)
    weights = (gated.weights * run.scale("expert_out")).unsqueeze(-1)
    num_trials, width = len(h), h.shape[-1]
    if own.expert_in is None:
        z = _by_expert(h.unsqueeze(1).expand(-1, own.expert_out.shape[1], -1, -1), own.expert_out)  # [K, E, B, N]
        a = activate(options.activation, z)
        weighted = None
        out = (a * weights.transpose(1, 2)).sum(1)
    else:
        w2, w3 = own.expert_in.view(num_trials, -1, width), own.expert_out.view(num_trials, -1, width)
        z = product(h, w2.transpose(1, 2))
        run.show("expert_in", block, h, z)
        a = activate(options.activation, z)
        weighted = _weighted(a, weights)
        out = product(weighted, w3)
    run.show("expert_out", block, a, out)
    run.blocks.append(Kept(h=h, gated=gated, weights=weights, z=z, a=a, weighted=weighted))
    return out


def _by_expert(a_KEXY: Tensor, b_KEYZ: Tensor) -> Tensor:
    """Return a @ b of every expert of every trial, [K, E, X, Z]."""
    out = product(a_KEXY.flatten(0, 1), b_KEYZ.flatten(0, 1))
    return out.view(*a_KEXY.shape[:2], *out.shape[1:])


def _weighted(a_KBX: Tensor, weights_KBE1: Tensor) -> Tensor:
    """Return [K, B, E*H]: the features of every expert times its weight."""
    num_trials, batch, _ = a_KBX.shape
    return (a_KBX.view(num_trials, batch, weights_KBE1.shape[2], -1) * weights_KBE1).view(a_KBX.shape)


def block_backward(run: Run, own: Local, kept: Kept, by_out: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
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
        assert kept.weighted is not None
        out["expert_out"] = product(kept.weighted.transpose(1, 2), by_out)
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


# Matrix products of a stack, with the same bits in every stack.
#
# MKL chooses the code of a product by the addresses of the matrices and, in a stack of one, by whether the result is a
# vector. So factors are padded with zeros until every result has two rows and columns, and every trial's matrices begin
# at whole 16 bytes.

# Numbers of 16 bytes. Measured with torch 2.13 on a CPU with AVX512: no other address matters.
ALIGNED = 4
NARROW = 12  # columns, fewer than MKL computes at once


def product(a_KXY: Tensor, b_KYZ: Tensor) -> Tensor:
    """Return a @ b of every trial, [K, X, Z]."""
    rows, inner, columns = a_KXY.shape[1], a_KXY.shape[2], b_KYZ.shape[2]
    if rows == 1:
        return product(F.pad(a_KXY, (0, 0, 0, 1)), b_KYZ)[:, :1].contiguous()
    if missing := -inner % (ALIGNED // math.gcd(rows, ALIGNED)):
        a_KXY, b_KYZ = F.pad(a_KXY, (0, missing)), F.pad(b_KYZ, (0, 0, 0, missing))
    missing = -columns % max(2, ALIGNED // math.gcd(rows, inner + missing, ALIGNED))
    if missing:
        return _product(a_KXY, F.pad(b_KYZ, (0, missing)))[..., :columns].contiguous()
    return _product(a_KXY, b_KYZ)


def _product(a_KXY: Tensor, b_KYZ: Tensor) -> Tensor:
    """Return a @ b. A narrow result is the transpose of a wide one, which takes half the time."""
    if b_KYZ.shape[2] <= NARROW < a_KXY.shape[1]:
        return torch.bmm(b_KYZ.transpose(1, 2), a_KXY.transpose(1, 2)).transpose(1, 2).contiguous()
    return torch.bmm(a_KXY, b_KYZ)
