"""Monotone improvement: at fixed HPs, does every larger shape do better? Paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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

    axis: str = ""
    scale_name: str = ""
    parameterization: str = ""
    hp: str = ""
    value: float | None = None  # of the HP, the same at every scale
    scales: tuple[float, ...] = ()
    losses: tuple[float | None, ...] = ()  # nats, mean over seeds; None where one diverged or none has a result
    steps: tuple[Step, ...] = ()
    left_out: tuple[tuple[float, float], ...] = ()  # pairs of scales
    monotone: bool | None = None  # False if a step is surely worse, True if all are surely better, else not told
    why_not: str | None = None


NOWHERE = Improvement()


def improvement(
    scales: Sequence[float], losses: Sequence[Mapping[int, float]], bare: Improvement = NOWHERE
) -> Improvement:
    """Return `bare` with the steps between scales.

    `losses` are each scale's by seed, in nats, +inf for a diverged one.
    """
    order = sorted(range(len(scales)), key=lambda i: scales[i])
    steps, left_out = [], []
    for i, j in pairwise(order):
        step = _step(scales[i], scales[j], losses[i], losses[j])
        if step is None:
            left_out.append((scales[i], scales[j]))
        else:
            steps.append(step)
    return replace(
        bare,
        scales=tuple(scales[i] for i in order),
        losses=tuple(_mean(losses[i]) for i in order),
        steps=tuple(steps),
        left_out=tuple(left_out),
        monotone=_monotone(steps, whole=not left_out),
        why_not=None if steps else "no two neighboring scales have finite losses of a common seed",
    )


def _monotone(steps: Sequence[Step], *, whole: bool) -> bool | None:
    if any(step.worse for step in steps):
        return False
    return True if steps and whole and all(step.low is not None and step.low > 0 for step in steps) else None


def _step(scale: float, next_scale: float, one: Mapping[int, float], two: Mapping[int, float]) -> Step | None:
    common = [seed for seed in one if seed in two]
    gains = np.array([one[seed] - two[seed] for seed in common])
    if not common or not all(math.isfinite(loss) for seed in common for loss in (one[seed], two[seed])):
        return None
    half = None
    if len(gains) > 1:
        t = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(gains) - 1))
        half = t * float(np.std(gains, ddof=1)) / math.sqrt(len(gains))
    gain = float(gains.mean())
    return Step(
        scale=scale,
        next_scale=next_scale,
        gain_nats=gain,
        low=None if half is None else gain - half,
        high=None if half is None else gain + half,
        num_seeds=len(gains),
    )


def _mean(losses: Mapping[int, float]) -> float | None:
    values = list(losses.values())
    return float(np.mean(values)) if values and all(map(math.isfinite, values)) else None
