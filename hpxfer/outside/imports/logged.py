"""A run as a tracker holds it: its HPs, and the raw points of its metrics. Never a smoothed or sampled curve."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpxfer.errors import HpxferError

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


def library(module: str, extra: str) -> Any:
    """Return a module of a tracker's library. Raise HpxferError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise HpxferError(
            f"{extra}: {extra} must be installed, got: {error}; `pip install 'hpxfer[{extra}]'`"
        ) from None
