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
from collections.abc import Sequence

import numpy as np

from hpxfer.limit.given import Batch, Floats, Given
from hpxfer.limit.layers import coordinates, rank
from hpxfer.limit.losses import by_outputs, loss
from hpxfer.limit.network import Network
from hpxfer.limit.outcome import Pass
from hpxfer.limit.residual_block import Block, Constants, Routed
from hpxfer.limit.residual_draws import draw, least_sites, sizes


def passes(network: Network, given: Given, *, sites: int, seed: int) -> list[Pass]:
    """Return what is measured at every pass. Every block has `sites` neurons, of all of its experts together."""
    inputs = coordinates(given)
    num_inputs = inputs[0].shape[1]
    directions = _directions(network, given)
    blocks = _blocks(network, directions, sites, seed)
    embedding = np.eye(directions, num_inputs) * network.std("embedding") / math.sqrt(given.batches[0].inputs.shape[1])
    readout = np.eye(directions, given.num_outputs, -num_inputs) * network.std("readout")
    out = []
    for at, (x, batch) in enumerate(zip(inputs, given.batches, strict=True)):
        routed, c = [], x @ embedding.T
        for block in blocks:
            routed.append(block.forward(c))
            c = routed[-1].out
        f = c @ readout
        out.append(_measured(network, given, batch, f, blocks, routed))
        if at == given.num_updates:
            break
        lr, by_f = given.lrs[at], by_outputs(given.loss, f, batch.targets)
        by_c = by_f @ readout.T
        readout = readout - lr * network.rate("readout") * (c.T @ by_f)
        for block, of_block in zip(reversed(blocks), reversed(routed), strict=True):
            by_c = block.backward(of_block, by_c, lr)
        embedding = embedding - lr * network.rate("embedding") * (by_c.T @ x)
    return out


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
    return least_sites(network, _directions(network, given), sites)


def _directions(network: Network, given: Given) -> int:
    """Return how many directions the residual stream has: those of the inputs and, unless it starts at zero, of the
    readout.
    """
    return rank(given) + (given.num_outputs if network.std("readout") else 0)


def constants(network: Network) -> Constants:
    """Return the factors of a block."""
    iota = network.expert_ratio if network.expert_width is None else float(network.expert_width)
    kappa = network.experts_per_width if network.expert_width is None else 1.0
    each = network.times_experts / network.depth
    return Constants(
        branch=each * iota,
        router=network.rate("router") * each * iota / kappa,
        reads=network.rate("expert_in") * each,
        writes=network.rate("expert_out") * each,
        writes_std=network.std("expert_out") / math.sqrt(iota),
    )


def _blocks(network: Network, directions: int, sites: int, seed: int) -> list[Block]:
    """Return the blocks at the start, each with draws of its own."""
    split, factors = sizes(network, directions, sites), constants(network)
    draws = (draw(network, split, directions, np.random.default_rng([seed, index])) for index in range(network.depth))
    return [Block(network, factors, start) for start in draws]


def _measured(
    network: Network, given: Given, batch: Batch, f: Floats, blocks: Sequence[Block], routed: Sequence[Routed]
) -> Pass:
    """Return what is measured at a pass: means over the blocks. The 1/L of the branch is not part of h3."""
    of_gates = [_moments(block.share, each.gated.phi) for block, each in zip(blocks, routed, strict=True)]
    of_logits = [_moments(block.share, each.logits) for block, each in zip(blocks, routed, strict=True)]
    (gate_mean, gate_variance), (logit_mean, logit_variance) = np.mean(of_gates, axis=0), np.mean(of_logits, axis=0)
    return Pass(
        outputs=f,
        numbers={
            "loss": loss(given.loss, f, batch.targets),
            "gate_mean": float(gate_mean),
            "gate_variance": float(gate_variance),
            "logit_mean": float(logit_mean),
            "logit_variance": float(logit_variance),
            "h1_rms": _rms([each.c for each in routed]),
            "h3_rms": network.depth * _rms([each.out - each.c for each in routed]),
        },
    )


def _moments(share: Floats, numbers: Floats) -> tuple[float, float]:
    """Return mean and variance over experts of numbers [P, E], each as the mean over samples."""
    mean = numbers @ share
    variance = ((numbers - mean[:, None]) ** 2) @ share
    return float(np.mean(mean)), float(np.mean(variance))


def _rms(rows: Sequence[Floats]) -> float:
    """Return the root of the mean square over the infinitely many coordinates, samples and blocks."""
    return math.sqrt(float(np.mean([np.sum(each**2, axis=1) for each in rows])))
