"""The layers that all regimes share: the input layer, and the readout with its loss.

Letters: P samples of a pass, C outputs, D inputs, N the width.
"""

from __future__ import annotations

import math

import numpy as np

from hpxfer.limit.activations import activate, slope
from hpxfer.limit.given import Floats, Given
from hpxfer.limit.matrix import Rows
from hpxfer.limit.network import Network
from hpxfer.limit.spaces import Space, paired

# Directions of the inputs with a smaller share of the largest are rounding.
_RANK = 1e-12


class InputLayer:
    """h1 = act1(W1 x), where W1 starts with std init_mult / sqrt(D) and has the LR of the table, lr N."""

    def __init__(self, network: Network, given: Given, space: Space) -> None:
        self._network = network
        self._inputs = [batch.inputs for batch in given.batches]
        self._by_pass = coordinates(given)
        self._start = network.std("embedding") / math.sqrt(self._inputs[0].shape[1]) * space.fresh(rank(given))
        self._z = Rows(space.size)
        self._seen: list[Floats] = []

    def features(self, at: int) -> tuple[Floats, Floats]:
        """Return h1 of the samples of a pass, [P, N], and act1' at each."""
        x = self._by_pass[at] @ self._start
        if self._seen:
            kernel = self._inputs[at] @ np.concatenate(self._seen).T  # K = x . x'
            x = x - self._network.rate("embedding") * (kernel @ self._z.all)
        kind = self._network.input_activation
        return activate(kind, x), slope(kind, x)

    def update(self, at: int, z: Floats, lr: float) -> None:
        """Add the update by z [P, N], which is N dL/d(W1 x)."""
        self._seen.append(self._inputs[at])
        self._z.add(lr * z)


class Readout:
    """f = W4 h3 with W4 = w / N, where w starts with std init_mult and W4 has the LR of the table, lr / N."""

    def __init__(self, network: Network, num_outputs: int, space: Space) -> None:
        self._space, self._rate = space, network.rate("readout")
        self.w = network.std("readout") * space.fresh(num_outputs)

    def outputs(self, h3: Floats) -> Floats:
        """Return f [P, C]."""
        return self._space.inner(h3, self.w)

    def update(self, chi: Floats, h3: Floats, lr: float) -> None:
        """Add the update by chi [P, C] = dL/df."""
        self.w = self.w - lr * self._rate * (chi.T @ h3)


def coordinates(given: Given) -> list[Floats]:
    """Return the inputs of every pass in an orthonormal basis of the span of all, [P, rank] each."""
    distinct = {id(batch): batch.inputs for batch in given.batches}  # one batch may serve many passes
    every = np.concatenate(list(distinct.values()))
    _, sizes, basis = np.linalg.svd(np.unique(every, axis=0), full_matrices=False)
    basis = basis[sizes > _RANK * max(sizes[0], np.finfo(np.float64).tiny)]
    found = {name: inputs @ basis.T for name, inputs in distinct.items()}
    return [found[id(batch)] for batch in given.batches]


def rank(given: Given) -> int:
    """Return the dimension of the span of all inputs."""
    return int(coordinates(given)[0].shape[1])


def rms(space: Space, rows: Floats) -> float:
    """Return the root mean square over coordinates and samples."""
    return math.sqrt(max(float(np.mean(paired(space, rows, rows))), 0.0))
