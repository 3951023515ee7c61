"""The experts of a block of the residual limit at the start: nodes for their biases, and samples of their neurons.

A neuron j of expert i has two Gaussian vectors: how it reads the residual stream (W2) and how it writes to it (W3). The
samples are scrambled Sobol points with all four combinations of signs. They are whitened, so that means and covariances
are exact. The limit of linear experts then needs no sampling, apart from that of biases.

Letters: E nodes of experts, J neurons of each, r directions of the residual stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from hpxfer.errors import HpxferError
from hpxfer.limit.given import Floats
from hpxfer.limit.network import Network
from hpxfer.limit.refused_trainings import LEAST_ACTIVE
from hpxfer.limit.spaces import MOST_DIMENSIONS, sobol_gaussians

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
        least = least_sites(network, directions, 2 * sites)
        raise HpxferError(
            f"sites: must be at least {least}, so that {_LEAST_POINTS} points stand for each of the {directions} "
            f"directions of the residual stream and {LEAST_ACTIVE} for active experts, got {sites}"
        )
    return split


def least_sites(network: Network, directions: int, start: int) -> int:
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
