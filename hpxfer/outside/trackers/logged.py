"""A run as a tracker holds it, the metric that is its loss, and how its points become one number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpxfer.errors import HpxferError, nearest, shown

REDUCES = ("last", "tail")
TAIL_SHARE = 0.05  # of the raw points, whose mean is the loss of a metric that is noisy from step to step
SMOOTHED = re.compile(r"smooth|ema\b|_ema|\bavg|average|running", re.IGNORECASE)
HELD_OUT = re.compile(r"(^|[^a-z])(val|valid|validation|eval|dev|test|held_?out)([^a-z]|$)", re.IGNORECASE)
LOSS = re.compile(r"(^|[^a-z])(loss|nll|ce|cross_?entropy|bpb)([^a-z]|$)", re.IGNORECASE)
_MEASURED = ("validation_loss_nats", "final_window_loss_nats")  # what hpxfer's own loggers write when a trial ends


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The metric that is the loss. `last` takes its last point, `tail` the mean of its last 5% of raw points."""

    metric: str
    reduce: str
    why: str  # in words

    @property
    def how(self) -> str:
        return "its last point" if self.reduce == "last" else f"the mean of its last {TAIL_SHARE:.0%} of raw points"


def choose_loss(runs: Sequence[LoggedRun], metric: str | None, reduce: str | None, where: str) -> Loss:
    """Return the loss: the metric that the user names, else the only held-out loss, else the only training loss.

    Raises HpxferError, with what there is, if that is not exactly one.
    """
    if reduce not in (None, *REDUCES):
        raise HpxferError(f"--reduce: unknown choice {shown(reduce)}; {nearest(str(reduce), REDUCES)}")
    there = sorted({name for run in runs for name in run.metrics})
    if metric is not None and metric not in there:
        raise HpxferError(f"{where}: --metric: no run has {shown(metric)}; {nearest(metric, there)}")
    chosen, why = (metric, "as named") if metric is not None else _only(there, where)
    usual = "last" if chosen == _MEASURED[1] or HELD_OUT.search(chosen) else "tail"
    return Loss(metric=chosen, reduce=reduce or usual, why=why)


def _only(there: Sequence[str], where: str) -> tuple[str, str]:
    raw = [name for name in there if LOSS.search(name) and not SMOOTHED.search(name)]
    for own in _MEASURED:
        if own in raw:
            return own, "as hpxfer's own runs write it"
    held_out = [name for name in raw if HELD_OUT.search(name)]
    for names, why in ((held_out, "the only held-out loss"), (raw, "the only loss, of training, as none is held out")):
        if len(names) == 1:
            return names[0], why
        if names:
            raise HpxferError(
                f"{where}: one metric must be the loss, got {', '.join(map(shown, names[:20]))}; name it with --metric"
            )
    listed = ", ".join(map(shown, there[:50])) or "none"
    raise HpxferError(f"{where}: no metric looks like a loss; name it with --metric; the metrics are {listed}")


# MLflow's stores hold an infinite value as the largest float64, or close to it.
INFINITE = 1e300


@dataclass(frozen=True, kw_only=True)
class Point:
    """A value of a metric. `time` orders points of a step; equal units within a run."""

    step: float
    value: float
    time: float


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """One run. `state` is what the tracker says of how it ended, which may be wrong."""

    id: str
    name: str
    config: Mapping[str, Any]
    state: str
    metrics: tuple[str, ...]
    points: Callable[[str], Sequence[Point]]  # every raw point of a metric


def newest(points: Iterable[Point]) -> list[Point]:
    """Return the points without those that a restart trained again, by step.

    A run that goes on from step 50 after it had reached step 80 makes its old points from step 50 on void, also where
    the new ones end earlier.
    """
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.time, point.step)):
        while kept and kept[-1].step >= point.step:
            kept.pop()
        kept.append(point)
    return kept


def flat(config: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """Return a config with nested keys joined by dots, e.g. `optimizer.lr`."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{start}{key}.")
        else:
            out[f"{start}{key}"] = value
    return out
