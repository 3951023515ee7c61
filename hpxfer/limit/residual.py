"""The residual network (CompleteP for MoE, App. E, Fig. 18) where width and experts are infinite and alpha* is 0.

    h_0 = W1 x        h_l+1 = h_l + 1/(L K) sum_i phi_i W3_i act(W2_i h_l)        f = W4 h_L

alpha* is the limit of N / (M N_e L). Where it is 0, the experts add no Gaussian noise to the residual stream. The
stream stays in the span of the columns that W1 and w' = N W4' start with. These are D + C directions, orthonormal
where the width is infinite. So the limit is this network with a residual stream of r = D + C coordinates, and
infinitely many expert neurons. It has no memory of past passes, so that depth and number of updates are free.

The constants are those of Table B.1 of MSSP, regime III, under SGD. In each of the r directions a neuron reads by W2
with std 1, and writes by W3 with std iota^-1/2. With c = M/K under the aggregation 1/K, and 1 under 1/M:

    factor of the branch        c iota / L, times the average over experts and their neurons
    update of W2, W3            LR times c / L times the gradient of one neuron, without the factors of averages
    update of Q                 LR times c iota / (L kappa) times the gradient of one expert

With a fixed N_e the LRs are those of regime II, which is iota = N_e and kappa = 1 here. W3 starts with std
(N/N_e)^1/2, which grows with N as in the paper and needs M >> N. Under the table `mup-ii` itself it starts with
N_e^-1/2, which vanishes in the limit: `init_mult["expert_out"] = 0`.

The tables have no factor of depth in the LR of SGD. The blocks therefore learn less and less as L grows. LR
multipliers of L for router, expert_in and expert_out give the limit of infinite depth, an ordinary differential
equation over depth.

A router bias that is trained stays as it is: its LR is constant, and its gradient vanishes as 1/M.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from hpxfer.errors import HpxferError
from hpxfer.limit.layers import Gated, Pass, activate, coordinates, gate, rank, slope, top_share, train
from hpxfer.limit.matrix import MOST_DIMENSIONS, sobol_gaussians
from hpxfer.limit.network import Floats, Given, Network
from hpxfer.limit.refused import LEAST_ACTIVE


def passes(network: Network, given: Given, *, sites: int, seed: int) -> list[Pass]:
    """Return what is measured at every pass. Every block has `sites` neurons, of all of its experts together."""
    inputs = coordinates(given)
    num_inputs, directions = inputs[0].shape[1], _directions(network, given)
    split = sizes(network, directions, sites)
    draws = (draw(network, split, directions, np.random.default_rng([seed, index])) for index in range(network.depth))
    blocks = [Block(network, start) for start in draws]
    embedding = np.eye(directions, num_inputs) * network.std("embedding") / math.sqrt(given.batches[0].inputs.shape[1])
    readout = np.eye(directions, given.num_outputs, -num_inputs) * network.std("readout")

    def forward(at: int) -> tuple[Pass, Callable[[Floats, float], None]]:
        routed, c = [], inputs[at] @ embedding.T
        for block in blocks:
            routed.append(block.forward(c))
            c = routed[-1].out

        def update(by_f: Floats, lr: float) -> None:
            nonlocal embedding, readout
            by_c = by_f @ readout.T
            readout = readout - lr * network.rate("readout") * (c.T @ by_f)
            for block, of_block in zip(reversed(blocks), reversed(routed), strict=True):
                by_c = block.backward(of_block, by_c, lr)
            embedding = embedding - lr * network.rate("embedding") * (by_c.T @ inputs[at])

        return Pass(outputs=c @ readout, numbers=_measured(blocks, routed)), update

    return train(given, forward)


def _measured(blocks: Sequence[Block], routed: Sequence[Routed]) -> dict[str, float]:
    """Return what is measured at a pass: means over the blocks. The 1/L of the branch is not part of h3."""

    def moments(of_blocks: Iterable[Floats]) -> tuple[float, float]:
        """Return mean and variance over experts of numbers [P, E] of every block."""
        found = []
        for block, numbers in zip(blocks, of_blocks, strict=True):
            mean = numbers @ block.share
            variance = ((numbers - mean[:, None]) ** 2) @ block.share
            found.append((np.mean(mean), np.mean(variance)))
        mean, variance = np.mean(found, axis=0)
        return float(mean), float(variance)

    def rms(rows: Sequence[Floats]) -> float:
        """Return the root of the mean square over the infinitely many coordinates, samples and blocks."""
        return math.sqrt(float(np.mean([np.sum(each**2, axis=1) for each in rows])))

    gate_mean, gate_variance = moments(each.gated.phi for each in routed)
    logit_mean, logit_variance = moments(each.logits for each in routed)
    return {
        "gate_mean": gate_mean,
        "gate_variance": gate_variance,
        "logit_mean": logit_mean,
        "logit_variance": logit_variance,
        "h1_rms": rms([each.c for each in routed]),
        "h3_rms": len(blocks) * rms([each.out - each.c for each in routed]),
    }


def bytes_needed(network: Network, given: Given, sites: int) -> float:
    """Return about how much memory a solve takes: it grows with sites, directions and depth, and not with updates.

    Raise HpxferError if there are too few sites.
    """
    directions = _directions(network, given)
    num_experts = sizes(network, directions, sites).experts
    most = max(len(batch.inputs) for batch in given.batches)
    # Of every block how its neurons read and write, and of a pass logits, gates and gradients of every expert. The
    # draws of a block, which are sequences, Gaussians and their whitened copies, are there while it is made.
    blocks: float = network.depth * (2 * sites * directions + num_experts * (directions + 6 * most))
    needed: float = 8.0 * (blocks + 4 * sites * directions)
    return needed


def gaussians(network: Network, given: Given) -> int:
    """Return how many Gaussians the neurons of all blocks need, one neuron of each."""
    return 2 * network.depth * _directions(network, given)


def sites_needed(network: Network, given: Given, sites: int) -> int:
    """Return `sites`, or the next power of two that is enough for the directions of the stream."""
    return _least_sites(network, _directions(network, given), sites)


def _directions(network: Network, given: Given) -> int:
    """Return how many directions the stream has: of the inputs and, unless it starts at zero, of the readout."""
    return rank(given) + (given.num_outputs if network.std("readout") else 0)


# The experts of a block of the residual limit at the start: nodes for their biases, and samples of their neurons.
#
# A neuron j of expert i has two Gaussian vectors: how it reads the residual stream (W2) and how it writes to it (W3).
# The samples are scrambled Sobol points with all four combinations of signs. They are whitened, so that means and
# covariances are exact. The limit of linear experts then needs no sampling, apart from that of biases.
#
# Letters: E nodes of experts, J neurons of each, r directions of the residual stream.

SIGNS = ((1.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0))
# Sobol points per direction, at least: whitening then changes them little.
_LEAST_POINTS = 2
# Nodes of a quadrature over biases where beta times their std is 1. The error of 16 is below 1e-8. Of more than 256
# nodes, which are those of `MOST_SHARPNESS`, the weights overflow.
_QUADRATURE = 16


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How the sites of a block are split."""

    experts: int  # E
    neurons: int  # J
    points: int  # of the Sobol sequence
    dimensions: int  # of a point


@dataclass(frozen=True, kw_only=True, eq=False)
class Experts:
    """The experts of a block at the start."""

    share: Floats  # [E], of all experts; sums to one
    bias: Floats  # [E]
    reads: Floats  # [E, J, r], standard normal
    writes: Floats  # [E, J, r], standard normal


def sizes(network: Network, directions: int, sites: int) -> Sizes:
    """Return how `sites` is split. Raise HpxferError if there are too few, or too many random numbers per expert.

    Experts with infinitely many neurons differ in their bias alone. Some nodes stand for the biases, and the remaining
    factor of the sites is the neurons of each. Experts of N_e neurons are sampled as wholes.
    """
    split = _split(network, directions, sites)
    if split.dimensions > MOST_DIMENSIONS:
        raise HpxferError(
            f"expert_width: an expert must have at most {MOST_DIMENSIONS} random numbers, got {split.dimensions}: "
            f"{directions} directions for each of {network.expert_width} neurons to read and to write; take a smaller "
            "expert_width, or leave it out for infinitely many neurons"
        )
    if not _is_enough(network, split, directions):
        least = _least_sites(network, directions, 2 * sites)
        raise HpxferError(
            f"sites: must be at least {least}, so that {_LEAST_POINTS} points stand for each of the {directions} "
            f"directions of the residual stream and {LEAST_ACTIVE} for active experts, got {sites}"
        )
    return split


def _least_sites(network: Network, directions: int, start: int) -> int:
    """Return the least of `start` times a power of two that is enough for so many directions of the stream."""
    powers = (start << shift for shift in range(64))
    enough = (more for more in powers if _is_enough(network, _split(network, directions, more), directions))
    return next(enough, start << 64)


def _split(network: Network, directions: int, sites: int) -> Sizes:
    if (width := network.expert_width) is None:
        experts = num_nodes(network, sites)
        points = _power(sites // (experts * len(SIGNS)))
        return Sizes(experts=experts, neurons=len(SIGNS) * points, points=points, dimensions=2 * directions)
    points = _power(sites // (width * len(SIGNS)))
    return Sizes(experts=len(SIGNS) * points, neurons=width, points=points, dimensions=2 * directions * width + 1)


def _is_enough(network: Network, split: Sizes, directions: int) -> bool:
    active = network.active_share * split.experts
    return split.points >= _LEAST_POINTS * directions and (network.active_share == 1.0 or active >= LEAST_ACTIVE)


def num_nodes(network: Network, sites: int) -> int:
    """Return the nodes that stand for the biases of experts with infinitely many neurons."""
    if network.router_bias == "none":
        return 1
    if network.active_share < 1.0:
        return 1 << (sites.bit_length() + 2) // 2
    sharpness = network.inverse_temperature * network.router_bias_std
    return _QUADRATURE << max(0, round(sharpness) - 1).bit_length()


def draw(network: Network, split: Sizes, directions: int, rng: np.random.Generator) -> Experts:
    """Return the experts of one block."""
    if network.expert_width is None:
        share, bias = _nodes(network, split.experts, rng)
        points = (sobol_gaussians(split.points, split.dimensions, rng) for _ in range(split.experts))
        halves = (np.split(each, 2, axis=1) for each in points)
        neurons = [_signed(_white(reads), _white(writes)) for reads, writes in halves]
        return Experts(
            share=share,
            bias=bias,
            reads=np.stack([reads for reads, _ in neurons]),
            writes=np.stack([writes for _, writes in neurons]),
        )
    of_bias, of_neurons = np.split(sobol_gaussians(split.points, split.dimensions, rng), [1], axis=1)
    reads, writes = _signed(*np.split(of_neurons.reshape(split.points, 2 * split.neurons, directions), 2, axis=1))
    bias = np.tile(network.router_bias_std * of_bias[:, 0], len(SIGNS))
    return Experts(
        share=np.full(split.experts, 1 / split.experts),
        bias=bias if network.router_bias != "none" else np.zeros(split.experts),
        reads=np.stack([_white(reads[:, j]) for j in range(split.neurons)], axis=1),
        writes=np.stack([_white(writes[:, j]) for j in range(split.neurons)], axis=1),
    )


def _nodes(network: Network, count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return share and bias of every node: Gauss-Hermite or, of top-K, one draw per stratum."""
    if network.router_bias == "none":
        return np.ones(1), np.zeros(1)
    if network.active_share < 1.0:
        bias = ndtri((np.arange(count) + rng.uniform(1e-9, 1.0, count)) / count)
        return np.full(count, 1 / count), network.router_bias_std * bias
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return weights / weights.sum(), network.router_bias_std * nodes


def _signed(reads: Floats, writes: Floats) -> tuple[Floats, Floats]:
    """Return the points with every combination of signs, along the first axis."""
    return (
        np.concatenate([sign * reads for sign, _ in SIGNS]),
        np.concatenate([sign * writes for _, sign in SIGNS]),
    )


def _white(points: Floats) -> Floats:
    """Return points [n, r] with the covariance one, as the linear map that changes them least does it."""
    values, vectors = np.linalg.eigh(points.T @ points / len(points))
    white: Floats = points @ (vectors / np.sqrt(values)) @ vectors.T
    return white


def _power(number: int) -> int:
    """Return the largest power of two that is at most `number`, or 0."""
    return 1 << (number.bit_length() - 1) if number else 0


# A block of the residual limit: forward, backward by hand, and the update of its experts.
#
#     psi_i = Q_i c + b_i        phi_i = gate(beta psi_i)        c' = c + factor E_i[phi_i E_j[act(W2_ij c) W3_ij]]
#
# c has the coordinates of the residual stream in r orthonormal directions. A neuron reads them by W2_ij and writes them
# by W3_ij. E_i is the average over experts, and E_j over the neurons of an expert.
#
# Letters: E nodes of experts, J neurons of each, r directions, P samples.

# Numbers of an intermediate tensor that are computed at once: they stay in the cache of a core.
_AT_ONCE = 2**17


@dataclass(frozen=True, kw_only=True, eq=False)
class Routed:
    """What a block remembers of a forward pass."""

    c: Floats  # [P, r], its input
    logits: Floats  # [P, E]
    gated: Gated
    out: Floats  # [P, r]


class Block:
    """The parameters of a block: `router` [E, r], `reads` and `writes` [E J, r]. An update changes them in place."""

    def __init__(self, network: Network, start: Experts) -> None:
        iota = network.expert_ratio if network.expert_width is None else float(network.expert_width)
        kappa = network.experts_per_width if network.expert_width is None else 1.0
        each = network.times_experts / network.depth
        self._network, self._branch = network, each * iota
        # The LRs at a base LR of 1.
        self._router_lr = network.rate("router") * each * iota / kappa
        self._reads_lr, self._writes_lr = network.rate("expert_in") * each, network.rate("expert_out") * each
        self.share, self.bias = start.share, start.bias
        num_experts, self._num_neurons, directions = start.reads.shape
        self.router = np.zeros((num_experts, directions))
        self.reads = network.std("expert_in") * start.reads.reshape(-1, directions)
        self.writes = network.std("expert_out") / math.sqrt(iota) * start.writes.reshape(-1, directions)

    def forward(self, c: Floats) -> Routed:
        """Return what the block does with its input [P, r]."""
        logits = c @ self.router.T + self.bias
        gated = gate(self._network, logits, top_share(logits, self._network.active_share))
        added = np.zeros_like(c)
        for experts, rows in self._pieces(len(c)):
            a = activate(self._network.activation, self.reads[rows] @ c.T)
            added += _weighted(a, (gated.phi * self.share).T[experts]).T @ self.writes[rows]
        out = c + self._branch / self._num_neurons * added
        return Routed(c=c, logits=logits, gated=gated, out=out)

    def backward(self, routed: Routed, by_out: Floats, lr: float) -> Floats:
        """Return dL/dc [P, r] given that of the output, and update the block with a base LR."""
        c, phi = routed.c, routed.gated.phi.T
        by_phi = np.zeros_like(phi)  # [E, P], summed over neurons
        by_c = np.zeros_like(c)
        for experts, rows in self._pieces(len(c)):
            reads, writes = self.reads[rows], self.writes[rows]
            h = reads @ c.T
            a, u = activate(self._network.activation, h), writes @ by_out.T
            by_phi[experts] += (a * u).reshape(len(phi[experts]), -1, len(c)).sum(axis=1)
            by_h = _weighted(slope(self._network.activation, h) * u, phi[experts])
            by_c += _weighted(by_h, self.share[experts, None]).T @ reads
            self.reads[rows] = reads - lr * self._reads_lr * (by_h @ c)
            self.writes[rows] = writes - lr * self._writes_lr * (_weighted(a, phi[experts]) @ by_out)
        by_logits = routed.gated.by_logits(by_phi.T / self._num_neurons)
        by_c = by_c / self._num_neurons + (by_logits * self.share) @ self.router
        self.router -= lr * self._router_lr * (by_logits.T @ c)
        total: Floats = by_out + self._branch * by_c
        return total

    def _pieces(self, num_samples: int) -> Iterator[tuple[slice, slice]]:
        """Yield (experts, rows of their neurons): some whole experts, or a part of one."""
        num_rows = max(1, _AT_ONCE // num_samples)
        if num_rows < self._num_neurons:
            for expert in range(len(self.share)):
                start, end = expert * self._num_neurons, (expert + 1) * self._num_neurons
                for at in range(start, end, num_rows):
                    yield slice(expert, expert + 1), slice(at, min(at + num_rows, end))
            return
        step = num_rows // self._num_neurons
        for first in range(0, len(self.share), step):
            last = min(first + step, len(self.share))
            yield slice(first, last), slice(first * self._num_neurons, last * self._num_neurons)


def _weighted(numbers: Floats, weights: Floats) -> Floats:
    """Return numbers of neurons [rows, P] times those of their experts, [experts, P] or [experts, 1]."""
    by_expert = numbers.reshape(len(weights), -1, numbers.shape[1])
    return (by_expert * weights[:, None]).reshape(numbers.shape)
