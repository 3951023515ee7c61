"""Time: which trials of a round the worker hours of a search still buy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from hpxfer.model.cost import relative_cost
from hpxfer.scaling.shape import Shape
from hpxfer.search.protocol import Outcome
from hpxfer.trial import Trial


def affordable(
    trials: Sequence[Trial],
    earlier: Sequence[Trial],
    outcomes: Mapping[str, Outcome],
    hours: float | None,
) -> tuple[Trial, ...]:
    """Return the first of the trials, as many as fit into what the earlier ones left of the hours.

    A trial is expected to take as long as the median one of its shape. At a shape that has none, it is expected to take
    as long per FLOP as at the largest measured shape, or per token with a user's own trainer. Without any measured
    time, every trial fits.
    """
    if hours is None:
        return tuple(trials)
    left = 3600 * hours - math.fsum(outcomes[trial.id].seconds or 0.0 for trial in earlier)
    costs = {trial.shape: relative_cost(trial.shape, trial.setting) for trial in (*trials, *earlier)}
    measured = _medians(earlier, outcomes)
    if not measured:
        return tuple(trials)
    largest = max(measured, key=costs.__getitem__)
    rate = measured[largest] / costs[largest]
    out = []
    for trial in trials:
        left -= measured.get(trial.shape, rate * costs[trial.shape])
        if left < 0:
            break
        out.append(trial)
    return tuple(out)


def _medians(trials: Sequence[Trial], outcomes: Mapping[str, Outcome]) -> dict[Shape, float]:
    """Return shape -> the median seconds of its trials whose time was measured."""
    found: dict[Shape, list[float]] = {}
    for trial in trials:
        seconds = outcomes[trial.id].seconds
        if seconds is not None:
            found.setdefault(trial.shape, []).append(seconds)
    return {shape: statistics.median(of_shape) for shape, of_shape in found.items()}
