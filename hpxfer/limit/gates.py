"""The gates: the weights of the experts, and the gradient by the logits.

Logits and weights are [P, M], for the M experts of regime I or for the sites of infinitely many. The active experts are
constants in the backward pass (Why Routers Freeze, eqs. 376, 377 and 385).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from hpxfer.limit.given import Floats
from hpxfer.limit.network import Gate, Network

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
