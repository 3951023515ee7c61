"""Regime I: the width is infinite, and the number of experts is not (Why Routers Freeze; MSSP, regime I).

    h3 = c sum_k phi_k y_k,  y_k = act(W3_k h1) or W3_k act(W2_k h1)        psi_k = <q_k, h1>        f = <w, h3>

With linear activations every coordinate is linear in unit Gaussians, so nothing is sampled, and this equals the
equations 138 to 177 of Why Routers Freeze. With others, the spaces that they touch are sampled.

A router row Q_k = q_k / N starts with std 1/N (muP) or at zero (MSSP), and has the LR lr / N. Experts have the LR lr.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpxfer.limit.given import Floats, Given
from hpxfer.limit.layers import InputLayer, Mask, Readout, activate, gate, largest, margin, rank, rms, slope
from hpxfer.limit.losses import by_outputs
from hpxfer.limit.matrix import Coefficients, Lazy, Noise, Sites, Space, Trained, paired
from hpxfer.limit.measure import measured
from hpxfer.limit.network import Network
from hpxfer.limit.text import Pass


def passes(network: Network, given: Given, *, sites: int, seed: int) -> list[Pass]:
    """Return what is measured at every pass."""
    num_experts = network.num_experts
    assert num_experts is not None, "the limit of regime I has a number of experts"
    spaces = _spaces(network, given, sites, seed)
    layer, readout = InputLayer(network, given, spaces.input), Readout(network, given.num_outputs, spaces.output)
    mup = network.parameterization == "mup"
    q = (network.std("router") if mup else 0.0) * spaces.input.fresh(num_experts)  # [m, N]
    experts = [_Expert(network, spaces, k) for k in range(num_experts)]
    learned = np.zeros(num_experts)
    c = _aggregation(network)
    out = []
    for at, batch in enumerate(given.batches):
        h1, slope1 = layer.features(at)
        logits = spaces.input.inner(h1, q) + learned + _bias(given, at, network)
        active = _active(network, given, at, logits)
        gated = gate(network, logits, active)
        each = [expert.forward(h1) for expert in experts]  # [P, N] of every expert
        h3 = c * sum(phi[:, None] * y for phi, y in zip(gated.phi.T, each, strict=True))
        f = readout.outputs(h3)
        out.append(
            measured(
                given,
                batch,
                f,
                logits=logits,
                gated=gated,
                h1_rms=rms(spaces.input, h1),
                h3_rms=rms(spaces.output, h3),
                margin=None if active is None else margin(logits, active),
            )
        )
        if at == given.num_updates:
            break
        lr, chi = given.lrs[at], by_outputs(given.loss, f, batch.targets)
        by_h3 = chi @ readout.w  # N dL/dh3
        by_phi = c * np.stack([paired(spaces.output, y, by_h3) for y in each], axis=1)
        by_logits = gated.by_logits(by_phi)
        z = by_logits @ q
        for expert, phi in zip(experts, gated.phi.T, strict=True):
            z = z + expert.backward(c * phi[:, None] * by_h3)
        for expert in experts:
            expert.update(lr)
        q = q - lr * network.rate("router") * (by_logits.T @ h1)
        if network.router_bias == "learned":
            learned = learned - lr * network.rate("router_bias") * by_logits.sum(axis=0)
        readout.update(chi, h3, lr)
        layer.update(at, z * slope1, lr)
    return out


@dataclass(frozen=True, kw_only=True)
class _Spaces:
    input: Space  # of h1
    hidden: tuple[Space, ...]  # of h2, one per expert with two matrices
    output: Space  # of h3


class _Expert:
    """An expert: act(W3 h1), or W3 act(W2 h1). Its matrices have the LR of the table, lr."""

    def __init__(self, network: Network, spaces: _Spaces, k: int) -> None:
        self._two = network.expert_matrices == 2
        self._activation = network.activation
        iota = network.expert_ratio
        source = spaces.hidden[k] if self._two else spaces.input
        # With N_e = iota N features, the product of two past inputs is iota N times their average.
        ratio = iota if self._two else 1.0
        self._w3 = Trained(
            Lazy(source, spaces.output, 1 / ratio),
            std=network.std("expert_out"),
            rate=network.rate("expert_out") * ratio,
        )
        if self._two:
            up = Lazy(spaces.input, source, iota)
            self._w2 = Trained(up, std=network.std("expert_in"), rate=network.rate("expert_in"))

    def forward(self, h1: Floats) -> Floats:
        """Return the outputs [P, N]."""
        self._h1 = h1
        before = self._w2.forward(h1) if self._two else self._w3.forward(h1)
        self._a, self._slope = activate(self._activation, before), slope(self._activation, before)
        return self._w3.forward(self._a) if self._two else self._a

    def backward(self, by_output: Floats) -> Floats:
        """Return N dL/dh1 through this expert, given N dL/d(output), both [P, N]."""
        if not self._two:
            self._d = self._slope * by_output
            return self._w3.transposed(self._d)
        self._d = by_output
        self._d2 = self._slope * self._w3.transposed(by_output)
        return self._w2.transposed(self._d2)

    def update(self, lr: float) -> None:
        """Add the update that the last backward pass gives."""
        self._w3.update(self._a if self._two else self._h1, self._d, lr)
        if self._two:
            self._w2.update(self._h1, self._d2, lr)


def bytes_needed(network: Network, given: Given, sites: int) -> float:
    """Return about how much memory a solve takes."""
    total = 0.0
    # Of matrices: directions, images, past inputs and gradients.
    rows = 6.0 * given.num_samples * (network.num_experts or 0)
    for exact, most in _sizes(network, given):
        total += 8 * (rows * most if exact else (rows + 4 * most) * sites)
    return total


def gaussians(network: Network, given: Given) -> int:
    """Return how many Gaussians the sites of all populations need, one site of each."""
    of_input, of_output, *of_hidden = _sizes(network, given)
    populations = (of_input, of_output, *of_hidden * (network.num_experts or 0))
    return sum(most for exact, most in populations if not exact)


def _sizes(network: Network, given: Given) -> list[tuple[bool, int]]:
    """Return (is it exact, the most Gaussians that it needs) of the spaces of h1, of h3 and, if there is one, of h2."""
    m, two, linear = network.num_experts or 0, network.expert_matrices == 2, network.activation == "linear"
    backward = given.num_outputs * len(given.batches)  # by the readout, which has C directions per pass
    by_hidden = given.num_samples if two or not linear else backward
    return [
        (network.input_activation == "linear", rank(given) + m + m * by_hidden),
        (linear or two, given.num_outputs + m * given.num_samples),
        *([(linear, given.num_samples + backward)] if two else []),
    ]


def _spaces(network: Network, given: Given, sites: int, seed: int) -> _Spaces:
    def space(exact: bool, most: int, population: int) -> Space:
        return Coefficients(most) if exact else Sites(Noise(sites, most, seed, population))

    of_input, of_output, *of_hidden = _sizes(network, given)
    m = network.num_experts or 0
    return _Spaces(
        input=space(*of_input, 0),
        output=space(*of_output, 1),
        hidden=tuple(space(*size, 2 + k) for size in of_hidden for k in range(m)),
    )


def _aggregation(network: Network) -> float:
    """Return c."""
    if network.aggregation == "none":
        return 1.0
    experts = network.num_experts if network.aggregation == "1/M" else network.num_active or network.num_experts
    assert experts is not None, "the limit of regime I has a number of experts"
    return 1 / experts


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
