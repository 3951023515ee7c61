"""What regimes I, II and III share: activations, losses, gates, the input layer, the readout, and the training itself.

Letters: P samples of a pass, C outputs, D inputs, N the width, M experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, ndtr, softmax

from hpxfer.limit.matrix import Rows, Space, paired
from hpxfer.limit.network import Activation, Floats, Gate, Given, Loss, Network


def activate(kind: Activation, x: Floats) -> Floats:
    """Return act(x)."""
    match kind:
        case "relu":
            return np.maximum(x, 0.0)
        case "gelu":
            return x * ndtr(x)
        case "tanh":
            return np.tanh(x)
        case _:
            return x


def slope(kind: Activation, x: Floats) -> Floats:
    """Return act'(x). That of relu is 0 at 0."""
    match kind:
        case "relu":
            return (x > 0).astype(np.float64)
        case "gelu":
            return ndtr(x) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        case "tanh":
            return 1.0 - np.tanh(x) ** 2
        case _:
            return np.ones_like(x)


def loss(kind: Loss, f_PC: Floats, targets: NDArray[Any]) -> float:
    """Return the mean over samples of sum (f - y)^2, or of the cross entropy in nats, as the family `mlp` has them."""
    if kind == "squared_error":
        return float(np.mean(np.sum((f_PC - targets) ** 2, axis=1)))
    return -float(np.mean(log_softmax(f_PC, axis=1)[np.arange(len(f_PC)), targets]))


def by_outputs(kind: Loss, f_PC: Floats, targets: NDArray[Any]) -> Floats:
    """Return chi [P, C], the gradient of that mean by the outputs."""
    if kind == "squared_error":
        slopes: Floats = 2.0 * (f_PC - targets) / len(f_PC)
        return slopes
    p_PC: Floats = np.exp(log_softmax(f_PC, axis=1))
    p_PC[np.arange(len(f_PC)), targets] -= 1.0
    return p_PC / len(f_PC)


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


# The gates: the weights of the experts, and the gradient by the logits.
#
# Logits and weights are [P, M], for the M experts of regime I or for the sites of infinitely many. The active experts
# are constants in the backward pass (Why Routers Freeze, eqs. 376, 377 and 385).

Mask = NDArray[np.bool_]
_ROUNDING = 1e-9  # of a number of sites


@dataclass(frozen=True, kw_only=True, eq=False)
class Gated:
    """What a gate gives for the logits of a pass."""

    phi: Floats  # [P, M], 0 where an expert is not active
    scores: Floats  # [P, M], of all experts
    kind: Gate
    inverse_temperature: float

    def by_logits(self, by_phi: Floats) -> Floats:
        """Return the gradient by the logits, given the one by the weights."""
        if self.kind == "sigmoid":
            by_logits: Floats = by_phi * self.phi * (1 - self.scores)
        else:
            over = self.scores if self.kind == "softmax" else self.phi
            by_logits = by_phi * self.phi - over * np.sum(by_phi * self.phi, axis=1, keepdims=True)
        return self.inverse_temperature * by_logits


def gate(network: Network, logits: Floats, active: Mask | Floats | None) -> Gated:
    """Return the weights of the experts. The softmax of the papers' top-K is `normalized_softmax`.

    `active` says which are active, or which part of each site (`top_share`). None stands for all.
    """
    scaled = network.inverse_temperature * logits
    scores = expit(scaled) if network.gate == "sigmoid" else softmax(scaled, axis=1)
    if active is None:
        phi = scores
    elif network.gate == "normalized_softmax":
        phi = softmax(np.where(active, scaled, -np.inf), axis=1)
    else:
        phi = active * scores
    return Gated(phi=phi, scores=scores, kind=network.gate, inverse_temperature=network.inverse_temperature)


def largest(logits: Floats, count: int) -> Mask:
    """Return which `count` logits of each sample are the largest, [P, M]. Of equal ones the first are taken."""
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    out = np.zeros(logits.shape, bool)
    np.put_along_axis(out, chosen, True, axis=1)
    return out


def top_share(logits: Floats, share: float) -> Floats | None:
    """Return which part of each site is active, [P, sites], or None if all are.

    Sites stand for infinitely many experts, of which the `share` with the largest logits is active. That is hardly ever
    a whole number of sites, so one site is active in part.
    """
    if share == 1.0:
        return None
    count = share * logits.shape[1]
    whole = math.floor(count + _ROUNDING)
    order = np.argsort(-logits, axis=1, kind="stable")[:, : whole + 1]
    out = np.zeros(logits.shape)
    np.put_along_axis(out, order, 1.0, axis=1)
    np.put_along_axis(out, order[:, whole:], max(0.0, count - whole), axis=1)
    return out


def margin(logits: Floats, active: Mask) -> float:
    """Return the least gap, over samples, from the last chosen logit to the next. It is negative under another mask."""
    last = np.where(active, logits, np.inf).min(axis=1)
    following = np.where(active, -np.inf, logits).max(axis=1)
    return float(np.min(last - following))


# The training: forward and backward passes with updates between them. A regime has the experts.

# What every solver measures at each forward pass, with its meaning.
SERIES = {
    "loss": "mean loss of the batch",
    "gate_mean": "mean weight of an expert, over experts and samples",
    "gate_variance": "variance of the weights over experts, mean over samples",
    "logit_mean": "mean of the router's logits, over experts and samples",
    "logit_variance": "variance of the logits over experts, mean over samples",
    "h1_rms": "RMS of the features that the router reads",
    "h3_rms": "RMS of what the experts give after aggregation",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """What one solve gives at one forward pass: the outputs f [P, C], and a number per name of SERIES."""

    outputs: Floats
    numbers: Mapping[str, float]
    margin: float | None = None
    """Of top-K in regime I: the least gap, over samples, from the last chosen logit to the next."""


# A forward pass by its number: what it gives besides the loss, and the update by chi [P, C] = dL/df and an LR.
Forward = Callable[[int], tuple[Pass, Callable[[Floats, float], None]]]


def train(given: Given, forward: Forward) -> list[Pass]:
    """Return what is measured at every pass."""
    out = []
    for at, batch in enumerate(given.batches):
        found, update = forward(at)
        of_loss = {"loss": loss(given.loss, found.outputs, batch.targets)}
        out.append(replace(found, numbers={**of_loss, **found.numbers}))
        if at < given.num_updates:
            update(by_outputs(given.loss, found.outputs, batch.targets), given.lrs[at])
    return out


@dataclass(frozen=True, kw_only=True, eq=False)
class Routed:
    """What the experts of a network make of h1 [P, N]."""

    logits: Floats
    gated: Gated
    h3: Floats
    backward: Callable[[Floats, float], Floats]
    """Return N dL/dh1, given N dL/dh3 and an LR, with which the experts are updated."""
    margin: float | None = None


def mixture(
    network: Network, given: Given, wide: Space, tall: Space, make: Callable[[], Callable[[int, Floats], Routed]]
) -> Forward:
    """Return a network of one layer of experts. `wide` and `tall` are the spaces of h1 and of h3.

    `make` draws the experts, after the layers around them. Experts are given the number of a pass, and its h1.
    """
    layer, readout = InputLayer(network, given, wide), Readout(network, given.num_outputs, tall)
    experts = make()

    def forward(at: int) -> tuple[Pass, Callable[[Floats, float], None]]:
        h1, slope1 = layer.features(at)
        routed = experts(at, h1)
        phi, logits = routed.gated.phi, routed.logits
        numbers = {
            "gate_mean": float(np.mean(phi)),
            "gate_variance": float(np.mean(np.var(phi, axis=1))),
            "logit_mean": float(np.mean(logits)),
            "logit_variance": float(np.mean(np.var(logits, axis=1))),
            "h1_rms": rms(wide, h1),
            "h3_rms": rms(tall, routed.h3),
        }

        def update(chi: Floats, lr: float) -> None:
            z = routed.backward(chi @ readout.w, lr)
            readout.update(chi, routed.h3, lr)
            layer.update(at, z * slope1, lr)

        return Pass(outputs=readout.outputs(routed.h3), numbers=numbers, margin=routed.margin), update

    return forward
