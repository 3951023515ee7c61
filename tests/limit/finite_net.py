"""A plain finite network, trained by autograd and SGD: the ground truth of the limits.

It is written from the papers alone, and takes no more than the words of the room: `Network` and `Given`. The
architecture is MSSP 1.2 (with one matrix, Def. 1 of Why Routers Freeze), and the table is B.1 under SGD (with one
matrix, Table 1). All draws are float64, and an axis of seeds leads every tensor.

Letters of shapes: R seeds, N width, M experts, N_e hidden features, D inputs, C outputs, P samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hpxfer.limit import Given, Network

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": torch.relu,
    "gelu": F.gelu,
    "tanh": torch.tanh,
}
Weights = dict[str, Tensor]
# Weights of the networks that are trained together: few enough for a cache, and no fresh pages for every update.
TOGETHER = 2**21


@dataclass(frozen=True)
class Size:
    """The counts of one finite network."""

    width: int
    experts: int
    active: int
    hidden: int

    @classmethod
    def of(cls, network: Network, width: int) -> Size:
        """Return the counts that a network's ratios give at a width. Every one must be a whole number."""
        if network.regime == "I":
            experts = network.num_experts
            assert experts is not None
            hidden = whole(network.expert_ratio * width)
            return cls(width, experts, network.num_active or experts, hidden)
        experts = whole(network.experts_per_width * width)
        hidden = network.expert_width if network.regime == "II" else whole(network.expert_ratio * width)
        assert hidden is not None
        return cls(width, experts, whole(network.active_share * experts), hidden)


def whole(count: float) -> int:
    assert abs(count - round(count)) < 1e-9, count
    return round(count)


@dataclass(frozen=True)
class Run:
    """What the seeds of one width gave, per pass."""

    numbers: dict[str, np.ndarray]  # [R, T + 1]
    outputs: tuple[np.ndarray, ...]  # [R, P, C]
    used: tuple[np.ndarray, ...]  # [R, P, M]

    @classmethod
    def joined(cls, runs: list[Run]) -> Run:
        return cls(
            {name: np.concatenate([run.numbers[name] for run in runs]) for name in runs[0].numbers},
            tuple(np.concatenate(parts) for parts in zip(*(run.outputs for run in runs), strict=True)),
            tuple(np.concatenate(parts) for parts in zip(*(run.used for run in runs), strict=True)),
        )


def initial_stds(network: Network, size: Size, num_inputs: int) -> dict[str, float]:
    """Table B.1, init. Regimes II and III share the router's, and MSSP alone changes II's down projection."""
    n, mssp = size.width, network.parameterization == "mssp"
    out = {"embedding": num_inputs**-0.5, "readout": 1 / n, "expert_in": n**-0.5, "expert_out": size.hidden**-0.5}
    if network.regime == "I":
        out["router"] = 0.0 if mssp else 1 / n
        if network.expert_matrices == 1:
            out["expert_out"] = n**-0.5
    else:
        out["router"] = n**-0.5
        if network.regime == "II" and mssp:
            out["expert_out"] = math.sqrt(size.experts / size.hidden)
    return {role: std * network.std(role) for role, std in out.items()}


def sgd_rates(network: Network, size: Size) -> dict[str, float]:
    """Table B.1, LR of SGD. A router bias that is learned has the LR itself (Why Routers Freeze, eq. 161)."""
    n, m = size.width, size.experts
    out = {"embedding": n, "readout": 1 / n, "router_bias": 1.0}
    out |= {
        "I": {"router": 1 / n, "expert_in": 1.0, "expert_out": 1.0},
        "II": {"router": m / n, "expert_in": m / n, "expert_out": m * n},
        "III": {"router": 1.0, "expert_in": m, "expert_out": m},
    }[network.regime]
    return {role: rate * network.rate(role) for role, rate in out.items()}


def drawn(network: Network, size: Size, *, seeds: int, inputs: int, outputs: int, seed: int) -> Weights:
    """Return the initial weights, with one expert where all start from the same draw: in regime III of MSSP."""
    generator = torch.Generator().manual_seed(seed)
    n, m, h = size.width, size.experts, size.hidden
    shapes = {"embedding": (n, inputs), "router": (m, n), "readout": (outputs, n)}
    shapes |= (
        {"expert_out": (m, n, n)} if network.expert_matrices == 1 else {"expert_in": (m, h, n), "expert_out": (m, n, h)}
    )
    tied = network.regime == "III" and network.parameterization == "mssp"
    std = initial_stds(network, size, inputs)
    weights = {}
    for role, shape in shapes.items():
        one = tied and role in ("expert_in", "expert_out")
        draw = torch.randn((seeds, *((1, *shape[1:]) if one else shape)), generator=generator, dtype=torch.float64)
        weights[role] = draw.mul_(std[role])
    return weights


def started(network: Network, size: Size, draws: Weights) -> Weights:
    """Return weights to train. The down projection is [R, M, N_e, N] in them, so that its sum needs no copy."""
    weights = {}
    for role, draw in draws.items():
        if role in ("expert_in", "expert_out"):
            draw = draw.expand(-1, size.experts, -1, -1)
        down = role == "expert_out" and network.expert_matrices == 2
        weights[role] = (draw.mT if down else draw).clone(memory_format=torch.contiguous_format)
    return weights


def chosen(psi: Tensor, size: Size, imposed: Tensor | None) -> Tensor:
    """Return which experts are used, [R, P, M]: those imposed, or those with the K largest logits."""
    if imposed is not None:
        return imposed.expand_as(psi)
    if size.active == size.experts:
        return torch.ones_like(psi, dtype=torch.bool)
    best = psi.detach().topk(size.active, dim=-1).indices
    return torch.zeros_like(psi, dtype=torch.bool).scatter(-1, best, True)


def gate(name: str, logits: Tensor, used: Tensor) -> Tensor:
    if name == "sigmoid":
        return torch.sigmoid(logits) * used
    if name == "softmax":
        return torch.softmax(logits, -1) * used
    assert name == "normalized_softmax"
    return torch.softmax(logits.masked_fill(~used, -math.inf), -1)


@dataclass(frozen=True)
class Forward:
    outputs: Tensor  # [R, P, C]
    psi: Tensor  # [R, P, M]
    phi: Tensor  # [R, P, M]
    used: Tensor  # [R, P, M]
    h1: Tensor  # [R, P, N]
    h3: Tensor  # [R, P, N]


def forward(
    network: Network, size: Size, w: Weights, x: Tensor, bias: Tensor | None, imposed: Tensor | None
) -> Forward:
    """The definition, term by term. x [P, D], bias [R, M], imposed [P, M]."""
    h1 = ACTIVATIONS[network.input_activation](x @ w["embedding"].mT)
    psi = h1 @ w["router"].mT
    if bias is not None:
        psi = psi + bias[:, None, :]
    used = chosen(psi, size, imposed)
    phi = gate(network.gate, network.inverse_temperature * psi, used)
    act = ACTIVATIONS[network.activation]
    seeds, samples = len(h1), len(x)
    if network.expert_matrices == 1:
        each = act(torch.einsum("rmna,rpa->rpmn", w["expert_out"], h1))
        total = torch.einsum("rpm,rpmn->rpn", phi, each)
    else:
        h2 = (h1 @ w["expert_in"].flatten(1, 2).mT).unflatten(-1, (size.experts, size.hidden))
        features = (phi[..., None] * act(h2)).reshape(seeds, samples, -1)
        # sum over i and j of W3_i[n, j] phi_i act(h2_ij), as one product
        total = features @ w["expert_out"].flatten(1, 2)
    share = {"1/K": 1 / size.active, "1/M": 1 / size.experts, "none": 1.0}[network.aggregation]
    h3 = share * total
    return Forward(h3 @ w["readout"].mT, psi, phi, used, h1, h3)


def batch_loss(given: Given, outputs: Tensor, targets: np.ndarray) -> Tensor:
    """Return the mean loss of the batch, [R]."""
    if given.loss == "cross_entropy":
        classes = torch.from_numpy(targets).expand(len(outputs), -1)
        return F.cross_entropy(outputs.mT, classes, reduction="none").mean(-1)
    return (outputs - torch.from_numpy(targets)).square().sum(-1).mean(-1)


def measured(now: Forward, loss: Tensor) -> dict[str, np.ndarray]:
    """The series of the room, by their definitions."""
    out = {
        "loss": loss,
        "gate_mean": now.phi.mean((1, 2)),
        "gate_variance": now.phi.var(-1, correction=0).mean(-1),
        "logit_mean": now.psi.mean((1, 2)),
        "logit_variance": now.psi.var(-1, correction=0).mean(-1),
        "h1_rms": now.h1.square().mean((1, 2)).sqrt(),
        "h3_rms": now.h3.square().mean((1, 2)).sqrt(),
    }
    return {name: value.detach().numpy() for name, value in out.items()}


def train(
    network: Network,
    given: Given,
    width: int,
    *,
    seeds: int,
    seed: int = 0,
    frozen: tuple[str, ...] = (),
    chunk: int = 0,
) -> Run:
    """Train `seeds` networks of a width. `frozen` names roles that get no update: a planted error."""
    size = Size.of(network, width)
    if chunk and seeds > chunk:
        parts = [min(chunk, seeds - start) for start in range(0, seeds, chunk)]
        return Run.joined([
            train(network, given, width, seeds=part, seed=seed + 1000 * (k + 1), frozen=frozen)
            for k, part in enumerate(parts)
        ])  # fmt: skip
    inputs = given.batches[0].inputs.shape[1]
    draws = drawn(network, size, seeds=seeds, inputs=inputs, outputs=given.num_outputs, seed=seed)
    together = max(1, TOGETHER // (size.width * size.experts * size.hidden * network.expert_matrices))
    return Run.joined([
        trained(network, given, size, {role: draw[at : at + together] for role, draw in draws.items()}, frozen)
        for at in range(0, seeds, together)
    ])  # fmt: skip


def trained(network: Network, given: Given, size: Size, draws: Weights, frozen: tuple[str, ...]) -> Run:
    """Train networks from their draws."""
    seeds = len(draws["readout"])
    rates = sgd_rates(network, size)
    weights = started(network, size, draws)
    learned = network.router_bias == "learned"
    bias = None if given.router_bias is None else torch.from_numpy(given.router_bias[0]).repeat(seeds, 1)
    records, outputs, used = [], [], []
    for t, batch in enumerate(given.batches):
        if given.router_bias is not None and not learned:
            bias = torch.from_numpy(given.router_bias[t]).repeat(seeds, 1)
        imposed = None if given.active is None else torch.from_numpy(given.active[t])
        for parameter in weights.values():
            parameter.requires_grad_(True)
        if learned:
            assert bias is not None
            bias.requires_grad_(True)
        now = forward(network, size, weights, torch.from_numpy(batch.inputs), bias, imposed)
        loss = batch_loss(given, now.outputs, batch.targets)
        records.append(measured(now, loss))
        outputs.append(now.outputs.detach().numpy())
        used.append(now.used.numpy())
        if t == given.num_updates:
            break
        leaves = weights | ({"router_bias": bias} if learned and bias is not None else {})
        # The seeds share nothing, so that the gradient of their sum holds the gradient of each.
        gradients = torch.autograd.grad(loss.sum(), list(leaves.values()))
        with torch.no_grad():
            for (role, parameter), gradient in zip(leaves.items(), gradients, strict=True):
                if role not in frozen:
                    parameter.sub_(gradient, alpha=given.lrs[t] * rates[role])
    series = {name: np.stack([record[name] for record in records], 1) for name in records[0]}
    return Run(series, tuple(outputs), tuple(used))
