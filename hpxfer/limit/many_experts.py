"""Regimes II and III: width and number of experts are infinite, M = kappa N. The source is MSSP, App. L to O.

    psi = Q h1            h2 = W2 h1            m = phi act(h2)            u = W3'w
    h3 = 1/M sum W3 m     z1 = N df/dh1 = (Q' vQ + W2' v2) / kappa
    vQ = phi' sum_j u act(h2)               v2 = phi u act'(h2)

phi stands for M/K phi under the aggregation 1/K (`Network.times_experts`). Every expert is a site, with its logit psi.
The papers' gradient-flow equations are these with sums over updates as integrals.

In regime II the expert width N_e is finite (App. L of MSSP, M of muP), and a site has N_e numbers h2_j and u_j. The
variance of the initial W3 is lam M / N_e: lam = 1 is MSSP, and lam = 0 is the limit of muP, whose 1/N_e vanishes beside
M/N_e. There u is W3'w / N.

In regime III N_e = iota N (App. N of MSSP, O of muP), and sums over j are iota times averages. Experts are linear, so
h2 and u are linear in Gaussians of a neuron, exactly. Under MSSP all experts start from the same (W2, W3). These
Gaussians are then shared, and what experts add up to is as large as what each of them is. Under muP each expert has its
own. Then the sum over experts of what its random matrices give vanishes as M^-1/2, and what is left are the means:
neither the fresh noise of W2'g and W3 m nor the response of a forward pass to the backward passes before.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hpxfer.limit.layers import Pass, Routed, activate, gate, mixture, rank, slope, top_share, train
from hpxfer.limit.matrix import Coefficients, Draw, Lazy, Noise, Sites, Space, Trained, Untied, space
from hpxfer.limit.network import Floats, Given, Network


def passes(network: Network, given: Given, *, sites: int, seed: int) -> list[Pass]:
    """Return what is measured at every pass."""
    (of_experts, _), of_h1 = _of_expert(network, given), _of_h1(given)
    noise = Noise(sites, of_experts, seed, 0)  # first, as it needs the most sites and names them if they are too few
    wide = space(of_h1, exact=network.input_activation == "linear", sites=sites, seed=seed, population=1)
    tall = Coefficients(given.num_outputs + given.num_samples)
    return train(given, mixture(network, given, wide, tall, lambda: _experts(network, given, wide, tall, noise)))


def _experts(network: Network, given: Given, wide: Space, tall: Space, noise: Noise) -> Callable[[int, Floats], Routed]:
    """Return the experts. Their hidden features are [P, N_e, sites] in regime II, and [P, sites, Gaussians] in III."""
    kappa, iota, factor = network.experts_per_width, network.expert_ratio, network.times_experts
    is_two = network.regime == "II"
    q_rate, w3_std = network.rate("router"), network.std("expert_out")
    if is_two:  # lam = 1 or 0
        axis, w3_std = 1, w3_std * math.sqrt((network.parameterization == "mssp") * kappa / _width(network))
    else:
        axis, q_rate, w3_std = 2, q_rate / kappa, w3_std / math.sqrt(iota)
    q = Trained(Lazy(wide, Sites(noise), kappa), std=network.std("router"), rate=q_rate)
    of_w2, of_w3_T = _draws(network, given, wide, tall, noise)
    w2 = Trained(of_w2, std=network.std("expert_in"), rate=network.rate("expert_in"))
    w3_T = Trained(of_w3_T, std=w3_std, rate=network.rate("expert_out"))

    def forward(at: int, h1: Floats) -> Routed:
        psi, h2 = q.forward(h1), w2.forward(h1).reshape(len(h1), *((-1, noise.sites) if is_two else (noise.sites, -1)))
        gated = gate(network, psi, top_share(psi, network.active_share))
        phi, a = np.expand_dims(factor * gated.phi, axis), activate(network.activation, h2)
        m = (phi * a).reshape(len(h1), -1)

        def backward(by_h3: Floats, lr: float) -> Floats:
            u = w3_T.forward(by_h3).reshape(h2.shape)
            by_phi = factor * np.sum(u * a, axis=1) if is_two else factor * iota * np.einsum("psn,psn->ps", u, a)
            v_q = gated.by_logits(by_phi)
            v_2 = (phi * u * slope(network.activation, h2)).reshape(len(h1), -1)
            of_q, of_2 = q.transposed(v_q), w2.transposed(v_2)
            q.update(h1, v_q, lr)
            w2.update(h1, v_2, lr)
            w3_T.update(by_h3, m, lr)
            return (of_q + of_2) / kappa if is_two else of_q / kappa + of_2

        h3 = w3_T.transposed(m)
        return Routed(logits=psi, gated=gated, h3=h3 / kappa if is_two else h3, backward=backward)

    return forward


def _draws(network: Network, given: Given, wide: Space, tall: Space, noise: Noise) -> tuple[Draw, Draw]:
    """Return the initial draws of W2 and of W3'."""
    if network.regime == "II":
        width = _width(network)
        hidden, k = Sites(noise, width), network.experts_per_width * width
        return Lazy(wide, hidden, k), Lazy(tall, hidden, k)
    neurons, iota = Coefficients(_of_expert(network, given)[1]), network.expert_ratio
    draw = Lazy if network.parameterization == "mssp" else Untied
    return OfExperts(draw(wide, neurons, iota), noise.sites), OfExperts(draw(tall, neurons, iota), noise.sites)


class OfExperts:
    """The initial draws of a matrix of all experts: one that they share, or one each of the same law, as `draw` says.

    Vectors over the neurons of all experts are rows of [experts, Gaussians of a neuron], flat.
    """

    def __init__(self, draw: Lazy, sites: int) -> None:
        self.source, self.k, self._draw, self._sites = draw.source, draw.k, draw, sites
        self.target: Space = Neurons(sites, draw.target)

    def forward(self, x: Floats) -> Floats:
        """Return W_i x of every expert."""
        return np.tile(self._draw.forward(x), self._sites)

    def transposed(self, d: Floats) -> Floats:
        """Return the average over experts of W_i'd_i, which are rows of the inputs."""
        return self._draw.transposed(d.reshape(len(d), self._sites, -1).mean(axis=1))


class Neurons:
    """Variables of a neuron of every expert. Inner products are averages over experts too."""

    def __init__(self, sites: int, neuron: Space) -> None:
        self.size, self._sites = sites * neuron.size, sites

    def inner(self, a: Floats, b: Floats) -> Floats:
        return a @ b.T / self._sites

    def fresh(self, count: int) -> Floats:
        raise AssertionError("the draw has fresh Gaussians")


def bytes_needed(network: Network, given: Given, sites: int) -> float:
    """Return about how much memory a solve takes."""
    samples, of_h1, (of_experts, neurons) = given.num_samples, _of_h1(given), _of_expert(network, given)
    of_input = (sites if network.input_activation != "linear" else of_h1) * (10 * samples + 4 * of_h1)
    if network.regime == "II":  # directions, images, past inputs and gradients of the three matrices
        return 8.0 * (sites * (2 * samples * (3 + 5 * _width(network)) + 4 * of_experts) + of_input)
    # Past gradients of two matrices, and what a pass holds.
    rows = 4 * samples + 8 * max(len(batch.inputs) for batch in given.batches)
    return 8.0 * (sites * (rows * neurons + 8 * samples) + of_input)


def gaussians(network: Network, given: Given) -> int:
    """Return how many Gaussians the sites of all populations need, one site of each."""
    return _of_expert(network, given)[0] + (_of_h1(given) if network.input_activation != "linear" else 0)


def _of_h1(given: Given) -> int:
    """Return the most Gaussians of a coordinate of h1."""
    return rank(given) + 2 * given.num_samples


def _of_expert(network: Network, given: Given) -> tuple[int, int]:
    """Return the most Gaussians of the site of an expert, and, in regime III, of a hidden neuron."""
    of_matrices = given.num_samples + given.num_outputs * len(given.batches)
    if network.regime == "III":
        return given.num_samples, of_matrices
    return given.num_samples + _width(network) * of_matrices, 0


def _width(network: Network) -> int:
    assert network.expert_width is not None, "the limit of regime II has an expert width"
    return network.expert_width
