"""A plain finite network, trained by autograd and SGD: the ground truth of the limits.

It is written from the papers alone, and takes no more than the words of the room: `Network` and `Given`. The
architecture is MSSP 1.2 (with one matrix, Def. 1 of Why Routers Freeze), and the table is B.1 under SGD (with one
matrix, Table 1). All draws are float64, and an axis of seeds leads every tensor. The residual network stands alone, at
the end of this file.

What it says is recorded (agreement.py), and any edit here lets all of it be trained again.

Letters of shapes: R seeds, N width, M experts, N_e hidden features, D inputs, C outputs, P samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hpxfer.limit import Given, Network
from hpxfer.limit.network import Role

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
    used: tuple[np.ndarray, ...]  # [R, P, M]

    @classmethod
    def joined(cls, runs: list[Run]) -> Run:
        return cls(
            {name: np.concatenate([run.numbers[name] for run in runs]) for name in runs[0].numbers},
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


SERIES = ("loss", "gate_mean", "gate_variance", "logit_mean", "logit_variance", "h1_rms", "h3_rms")


def numbers(loss: Tensor, phi: Tensor, psi: Tensor, h1: Tensor, h3: Tensor) -> tuple[Tensor, ...]:
    """The series of the room, by their definitions. The first axis of all stays: it is one of seeds, or of one."""
    rest = tuple(range(1, phi.ndim))
    phi_variance, psi_variance = (each.var(-1, correction=0).mean(rest[:-1]) for each in (phi, psi))
    sizes = (each.square().mean(rest).sqrt() for each in (h1, h3))
    return (loss, phi.mean(rest), phi_variance, psi.mean(rest), psi_variance, *sizes)


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
    records, used = [], []
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
        records.append([each.detach().numpy() for each in numbers(loss, now.phi, now.psi, now.h1, now.h3)])
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
    series = (np.stack(each, 1) for each in zip(*records, strict=True))
    return Run(dict(zip(SERIES, series, strict=True)), tuple(used))


def train_residual(network: Network, given: Given, width: int, seed: int) -> list[list[float]]:
    """Train one residual network, and return SERIES of every pass.

        h <- h + 1/(L K) sum_i phi_i W3_i act(W2_i h)        f = W4 h        b_i is drawn, and trained if it is learned

    Its numbers are those of the family `mlp` under `mup-iii` with bases of 1: W1 D^-1/2 and LR N, W2 N^-1/2 and LR M,
    W3 N_e^-1/2 and LR M, W4 1/N and LR 1/N, and a router that starts at zero with LR 1. Of fixed N_e there are 2 N^2
    experts, with W3 N^1/2 larger and the LRs of regime II.
    """
    n, fixed = width, network.expert_width
    m = 2 * n**2 if fixed else whole(network.experts_per_width * n)
    h, k, blocks = fixed or whole(network.expert_ratio * n), int(network.active_share * m), network.depth
    num_inputs, outputs = given.batches[0].inputs.shape[1], given.num_outputs
    generator = torch.Generator().manual_seed(seed)

    def normal(role: Role, *shape: int, std: float) -> Tensor:
        draw = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return draw.mul_(std * network.std(role)).requires_grad_()

    w: dict[Role, Tensor] = {
        "embedding": normal("embedding", n, num_inputs, std=num_inputs**-0.5),
        "router": normal("router", blocks, m, n, std=0.0),
        "router_bias": normal("router_bias", blocks, m, std=network.router_bias_std * (network.router_bias != "none")),
        "expert_in": normal("expert_in", blocks, m, h, n, std=n**-0.5),
        "expert_out": normal("expert_out", blocks, m, h, n, std=h**-0.5 * (n**0.5 if fixed else 1)),
        "readout": normal("readout", outputs, n, std=1 / n),
    }
    rates = {"embedding": n, "readout": 1 / n, "router_bias": float(network.router_bias == "learned")}
    many = {"router": m / n, "expert_in": m / n, "expert_out": m * n} if fixed else {"expert_in": m, "expert_out": m}
    rates |= {"router": 1} | many
    share = {"1/K": 1 / k, "1/M": 1 / m}[network.aggregation]
    out = []
    for t, batch in enumerate(given.batches):
        stream, seen = torch.from_numpy(batch.inputs) @ w["embedding"].mT, []
        for block in range(blocks):
            psi = stream @ w["router"][block].mT + w["router_bias"][block]
            phi = torch.sigmoid(network.inverse_temperature * psi)
            if k < m:
                phi = phi * torch.zeros_like(phi).scatter(1, psi.topk(k, dim=1).indices, 1.0)
            hidden = ACTIVATIONS[network.activation](torch.einsum("pn,ihn->pih", stream, w["expert_in"][block]))
            branch = share * torch.einsum("pih,ihn->pn", phi[..., None] * hidden, w["expert_out"][block])
            seen.append((phi, psi, stream, branch))
            stream = stream + branch / blocks
        loss = batch_loss(given, (stream @ w["readout"].mT)[None], batch.targets)
        in_blocks = (torch.stack(each)[None] for each in zip(*seen, strict=True))
        out.append([each.item() for each in numbers(loss, *in_blocks)])
        if t < given.num_updates:
            gradients = torch.autograd.grad(loss.sum(), list(w.values()))
            with torch.no_grad():
                for (role, tensor), gradient in zip(w.items(), gradients, strict=True):
                    tensor.sub_(gradient, alpha=given.lrs[t] * rates[role] * network.rate(role))
    return out


@dataclass(frozen=True)
class Estimate:
    mean: np.ndarray  # [T + 1]
    error: np.ndarray  # [T + 1], the standard error


def estimates(values: dict[str, np.ndarray]) -> dict[str, Estimate]:
    """Return the mean of every series over the first axis. Of an RMS it is the mean of its square.

    The square is what has a series in 1/n. Where the limit is zero, as of h3 under muP at first, the RMS has n^-1/2.
    """
    out = {}
    for name, value in values.items():
        each = value**2 if name.endswith("_rms") else value
        error = each.std(0, ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.zeros(each.shape[1:])
        out[name] = Estimate(each.mean(0), error)
    return out


def extrapolated(
    network: Network, given: Given, widths: Sequence[int], seeds: int, frozen: tuple[str, ...] = ()
) -> dict[str, Estimate]:
    """Return the series at infinite width, from networks of two widths of which one is twice the other.

    The mean of a number over networks of width n is limit + c / n + d / n^2 + ... Twice the mean at 2n less the mean
    at n holds no c. What is left of d is half of its effect at n, with the sign turned. Nothing is fitted.
    """
    small, large = (estimates(_series(network, given, width, seeds, frozen)) for width in widths)
    return {
        name: Estimate(2 * large[name].mean - few.mean, np.hypot(2 * large[name].error, few.error))
        for name, few in small.items()
    }


def _series(network: Network, given: Given, width: int, seeds: int, frozen: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return every series of networks of a width, [R, T + 1]."""
    if network.regime != "residual":
        return train(network, given, width, seeds=seeds, seed=width, frozen=frozen, chunk=50).numbers
    runs = np.array([train_residual(network, given, width, seed) for seed in range(seeds)])
    return dict(zip(SERIES, np.moveaxis(runs, 2, 0), strict=True))
