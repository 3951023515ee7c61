"""The metrics of a run: the steps at which they are logged, and the curves that they become."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpxfer.trial.result import Curve

LOSS_HEAD = 100  # the loss of each of the first steps, where curves of different shapes should collapse
LOSS_POINTS = 256  # the losses of all later steps
BALANCE_POINTS = 64
PROBE_POINTS = 8  # of gradient and update RMS

Key = tuple[str, int | None, str | None]  # metric, layer, role
# The steps of a metric, and the values of all trials at each of them.
Series = dict[Key, tuple[list[int], list[list[float]]]]


def spaced(first: int, stop: int, points: int) -> list[int]:
    """Return at most `points` evenly spaced steps of [first, stop), both ends included."""
    count = stop - first
    if count <= points:
        return list(range(first, stop))
    return sorted({first + round(k * (count - 1) / (points - 1)) for k in range(points)})


@lru_cache(maxsize=64)  # every trial of a stack asks, at every report
def loss_steps(steps: int) -> tuple[int, ...]:
    """Return the steps whose training loss is logged, ascending."""
    head = min(steps, LOSS_HEAD)
    return (*range(head), *spaced(head, steps, LOSS_POINTS))


def error_steps(steps: int, window: int) -> set[int]:
    """Return the steps at which the error of a batch of samples is logged.

    These are those of the loss, and of the final `window`, over which it is averaged, the last LOSS_HEAD steps.
    """
    return {*loss_steps(steps), *range(max(0, steps - min(window, LOSS_HEAD)), steps)}


def balance_steps(steps: int) -> set[int]:
    """Return the steps at which load deviation and router entropy are logged."""
    return set(spaced(0, steps, BALANCE_POINTS))


def probe_steps(steps: int) -> set[int]:
    """Return the few steps at which gradient and update RMS are logged, in even ratios from first to last."""
    last = steps - 1
    ratio = (last + 1) ** (1 / max(1, PROBE_POINTS - 1))
    return {min(last, math.ceil(ratio**k) - 1) for k in range(PROBE_POINTS)} | {last}


class MetricLog:
    """Collects (metric, layer, role) -> values of all K trials by step, and returns the curves of each trial.

    What is added stays on its device until `fetch`, so that no step waits for it.
    """

    def __init__(self, num_trials: int) -> None:
        self._num_trials = num_trials
        self._series: Series = {}
        self._waiting: list[tuple[Key, int, Tensor, tuple[int, ...]]] = []

    def add(
        self,
        step: int,
        metric: str,
        values: Tensor,
        trials: Sequence[int],
        *,
        layer: int | None = None,
        role: str | None = None,
    ) -> None:
        """Add one value for each of these trials. The other trials get none."""
        self._waiting.append(((metric, layer, role), step, values, tuple(trials)))

    def fetch(self) -> None:
        """Copy to the host what has been added."""
        for key, step, values, trials in self._waiting:
            row = [math.nan] * self._num_trials
            for trial, value in zip(trials, values.tolist(), strict=True):
                row[trial] = value
            steps, rows = self._series.setdefault(key, ([], []))
            steps.append(step)
            rows.append(row)
        self._waiting.clear()

    @property
    def series(self) -> Series:
        """The metrics that have been fetched."""
        return self._series

    def resume(self, series: Series, trials: Sequence[int]) -> None:
        """Continue from the metrics of an earlier run, whose trials `trials` are those of this log."""
        for key, (steps, rows) in series.items():
            self._series[key] = list(steps), [[row[trial] for trial in trials] for row in rows]

    def curves(self, trial: int, before: int | None, first: int = 0) -> tuple[Curve, ...]:
        """Return the finite values of one trial as curves: from step `first`, and before step `before`, where it
        diverged.
        """
        out = []
        for (metric, layer, role), (steps, rows) in self._series.items():
            part = slice(bisect_left(steps, first), None if before is None else bisect_left(steps, before))
            kept = [
                (step, row[trial])
                for step, row in zip(steps[part], rows[part], strict=True)
                if math.isfinite(row[trial])
            ]
            if kept:
                at, values = zip(*kept, strict=True)
                out.append(Curve(metric=metric, layer=layer, role=role, steps=at, values=values))
        return tuple(out)


def loss_curve(losses_N: NDArray[np.float64], stop: int, first: int = 0) -> Curve | None:
    """Return the logged part of a trial's training loss, [N] of all N steps: from step `first`, and before `stop`."""
    logged = loss_steps(len(losses_N))
    steps = logged[bisect_left(logged, first) : bisect_left(logged, stop)]
    if not steps:
        return None
    return Curve(metric="train_loss_nats", steps=steps, values=tuple(losses_N[list(steps)].tolist()))


def rms_by_role(
    squares: Mapping[str, Tensor], counts: Mapping[str, int], roles: Mapping[str, str]
) -> dict[str, Tensor]:
    """Return role -> RMS [K]. The mappings are by parameter: sum of squares [K], elements per trial, and role."""
    by_role: dict[str, tuple[int, Tensor]] = {}
    for name, sum_K in squares.items():
        count, total = by_role.get(roles[name], (0, torch.zeros_like(sum_K)))
        by_role[roles[name]] = (count + counts[name], total + sum_K)
    return {role: (total / count).sqrt() for role, (count, total) in by_role.items()}
