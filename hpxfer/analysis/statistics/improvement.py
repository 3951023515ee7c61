"""Monotone improvement: at fixed HPs, does every larger shape do better? Paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.verdict import mean_interval


@dataclass(frozen=True, kw_only=True)
class Step:
    """The fall of the loss from one scale to the next, in nats, over the seeds that both have."""

    scale: float
    next_scale: float
    gain_nats: float
    low: float | None  # 95%; None with fewer than two common seeds
    high: float | None
    num_seeds: int

    @property
    def worse(self) -> bool:
        """Whether the larger shape is worse by more than the noise of seeds."""
        return self.high is not None and self.high < 0


@dataclass(frozen=True, kw_only=True)
class Improvement:
    """The steps along an axis at one HP. A step is left out if a trial diverged, or without a common seed."""

    axis: str = ""
    scale_name: str = ""
    parameterization: str = ""
    hp: str = ""
    value: float | None = None  # of the HP, the same at every scale
    scales: tuple[float, ...] = ()
    losses: tuple[float | None, ...] = ()  # nats, mean over seeds; None without a result, or if a seed diverged
    steps: tuple[Step, ...] = ()
    left_out: tuple[tuple[float, float], ...] = ()  # pairs of scales
    monotone: bool | None = None  # True if every step is surely a gain, False if one is surely a loss, None if unknown
    why_not: str | None = None


def improvement(
    scales: Sequence[float], losses: Sequence[Mapping[int, float]], blank: Improvement | None = None
) -> Improvement:
    """Return the steps between scales, in the fields of `blank` that say what they are of.

    `losses` holds one mapping per scale, from the seed to its loss in nats, +inf if it diverged.
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
        blank or Improvement(),
        scales=tuple(scales[i] for i in order),
        losses=tuple(_mean(losses[i]) for i in order),
        steps=tuple(steps),
        left_out=tuple(left_out),
        monotone=_monotone(steps, whole=not left_out),
        why_not=None if steps else "no two neighboring scales have finite losses of a common seed",
    )


def _improvements(inputs: Inputs) -> list[Improvement]:
    line, out = inputs.judged, list[Improvement]()
    if line is None:
        return out
    for finding in sorted(line.report.findings, key=lambda finding: finding.key):
        blank = Improvement(
            axis=finding.axis,
            scale_name=finding.scale_name,
            parameterization=finding.parameterization,
            hp=inputs.hp,
            value=finding.base_value,
        )
        if blank.value is None:
            out.append(replace(blank, why_not=NO_BASE_VALUE))
            continue
        rows = line.by_key[finding.key].grid.rows
        losses = [{} if (cell := row.cell(finding.base_value)) is None else cell.by_seed for row in rows]
        out.append(improvement([row.scale for row in rows], losses, blank))
    return out


def _monotone(steps: Sequence[Step], *, whole: bool) -> bool | None:
    if any(step.worse for step in steps):
        return False
    return True if steps and whole and all(step.low is not None and step.low > 0 for step in steps) else None


def _step(scale: float, next_scale: float, losses: Mapping[int, float], larger: Mapping[int, float]) -> Step | None:
    common = [seed for seed in losses if seed in larger]
    gains = np.array([losses[seed] - larger[seed] for seed in common])
    if not common or not all(math.isfinite(loss) for seed in common for loss in (losses[seed], larger[seed])):
        return None
    gain, low, high = mean_interval(gains)
    return Step(scale=scale, next_scale=next_scale, gain_nats=gain, low=low, high=high, num_seeds=len(gains))


def _mean(losses: Mapping[int, float]) -> float | None:
    values = list(losses.values())
    return float(np.mean(values)) if values and all(map(math.isfinite, values)) else None


IMPROVEMENT = Statistic(
    name="improvement",
    title="Does a larger model always win?",
    note="Gain in nats from one scale to the next at the same HPs, paired over seeds; 95% intervals. Monotone: yes if "
    "every step is surely a gain, no if one is surely a loss, empty if the seeds do not tell.",
    compute=_improvements,
    parts="steps",
    answer="monotone",
    of_lines=True,
)
