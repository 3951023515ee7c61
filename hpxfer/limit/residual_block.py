"""A block of the residual limit: forward, backward by hand, and the update of its experts.

    psi_i = Q_i c + b_i        phi_i = gate(beta psi_i)        c' = c + factor E_i[phi_i E_j[act(W2_ij c) W3_ij]]

c has the coordinates of the residual stream in r orthonormal directions. A neuron reads them by W2_ij and writes them
by W3_ij. E_i is the average over experts, and E_j over the neurons of an expert.

Letters: E nodes of experts, J neurons of each, r directions, P samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpxfer.limit.activations import activate, slope
from hpxfer.limit.gates import Gated, gate, top_share
from hpxfer.limit.given import Floats
from hpxfer.limit.network import Network
from hpxfer.limit.residual_draws import Experts

# Numbers of an intermediate tensor that are computed at once: they stay in the cache of a core.
_AT_ONCE = 2**17


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The factor of a branch, and the LR of each role of a block at a base LR of 1."""

    branch: float
    router: float
    reads: float
    writes: float
    writes_std: float  # at the start


@dataclass(frozen=True, kw_only=True, eq=False)
class Routed:
    """What a block remembers of a forward pass."""

    c: Floats  # [P, r], its input
    logits: Floats  # [P, E]
    gated: Gated
    out: Floats  # [P, r]


class Block:
    """The parameters of a block: `router` [E, r], `reads` and `writes` [E J, r]. An update changes them in place."""

    def __init__(self, network: Network, constants: Constants, start: Experts) -> None:
        self._network, self._constants = network, constants
        self.share, self.bias = start.share, start.bias
        num_experts, self._num_neurons, directions = start.reads.shape
        self.router = np.zeros((num_experts, directions))
        self.reads = network.std("expert_in") * start.reads.reshape(-1, directions)
        self.writes = constants.writes_std * start.writes.reshape(-1, directions)

    def forward(self, c: Floats) -> Routed:
        """Return what the block does with its input [P, r]."""
        logits = c @ self.router.T + self.bias
        gated = gate(self._network, logits, top_share(logits, self._network.active_share))
        added = np.zeros_like(c)
        for experts, rows in self._pieces(len(c)):
            a = activate(self._network.activation, self.reads[rows] @ c.T)
            added += _weighted(a, (gated.phi * self.share).T[experts]).T @ self.writes[rows]
        out = c + self._constants.branch / self._num_neurons * added
        return Routed(c=c, logits=logits, gated=gated, out=out)

    def backward(self, routed: Routed, by_out: Floats, lr: float) -> Floats:
        """Return dL/dc [P, r] given that of the output, and update the block with a base LR."""
        c, phi, rates = routed.c, routed.gated.phi.T, self._constants
        by_phi = np.zeros_like(phi)  # [E, P], summed over neurons
        by_c = np.zeros_like(c)
        for experts, rows in self._pieces(len(c)):
            reads, writes = self.reads[rows], self.writes[rows]
            h = reads @ c.T
            a, u = activate(self._network.activation, h), writes @ by_out.T
            by_phi[experts] += (a * u).reshape(len(phi[experts]), -1, len(c)).sum(axis=1)
            by_h = _weighted(slope(self._network.activation, h) * u, phi[experts])
            by_c += _weighted(by_h, self.share[experts, None]).T @ reads
            self.reads[rows] = reads - lr * rates.reads * (by_h @ c)
            self.writes[rows] = writes - lr * rates.writes * (_weighted(a, phi[experts]) @ by_out)
        by_logits = routed.gated.by_logits(by_phi.T / self._num_neurons)
        by_c = by_c / self._num_neurons + (by_logits * self.share) @ self.router
        self.router -= lr * rates.router * (by_logits.T @ c)
        total: Floats = by_out + rates.branch * by_c
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
