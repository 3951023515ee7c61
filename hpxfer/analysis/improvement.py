"""Monotone improvement: at fixed HPs, does every larger shape do better? Paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import stats

from hpxfer.analysis.thresholds import CONFIDENCE


@dataclass(frozen=True, kw_only=True)
class Step:
    """From one scale to the next: by how much the loss falls, in nats, over the seeds that both have."""

    scale: float
    next_scale: float
    gain_nats: float
    low: float | None  # 95%; None with fewer than two common seeds
    high: float | None
    num_seeds: int

    @property
    def worse(self) -> bool:
        """True if the larger shape is worse beyond the seeds' noise."""
        return self.high is not None and self.high < 0


@dataclass(frozen=True, kw_only=True)
class Improvement:
    """The steps along an axis at one HP. A diverged trial, or no common seed, leaves a step out."""

    steps: tuple[Step, ...]
    left_out: tuple[tuple[float, float], ...]  # pairs of scales

    @property
    def monotone(self) -> bool | None:
        """Return False if a step is surely worse, True if all are surely better, None if seeds do not tell."""
        if any(step.worse for step in self.steps):
            return False
        sure = all(step.low is not None and step.low > 0 for step in self.steps)
        return True if self.steps and sure and not self.left_out else None


def improvement(scales: Sequence[float], losses: Sequence[Mapping[int, float]]) -> Improvement:
    """Return the steps between scales in ascending order; `losses` are each scale's by seed, in nats."""
    order = sorted(range(len(scales)), key=lambda i: scales[i])
    steps, left_out = [], []
    for i, j in pairwise(order):
        one, two = losses[i], losses[j]
        common = [seed for seed in one if seed in two]
        gains = np.array([one[seed] - two[seed] for seed in common])
        if not common or not all(math.isfinite(loss) for seed in common for loss in (one[seed], two[seed])):
            left_out.append((scales[i], scales[j]))
            continue
        half = None
        if len(gains) > 1:
            t = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(gains) - 1))
            half = t * float(np.std(gains, ddof=1)) / math.sqrt(len(gains))
        gain = float(gains.mean())
        steps.append(
            Step(
                scale=scales[i],
                next_scale=scales[j],
                gain_nats=gain,
                low=None if half is None else gain - half,
                high=None if half is None else gain + half,
                num_seeds=len(gains),
            )
        )
    return Improvement(steps=tuple(steps), left_out=tuple(left_out))
