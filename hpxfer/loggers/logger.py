"""Logger: the protocol between a run and what shows its curves elsewhere, and the points that it takes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from hpxfer.trial.result import Curve, Status, TrialResult

# Step -> metric -> value, by ascending steps. A metric is e.g. `train_loss_nats` or `grad_rms/router`.
StepValues = Mapping[int, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Place:
    """The run of a sweep, for which a logger is made."""

    sweep: str  # the name that groups its trials
    results: str  # the absolute path or the URI of its results
    folder: Path  # where a logger may keep files, on this disk
    writing: Callable[[], AbstractContextManager[None]]  # entered for every write below the folder; raises HpxferError


@dataclass(frozen=True, kw_only=True)
class LoggedTrial:
    """A trial as a logger shows it. The name is unique in its sweep, and is a legal relative path."""

    id: str
    name: str  # e.g. `completep-moe/width=128/lr=2^-7/seed=1`
    config: Mapping[str, float | int | str]  # HPs, shape, parameterization, seed, steps


@dataclass(frozen=True, kw_only=True)
class Final:
    """How the training of a trial ended. An interrupted trial has no numbers: it is opened again when it goes on."""

    status: Status | Literal["interrupted"]
    step: int = 0  # at which the numbers are shown
    values: Mapping[str, float]  # e.g. `validation_loss_nats`; those that the trial has


class OpenTrial(Protocol):
    """A trial whose curves are being logged."""

    def log(self, points: StepValues) -> None:
        """Write points, so that they can be seen at once. Steps ascend from call to call; none comes twice."""

    def close(self, final: Final) -> None:
        """Write how the trial ended. Nothing follows."""


class Logger(Protocol):
    """Shows trials. All calls come from one thread, which training does not wait for. Any exception ends the logger."""

    def open(self, trial: LoggedTrial) -> OpenTrial:
        """Begin to log a trial from its step 0, in the place of what an earlier run has logged of it."""


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
