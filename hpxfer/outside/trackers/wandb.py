"""The runs of a project of Weights & Biases.

`history()` of its client returns a sample of 500 rows, which differs from call to call, so nothing here calls it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host import library
from hpxfer.outside.trackers.logged import LoggedRun, Point, reading

PAGE = 10_000  # rows of a history per request
_WORDS = {"nan": math.nan, "infinity": math.inf, "inf": math.inf, "-infinity": -math.inf, "-inf": -math.inf}


def wandb_runs(project: str) -> list[LoggedRun]:
    """Return the runs of `ENTITY/PROJECT`, the oldest first. Raise HpxferError if they cannot be read."""
    if project.count("/") != 1:
        raise HpxferError(f"wandb:{project}: must be wandb:ENTITY/PROJECT")
    with reading(f"wandb:{project}: wandb cannot read it"):
        return [_run(run) for run in library("wandb", "wandb").Api().runs(project, order="+created_at")]


def _run(run: Any) -> LoggedRun:
    summary = {key: number for key, value in _flat(run.summary).items() if (number := _number(value)) is not None}
    metrics = tuple(key for key in summary if not key.startswith("_"))
    points = partial(_points, run, summary)
    return LoggedRun(
        id=run.id, name=run.name, config=_flat(run.config), state=run.state, metrics=metrics, points=points
    )


def _flat(config: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """Return a config with nested keys joined by dots, e.g. `optimizer.lr`."""
    out: dict[str, Any] = {}
    for key, value in dict(config).items():
        out |= _flat(value, f"{start}{key}.") if isinstance(value, Mapping) else {f"{start}{key}": value}
    return out


def _points(run: Any, summary: Mapping[str, float], metric: str) -> list[Point]:
    """Return the whole history of a metric. If the server gives none of it, the summary holds the last point."""
    for keys in ({"keys": ["_step", metric]}, {}):  # asked by its keys, some servers return nothing
        found = [
            Point(step=float(row["_step"]), value=value, time=float(row["_step"]))
            for row in run.scan_history(page_size=PAGE, **keys)
            if row.get("_step") is not None and (value := _number(row.get(metric))) is not None
        ]
        if found:
            return found
    last, step = summary.get(metric), summary.get("_step")
    return [] if last is None or step is None else [Point(step=step, value=last, time=step)]


def _number(value: Any) -> float | None:
    """Return a number; wandb writes those that are not finite as words."""
    if isinstance(value, str):
        return _WORDS.get(value.lower())
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
