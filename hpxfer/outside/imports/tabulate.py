"""The table of logged runs. Whether a run finished is read from its steps: what a tracker says of it may be wrong."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hpxfer.errors import HpxferError, first_line, nearest, shown
from hpxfer.outside.columns import COLUMNS
from hpxfer.outside.imports.choices import TAIL_SHARE, Loss, choose_loss
from hpxfer.outside.imports.logged import INFINITE, LoggedRun, Point, newest, plain
from hpxfer.outside.runs import STATES
from hpxfer.verdict.labels import scale_text

MADE = ("loss", "status", "run_id", "steps", "loss_name")  # columns that are made of points, never of HPs
SHOWN = 5  # runs named per note


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The table, and what was chosen, assumed and dropped."""

    frame: pd.DataFrame
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Measured:
    run: LoggedRun
    config: Mapping[str, Any]
    points: Sequence[Point]

    @property
    def steps(self) -> float:
        return self.points[-1].step


def tabulate(
    runs: Sequence[LoggedRun],
    *,
    where: str,
    columns: Mapping[str, str],
    keep: Sequence[str] = (),
    metric: str | None = None,
    reduce: str | None = None,
    pattern: str | None = None,
    steps: int | None = None,
) -> Imported:
    """Return the table of runs, with a row for each.

    - `columns` maps a column of the table to the key of a run's config, e.g. `{"value": "lr", "scale": "width"}`.
      `keep` are keys that become columns of their own name, such as dimensions of a shape.
    - `pattern` is a regular expression whose named groups are keys too, read from the name of a run.
    - `metric` and `reduce`: see `choose_loss`.
    - `steps` is where a run has finished; by default the last step that any run of its shape reached.

    Raises HpxferError if there is nothing to put into the table.
    """
    for name in columns:
        if name not in COLUMNS or name in MADE:
            raise HpxferError(
                f"{where}: --map: unknown column {shown(name)}; {nearest(name, [c for c in COLUMNS if c not in MADE])}"
            )
    if "value" not in columns:
        raise HpxferError(f"{where}: --map value=KEY: must name the HP that is scanned, e.g. --map value=lr")
    if not runs:
        raise HpxferError(f"{where}: must hold at least one run, got none; name another source")
    loss = choose_loss(runs, metric, reduce, where)
    configs = [{**run.config, **_named(run.name, pattern)} for run in runs]
    wanted = [*columns.values(), *keep]
    keys = sorted({key for config in configs for key in config})
    if unknown := [key for key in wanted if key not in keys]:
        raise HpxferError(f"{where}: no run has the key {shown(unknown[0])}; {nearest(unknown[0], keys)}")
    notes = [f"loss: {loss.metric}, {loss.why}: {_reduced(loss)}"]
    others = sorted({name for run in runs for name in run.metrics} - {loss.metric})
    notes += [f"metrics left out: {_listed(others)}"] if others else []
    whole = [pair for pair in zip(runs, configs, strict=True) if all(key in pair[1] for key in wanted)]
    if lacking := [run for run, config in zip(runs, configs, strict=True) if not all(key in config for key in wanted)]:
        notes.append(f"dropped, as a key is missing: {_names(lacking)}")
    measured = [
        _Measured(run=run, config=config, points=points)
        for run, config in whole
        if (points := newest(_history(run, loss.metric, where)))
    ]
    there = {id(one.run) for one in measured}
    if silent := [run for run, _ in whole if id(run) not in there]:
        notes.append(f"dropped, as they have no point of {loss.metric}: {_names(silent)}")
    if not measured:
        raise HpxferError(f"{where}: no run has the keys {', '.join(wanted)} and a point of {loss.metric}; {notes[-1]}")
    shape_keys = [columns[name] for name in ("axis", "scale", "shape") if name in columns] + list(keep)
    ends = _ends(measured, shape_keys, steps)
    rows, of_status = _rows(measured, columns, keep, loss, ends)
    return Imported(frame=pd.DataFrame(rows), notes=(*notes, *of_status))


def _history(run: LoggedRun, metric: str, where: str) -> Sequence[Point]:
    """Return the raw points of a metric. Raise HpxferError if the tracker does not give them."""
    try:
        return run.points(metric)
    except Exception as error:  # whatever a tracker's client or the network say
        raise HpxferError(
            f"{where}: run {shown(run.name or run.id)}: the history of {metric} cannot be read: {first_line(error)}; "
            "try again, or name another metric"
        ) from None


def _named(name: str, pattern: str | None) -> dict[str, str]:
    """Return the named groups of a pattern in the name of a run."""
    if pattern is None:
        return {}
    try:
        found = re.search(pattern, name)
    except re.error as error:
        raise HpxferError(f"--pattern: must be a regular expression, got {shown(pattern)}: {error}") from None
    return {key: text for key, text in found.groupdict().items() if text is not None} if found else {}


def _ends(measured: Sequence[_Measured], keys: Sequence[str], steps: int | None) -> list[float]:
    """Return for each run the step at which it has finished. Runs that diverged do not say where that is."""
    shapes = [tuple(str(plain(one.config[key])) for key in keys) for one in measured]
    last: dict[tuple[str, ...], float] = {}
    for shape, one in zip(shapes, measured, strict=True):
        last[shape] = max(last.get(shape, -math.inf), one.steps)
    return [last[shape] if steps is None else float(steps) for shape in shapes]


def _rows(
    measured: Sequence[_Measured], columns: Mapping[str, str], keep: Sequence[str], loss: Loss, ends: Sequence[float]
) -> tuple[list[dict[str, Any]], list[str]]:
    rows, lied = [], Counter[str]()
    for one, end in zip(measured, ends, strict=True):
        value = _value(one.points, loss)
        said = STATES.get(one.run.state.lower(), "failed")
        ended_well = said == "finished"
        if value == math.inf:
            status = "diverged"
        elif one.steps >= end:
            status = "finished"
            lied[
                "reached the last step, so they count as finished, though the tracker says otherwise"
            ] += not ended_well
        else:
            status = "running" if said in ("finished", "running") else "failed"
            lied[f"ended before step {scale_text(end)}, so they do not count, though called finished"] += ended_well
        rows.append(
            {
                **{name: plain(one.config[key]) for name, key in columns.items()},
                **({} if "hp" in columns else {"hp": columns["value"]}),
                **({} if "axis" in columns or "scale" not in columns else {"axis": columns["scale"]}),
                **{key: plain(one.config[key]) for key in keep},
                "loss": None if status in ("running", "failed") else value,
                "status": status,
                "run_id": one.run.id,
                "steps": one.steps,
                "loss_name": loss.metric,
            }
        )
    counts = Counter(row["status"] for row in rows)
    notes = [f"{len(rows)} runs: {', '.join(f'{num} {status}' for status, num in sorted(counts.items()))}"]
    return rows, notes + [f"{num} runs {what}" for what, num in lied.items() if num]


def _value(points: Sequence[Point], loss: Loss) -> float:
    """Return the loss of a run, +inf if a point that it rests on is not finite."""
    num = 1 if loss.reduce == "last" else max(1, math.ceil(TAIL_SHARE * len(points)))
    values = [point.value for point in points[-num:]]
    if any(not math.isfinite(value) or abs(value) >= INFINITE for value in values):
        return math.inf
    return math.fsum(values) / num


def _reduced(loss: Loss) -> str:
    return "its last point" if loss.reduce == "last" else f"the mean of its last {TAIL_SHARE:.0%} of raw points"


def _names(runs: Sequence[LoggedRun]) -> str:
    return _listed([run.name or run.id for run in runs])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(shown, names[:SHOWN])) + more
