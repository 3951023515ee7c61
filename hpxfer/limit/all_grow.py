"""Regime III: width, expert width and number of experts are infinite, N_e = iota N and M = kappa N.

The source is MSSP, App. N (MSSP) and O (muP). Every expert is a site with its logit psi, and with vectors over its
infinitely many hidden neurons: h2 = W2 h1 and u = W3'w. Experts are linear, so these vectors are linear in Gaussians of
a neuron, exactly. Under MSSP all experts start from the same (W2, W3). These Gaussians are then shared, and what
experts add up to is as large as what each of them is. Under muP each expert has its own. Then the sum over experts of
what its random matrices give vanishes as M^-1/2, and what is left are the means: neither the fresh noise of W2'g and W3
m nor the response of a forward pass to the backward passes before.

    h3 = 1/M sum W3_i m_i, m = phi h2      z1 = N df/dh1 = Q' vQ / kappa + E[W2' phi u],  vQ = phi' iota <u, h2>

phi stands for M/K phi under the aggregation 1/K (`Network.times_experts`), and <,> for the average over the neurons of
an expert.
"""

from __future__ import annotations

import math

import numpy as np

from hpxfer.limit.given import Floats, Given
from hpxfer.limit.layers import InputLayer, Readout, gate, rank, rms, top_share
from hpxfer.limit.losses import by_outputs
from hpxfer.limit.matrix import Coefficients, Lazy, Noise, Rows, Sites, Space, Trained, Untied
from hpxfer.limit.measure import measured
from hpxfer.limit.network import Network
from hpxfer.limit.text import Pass


def passes(network: Network, given: Given, *, sites: int, seed: int) -> list[Pass]:
    """Return what is measured at every pass."""
    kappa, iota = network.experts_per_width, network.expert_ratio
    wide, tall, routers, neurons = _spaces(network, given, sites, seed)
    layer, readout = InputLayer(network, given, wide), Readout(network, given.num_outputs, tall)
    q = Trained(Lazy(wide, routers, kappa), std=network.std("router"), rate=network.rate("router") / kappa)
    draw = Lazy if network.parameterization == "mssp" else Untied
    w2 = _OfExperts(draw(wide, neurons, iota), sites, std=network.std("expert_in"), rate=network.rate("expert_in"))
    w3_T = _OfExperts(
        draw(tall, neurons, iota),
        sites,
        std=network.std("expert_out") / math.sqrt(iota),
        rate=network.rate("expert_out"),
    )
    factor = network.times_experts
    out = []
    for at, batch in enumerate(given.batches):
        h1, slope1 = layer.features(at)
        psi, h2 = q.forward(h1), w2.forward(h1)
        gated = gate(network, psi, top_share(psi, network.active_share))
        phi = factor * gated.phi[:, :, None]
        m = phi * h2  # [P, experts, neurons]
        h3 = w3_T.transposed(m)
        f = readout.outputs(h3)
        out.append(measured(given, batch, f, logits=psi, gated=gated, h1_rms=rms(wide, h1), h3_rms=rms(tall, h3)))
        if at == given.num_updates:
            break
        lr, chi = given.lrs[at], by_outputs(given.loss, f, batch.targets)
        by_h3 = chi @ readout.w  # N dL/dh3
        u = w3_T.forward(by_h3)
        v_q = gated.by_logits(factor * iota * np.einsum("psn,psn->ps", u, h2))
        z = q.transposed(v_q) / kappa + w2.transposed(phi * u)
        q.update(h1, v_q, lr)
        w2.update(h1, phi * u, lr)
        w3_T.update(by_h3, m, lr)
        readout.update(chi, h3, lr)
        layer.update(at, z * slope1, lr)
    return out


class _OfExperts:
    """The matrices W_i of all experts, from infinitely many inputs to the neurons of an expert, with their updates.

    The experts share one draw, or each has its own of the same law, as `draw` says. Vectors over neurons are
    [P, experts, Gaussians].
    """

    def __init__(self, draw: Lazy, sites: int, *, std: float, rate: float) -> None:
        self._draw, self._source, self._std, self._rate = draw, draw.source, std, rate
        self._shape = sites, draw.target.size
        self._x, self._d = Rows(draw.source.size), Rows(sites * draw.target.size)

    def forward(self, x: Floats) -> Floats:
        """Return W_i x of every expert, [P, experts, Gaussians]."""
        start = self._std * self._draw.forward(x) if self._std else np.zeros((len(x), self._shape[1]))
        added = self._source.inner(x, self._x.all) @ self._d.all
        return start[:, None] - self._rate * added.reshape(len(x), *self._shape)

    def transposed(self, d: Floats) -> Floats:
        """Return the average over experts of W_i'd_i, which are rows of the inputs."""
        sites = self._shape[0]
        start = (
            self._std * self._draw.transposed(d.mean(axis=1)) if self._std else np.zeros((len(d), self._source.size))
        )
        pairs = d.reshape(len(d), -1) @ self._d.all.T / sites
        return start - self._rate * self._draw.k * (pairs @ self._x.all)

    def update(self, x: Floats, d: Floats, lr: float) -> None:
        """Add the update that inputs x and gradients d of every expert give at a learning rate."""
        self._x.add(x)
        self._d.add(lr * d.reshape(len(d), -1))


def bytes_needed(network: Network, given: Given, sites: int) -> float:
    """Return about how much memory a solve takes."""
    of_h1, neurons = _sizes(given)
    most = max(len(batch.inputs) for batch in given.batches)
    of_input = sites if network.input_activation != "linear" else of_h1
    rows = 4 * given.num_samples + 8 * most  # past gradients of two matrices, and what a pass holds
    return 8.0 * (sites * (rows * neurons + 8 * given.num_samples) + of_input * (10 * given.num_samples + 4 * of_h1))


def gaussians(network: Network, given: Given) -> int:
    """Return how many Gaussians the sites of all populations need, one site of each."""
    return given.num_samples + (_sizes(given)[0] if network.input_activation != "linear" else 0)


def _sizes(given: Given) -> tuple[int, int]:
    """Return the most Gaussians of a coordinate of h1, and of a hidden neuron."""
    return rank(given) + 2 * given.num_samples, given.num_samples + given.num_outputs * len(given.batches)


def _spaces(network: Network, given: Given, sites: int, seed: int) -> tuple[Space, Space, Space, Coefficients]:
    """Return the spaces of h1, of h3, of one number per expert, and of the neurons of an expert."""
    of_h1, neurons = _sizes(given)
    wide: Space = Coefficients(of_h1)
    if network.input_activation != "linear":
        wide = Sites(Noise(sites, of_h1, seed, 1))
    tall = Coefficients(given.num_outputs + given.num_samples)
    return wide, tall, Sites(Noise(sites, given.num_samples, seed, 0)), Coefficients(neurons)
