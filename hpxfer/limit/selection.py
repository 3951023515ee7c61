"""Selection: which experts top-K takes in regime I without a bias, a distribution over seeds.

All logits are equal in the limit. At width N they differ by N^-1/2 times Gaussian numbers, so top-K chooses by these at
every width. They are independent over experts, and their covariance over samples is x . x' (Why Routers Freeze, Prop. 4
and Theorem 28).

Letters: m experts, K active ones, P samples, T + 1 passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpxfer.limit.gates import Mask, largest
from hpxfer.limit.given import Floats, Given
from hpxfer.limit.layers import coordinates

# Draws of the Gaussian numbers from which overlaps are averaged: an error of 0.001 or less.
DRAWS = 2**17


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """What top-K does at initialization, over seeds."""

    num_sets: int
    """The sets of K experts. A sample has each of them with the same probability, at every width."""
    overlaps: Floats
    """[P, P]: the expected share of the experts of one sample that another one has too. It depends on their cosine."""

    def to_dict(self) -> dict[str, Any]:
        return {"set_probability": 1 / self.num_sets, "overlaps": self.overlaps.tolist()}


def selection(inputs: Floats, num_experts: int, num_active: int) -> Selection:
    """Return the distribution of the active experts of samples [P, D]."""
    lengths = np.linalg.norm(inputs, axis=1, keepdims=True)
    unit = np.divide(inputs, lengths, out=np.zeros_like(inputs), where=lengths > 0)
    cosines = np.clip(unit @ unit.T, -1.0, 1.0)
    overlaps = np.eye(len(inputs))
    for a, b in zip(*np.triu_indices(len(inputs), 1), strict=True):
        overlaps[a, b] = overlaps[b, a] = expected_overlap(float(cosines[a, b]), num_experts, num_active)
    return Selection(num_sets=math.comb(num_experts, num_active), overlaps=overlaps)


def expected_overlap(cosine: float, num_experts: int, num_active: int) -> float:
    """Return the expected share of its K experts that a sample has in common with another one at this cosine."""
    rng = np.random.default_rng(0)
    first, other = rng.standard_normal((2, DRAWS, num_experts))
    second = cosine * first + math.sqrt(max(0.0, 1 - cosine**2)) * other
    both = largest(first, num_active) & largest(second, num_active)
    return float(both.sum() / (DRAWS * num_active))


def draw(given: Given, num_experts: int, num_active: int, seed: int) -> tuple[Mask, ...]:
    """Return which experts a seed draws for every sample, [P, m] per pass. A sample keeps its experts in all passes.

    That is a network whose choice is held. A free one draws again after the first update: all logits stay equal until
    the second one, and what the first one adds to their fluctuations is as large as these are.
    """
    by_pass = coordinates(given)
    gaussian = np.random.default_rng(seed).standard_normal((by_pass[0].shape[1], num_experts))
    return tuple(largest(x @ gaussian, num_active) for x in by_pass)
