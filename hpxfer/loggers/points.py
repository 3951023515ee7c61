"""The points of curves as loggers take them: by step, and each once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace

from hpxfer.loggers.logger import Final, StepValues
from hpxfer.trial.result import Curve, TrialResult

# The fields of a result that are shown beside its status.
_FINAL = (
    *("validation_loss_nats", "final_window_loss_nats", "validation_error", "validation_top5_error"),
    *("last_finite_loss_nats", "diverged_step"),
)


def metric_of(curve: Curve) -> str:
    """Return the name of a curve, e.g. `train_loss_nats`, `grad_rms/router` or `load_deviation/layer1`."""
    parts = (curve.metric, curve.role, None if curve.layer is None else f"layer{curve.layer}")
    return "/".join(part for part in parts if part is not None)


def since(curves: Iterable[Curve], first: int) -> tuple[Curve, ...]:
    """Return the curves from step `first` on, without those that have no point there."""
    out = []
    for curve in curves:
        start = bisect_left(curve.steps, first)
        if start < len(curve.steps):
            out.append(replace(curve, steps=curve.steps[start:], values=curve.values[start:]) if start else curve)
    return tuple(out)


def by_step(curves: Iterable[Curve]) -> StepValues:
    """Return the points of curves by ascending step."""
    out: dict[int, dict[str, float]] = {}
    for curve in curves:
        metric = metric_of(curve)
        for step, value in zip(curve.steps, curve.values, strict=True):
            out.setdefault(step, {})[metric] = value
    return dict(sorted(out.items()))


def final_of(result: TrialResult, steps: int) -> Final:
    """Return how a trial of so many steps ended. Its numbers stand at the step at which its training ended."""
    values = {name: float(value) for name in _FINAL if (value := getattr(result, name)) is not None}
    step = steps if result.diverged_step is None else result.diverged_step
    return Final(status=result.status, step=step, values=values)
