"""Regime II: width and number of experts are infinite, M = kappa N, and the expert width N_e is not.

The source is MSSP, App. L (MSSP) and M (muP). Every expert is a site with its logit psi, its hidden features h2_j and
its backward features u_j = (W3'w)_j / N, for j up to N_e. The variance of the initial W3 is lam M / N_e: lam = 1 is
MSSP, and lam = 0 is the limit of muP, whose 1/N_e vanishes beside M/N_e. The papers' gradient-flow equations are these
with sums over updates as integrals.

    psi = Q h1            h2 = W2 h1            m = phi act(h2)            u = W3'w / N
    h3 = 1/M sum W3 m     z1 = N df/dh1 = (Q' vQ + W2' v2) / kappa
    vQ = phi' sum_j u act(h2)               v2 = phi u act'(h2)

phi stands for M/K phi under the aggregation 1/K (`Network.times_experts`).
"""

from __future__ import annotations

import math

import numpy as np

from hpxfer.limit.given import Given
from hpxfer.limit.layers import InputLayer, Readout, activate, gate, rank, rms, slope, top_share
from hpxfer.limit.losses import by_outputs
from hpxfer.limit.matrix import Coefficients, Lazy, Noise, Sites, Space, Trained
from hpxfer.limit.measure import measured
from hpxfer.limit.network import Network
from hpxfer.limit.text import Pass


def passes(network: Network, given: Given, *, sites: int, seed: int) -> list[Pass]:
    """Return what is measured at every pass."""
    kappa, width = network.experts_per_width, network.expert_width
    assert width is not None, "the limit of regime II has an expert width"
    wide, tall, routers, hidden = _spaces(network, given, sites, seed)
    layer, readout = InputLayer(network, given, wide), Readout(network, given.num_outputs, tall)
    q = Trained(Lazy(wide, routers, kappa), std=network.std("router"), rate=network.rate("router"))
    w2 = Trained(Lazy(wide, hidden, kappa * width), std=network.std("expert_in"), rate=network.rate("expert_in"))
    lam = 1.0 if network.parameterization == "mssp" else 0.0
    w3_T = Trained(
        Lazy(tall, hidden, kappa * width),
        std=network.std("expert_out") * math.sqrt(lam * kappa / width),
        rate=network.rate("expert_out"),
    )
    factor = network.times_experts
    out = []
    for at, batch in enumerate(given.batches):
        h1, slope1 = layer.features(at)
        psi, h2 = q.forward(h1), w2.forward(h1).reshape(len(h1), width, sites)
        gated = gate(network, psi, top_share(psi, network.active_share))
        a = activate(network.activation, h2)
        m = (factor * gated.phi[:, None] * a).reshape(len(h1), -1)
        h3 = w3_T.transposed(m) / kappa
        f = readout.outputs(h3)
        out.append(measured(given, batch, f, logits=psi, gated=gated, h1_rms=rms(wide, h1), h3_rms=rms(tall, h3)))
        if at == given.num_updates:
            break
        lr, chi = given.lrs[at], by_outputs(given.loss, f, batch.targets)
        by_h3 = chi @ readout.w  # N dL/dh3
        u = w3_T.forward(by_h3).reshape(h2.shape)
        v_q = gated.by_logits(factor * np.sum(u * a, axis=1))
        v_2 = (factor * gated.phi[:, None] * u * slope(network.activation, h2)).reshape(len(h1), -1)
        z = (q.transposed(v_q) + w2.transposed(v_2)) / kappa
        q.update(h1, v_q, lr)
        w2.update(h1, v_2, lr)
        w3_T.update(by_h3, m, lr)
        readout.update(chi, h3, lr)
        layer.update(at, z * slope1, lr)
    return out


def bytes_needed(network: Network, given: Given, sites: int) -> float:
    """Return about how much memory a solve takes."""
    width = network.expert_width or 0
    of_experts, of_h1 = _columns(network, given)
    of_input = sites if network.input_activation != "linear" else of_h1
    rows = given.num_samples * (3 + 5 * width)  # directions, images, past inputs and gradients of the three matrices
    return 8.0 * (sites * (2 * rows + 4 * of_experts) + of_input * (10 * given.num_samples + 4 * of_h1))


def gaussians(network: Network, given: Given) -> int:
    """Return how many Gaussians the sites of all populations need, one site of each."""
    of_experts, of_h1 = _columns(network, given)
    return of_experts + (of_h1 if network.input_activation != "linear" else 0)


def _columns(network: Network, given: Given) -> tuple[int, int]:
    """Return the most Gaussians that the site of an expert needs, and that a coordinate of h1 needs."""
    width = network.expert_width or 0
    of_experts = given.num_samples * (1 + width) + given.num_outputs * len(given.batches) * width
    return of_experts, rank(given) + 2 * given.num_samples


def _spaces(network: Network, given: Given, sites: int, seed: int) -> tuple[Space, Space, Space, Space]:
    """Return the spaces of h1, of h3, of one number per expert, and of N_e numbers per expert."""
    of_experts, of_h1 = _columns(network, given)
    experts = Noise(sites, of_experts, seed, 0)
    wide: Space = Coefficients(of_h1)
    if network.input_activation != "linear":
        wide = Sites(Noise(sites, of_h1, seed, 1))
    tall = Coefficients(given.num_outputs + given.num_samples)
    return wide, tall, Sites(experts), Sites(experts, network.expert_width or 0)
