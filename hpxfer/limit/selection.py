"""Selection: which experts top-K takes in regime I without a bias, a distribution over seeds.

All logits are equal in the limit. At width N they differ by N^-1/2 times Gaussian numbers, so top-K chooses by these at
every width. They are independent over experts, and their covariance over samples is <h1, h1'>, the average over
coordinates of what the router reads (Why Routers Freeze, Prop. 4 and Theorem 28). A linear input layer has x . x'.

Letters: m experts, K active ones, P samples, T + 1 passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpxfer.limit.layers import InputLayer, Mask, largest, rank
from hpxfer.limit.matrix import Coefficients, Noise, Sites
from hpxfer.limit.network import Floats, Given, Network

# Gaussian numbers from which an overlap is averaged: an error of 0.001 or less.
NUMBERS = 2**19
# Angles at which overlaps are averaged. Of more pairs they are interpolated, with an error below 0.0005.
ANGLES = 49
# Sites of an input layer with an activation.
_SITES = 2**14


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """What top-K does at initialization, over seeds."""

    num_sets: int
    """The sets of K experts. A sample has each of them with the same probability, at every width."""
    overlaps: Floats
    """[P, P]: the expected share of the experts of one sample that another one has too, by the cosine of their h1."""

    def to_dict(self) -> dict[str, Any]:
        return {"set_probability": 1 / self.num_sets, "overlaps": self.overlaps.tolist()}


def first_features(network: Network, given: Given) -> tuple[Floats, ...]:
    """Return h1 of every pass before any update, [P, coordinates] each."""
    linear, directions = network.input_activation == "linear", rank(given)
    layer = InputLayer(network, given, Coefficients(directions) if linear else Sites(Noise(_SITES, directions, 0, 0)))
    found = {id(batch): at for at, batch in enumerate(given.batches)}  # one batch may serve many passes
    features = {name: layer.features(at)[0] for name, at in found.items()}
    return tuple(features[id(batch)] for batch in given.batches)


def selection(h1: Floats, num_experts: int, num_active: int) -> Selection:
    """Return the distribution of the active experts of samples with features h1 [P, coordinates]."""
    lengths = np.linalg.norm(h1, axis=1, keepdims=True)
    unit = np.divide(h1, lengths, out=np.zeros_like(h1), where=lengths > 0)
    cosines = np.clip(unit @ unit.T, -1.0, 1.0)
    angles = np.arccos(cosines)
    pairs = np.triu_indices(len(h1), 1)
    nodes = np.unique(angles[pairs]) if len(pairs[0]) <= ANGLES else np.linspace(0.0, np.pi, ANGLES)
    overlaps = np.eye(len(h1))
    if len(nodes):
        at_nodes = [expected_overlap(math.cos(angle), num_experts, num_active) for angle in nodes]
        overlaps[pairs] = np.interp(angles[pairs], nodes, at_nodes)
        overlaps.T[pairs] = overlaps[pairs]
    return Selection(num_sets=math.comb(num_experts, num_active), overlaps=overlaps)


def expected_overlap(cosine: float, num_experts: int, num_active: int) -> float:
    """Return the expected share of its K experts that a sample has in common with another one at this cosine."""
    rng = np.random.default_rng(0)
    draws = NUMBERS // num_experts
    first, other = rng.standard_normal((2, draws, num_experts))
    second = cosine * first + math.sqrt(max(0.0, 1 - cosine**2)) * other
    both = largest(first, num_active) & largest(second, num_active)
    return float(both.sum() / (draws * num_active))


def draw(h1: Sequence[Floats], num_experts: int, num_active: int, seed: int) -> tuple[Mask, ...]:
    """Return which experts a seed draws for every sample, [P, m] per pass. A sample keeps its experts in all passes.
    `h1` are the features of every pass at initialization.

    That is a network whose choice is held. A free one draws again after the first update: all logits stay equal until
    the second one, and what the first one adds to their fluctuations is as large as these are.
    """
    gaussian = np.random.default_rng(seed).standard_normal((h1[0].shape[1], num_experts))
    return tuple(largest(each @ gaussian, num_active) for each in h1)
