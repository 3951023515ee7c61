"""Regime I: the width is infinite, and the number of experts is not (Why Routers Freeze; MSSP, regime I).

    h3 = c sum_k phi_k y_k,  y_k = act(W3_k h1) or W3_k act(W2_k h1)        psi_k = <q_k, h1>        f = <w, h3>

With linear activations every coordinate is linear in unit Gaussians, so nothing is sampled, and this equals the
equations 138 to 177 of Why Routers Freeze. With others, the spaces that they touch are sampled.

A router row Q_k = q_k / N starts with std 1/N (muP) or at zero (MSSP), and has the LR lr / N. Experts have the LR lr.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpxfer.limit.layers import Mask, Pass, Routed, activate, gate, largest, margin, mixture, rank, slope, train
from hpxfer.limit.matrix import Lazy, Space, Trained, paired, space
from hpxfer.limit.network import Floats, Given, Network

# The outputs [P, N] of an expert, and its backward pass: N dL/dh1 given N dL/d(output) and an LR for its update.
Run = tuple[Floats, Callable[[Floats, float], Floats]]


def passes(network: Network, given: Given, *, sites: int, seed: int) -> list[Pass]:
    """Return what is measured at every pass."""
    wide, tall, *hidden = (
        space(most, exact=exact, sites=sites, seed=seed, population=at)
        for at, (exact, most) in enumerate(_populations(network, given))
    )
    return train(given, mixture(network, given, wide, tall, lambda: _experts(network, given, wide, tall, hidden)))


def _experts(
    network: Network, given: Given, wide: Space, tall: Space, hidden: Sequence[Space]
) -> Callable[[int, Floats], Routed]:
    """Return the experts, whose spaces of h2 are `hidden`."""
    count = _count(network)
    q = (network.std("router") if network.parameterization == "mup" else 0.0) * wide.fresh(count)  # [m, N]
    learned = np.zeros(count)
    experts = [_expert(network, wide, of_h2, tall) for of_h2 in hidden or (None,) * count]
    # c: 1 for a gate that sums to one.
    c = {"1/M": 1 / count, "1/K": 1 / (network.num_active or count), "none": 1.0}[network.aggregation]

    def forward(at: int, h1: Floats) -> Routed:
        logits = wide.inner(h1, q) + learned + _bias(given, at, network)
        active = _active(network, given, at, logits)
        gated = gate(network, logits, active)
        each = [expert(h1) for expert in experts]

        def backward(by_h3: Floats, lr: float) -> Floats:
            nonlocal q, learned
            by_phi = c * np.stack([paired(tall, y, by_h3) for y, _ in each], axis=1)
            by_logits = gated.by_logits(by_phi)
            z: Floats = by_logits @ q
            for (_, of_expert), phi in zip(each, gated.phi.T, strict=True):
                z = z + of_expert(c * phi[:, None] * by_h3, lr)
            q = q - lr * network.rate("router") * (by_logits.T @ h1)
            if network.router_bias == "learned":
                learned = learned - lr * network.rate("router_bias") * by_logits.sum(axis=0)
            return z

        return Routed(
            logits=logits,
            gated=gated,
            h3=c * sum(phi[:, None] * y for phi, (y, _) in zip(gated.phi.T, each, strict=True)),
            backward=backward,
            margin=None if active is None else margin(logits, active),
        )

    return forward


def _expert(network: Network, wide: Space, of_h2: Space | None, tall: Space) -> Callable[[Floats], Run]:
    """Return an expert: act(W3 h1) without a space of h2, else W3 act(W2 h1)."""
    # With N_e = iota N features, the product of two past inputs is iota N times their average.
    iota = 1.0 if of_h2 is None else network.expert_ratio
    kind = network.activation
    w3 = Trained(
        Lazy(of_h2 or wide, tall, 1 / iota), std=network.std("expert_out"), rate=network.rate("expert_out") * iota
    )

    def one(h1: Floats) -> Run:
        h = w3.forward(h1)

        def backward(by_output: Floats, lr: float) -> Floats:
            d = slope(kind, h) * by_output
            by_h1 = w3.transposed(d)
            w3.update(h1, d, lr)
            return by_h1

        return activate(kind, h), backward

    if of_h2 is None:
        return one
    w2 = Trained(Lazy(wide, of_h2, iota), std=network.std("expert_in"), rate=network.rate("expert_in"))

    def two(h1: Floats) -> Run:
        h2 = w2.forward(h1)
        a = activate(kind, h2)

        def backward(by_output: Floats, lr: float) -> Floats:
            d2 = slope(kind, h2) * w3.transposed(by_output)
            by_h1 = w2.transposed(d2)
            w3.update(a, by_output, lr)
            w2.update(h1, d2, lr)
            return by_h1

        return w3.forward(a), backward

    return two


def bytes_needed(network: Network, given: Given, sites: int) -> float:
    """Return about how much memory a solve takes."""
    rows = 6.0 * given.num_samples * _count(network)  # of matrices: directions, images, past inputs and gradients
    of_input, of_output, *of_hidden = _populations(network, given)
    sizes = (of_input, of_output, *of_hidden[:1])
    return sum(8 * (rows * most if exact else (rows + 4 * most) * sites) for exact, most in sizes)


def gaussians(network: Network, given: Given) -> int:
    """Return how many Gaussians the sites of all populations need, one site of each."""
    return sum(most for exact, most in _populations(network, given) if not exact)


def _populations(network: Network, given: Given) -> list[tuple[bool, int]]:
    """Return (is it exact, the most Gaussians that it needs) of the spaces of h1, of h3 and of each expert's h2."""
    m, two, linear = _count(network), network.expert_matrices == 2, network.activation == "linear"
    backward = given.num_outputs * len(given.batches)  # by the readout, which has C directions per pass
    by_hidden = given.num_samples if two or not linear else backward
    return [
        (network.input_activation == "linear", rank(given) + m + m * by_hidden),
        (linear or two, given.num_outputs + m * given.num_samples),
        *([(linear, given.num_samples + backward)] * (m if two else 0)),
    ]


def _count(network: Network) -> int:
    assert network.num_experts is not None, "the limit of regime I has a number of experts"
    return network.num_experts


def _bias(given: Given, at: int, network: Network) -> Floats | float:
    """Return the router's bias at a pass, without what it learned."""
    if given.router_bias is None:
        return 0.0
    row: Floats = given.router_bias[0 if network.router_bias == "learned" else at]
    return row


def _active(network: Network, given: Given, at: int, logits: Floats) -> Mask | None:
    """Return which experts a pass uses, or None if it uses all."""
    if network.num_active in (None, network.num_experts):
        return None
    return largest(logits, network.num_active) if given.active is None else given.active[at]
