"""The table of logged runs. Whether a run finished is read from its steps: what a tracker says of it may be wrong."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host import scale_text
from hpxfer.outside.cells import STATES, is_empty
from hpxfer.outside.columns import COLUMNS, HELD_OUT, LOSS, SMOOTHED, columns_of
from hpxfer.outside.trackers.logged import LoggedRun, Point, reading
from hpxfer.outside.trackers.mlflow import mlflow_runs
from hpxfer.outside.trackers.tensorboard import tensorboard_runs
from hpxfer.outside.trackers.wandb import wandb_runs

TRACKERS = {"wandb": wandb_runs, "mlflow": mlflow_runs, "tensorboard": tensorboard_runs}
MADE = ("loss", "status", "run_id", "steps", "loss_name")  # columns that are made of points, never of HPs
SHOWN = 5  # runs named per note
TAIL_SHARE = 0.05  # of the raw points, whose mean is the loss of a metric that is noisy from step to step
# How points become one loss, in words.
REDUCES = {"last": "its last point", "tail": f"the mean of its last {TAIL_SHARE:.0%} of raw points"}
INFINITE = 1e300  # MLflow's stores hold an infinite value as the largest float64, or close to it
_MEASURED = ("validation_loss_nats", "final_window_loss_nats")  # what hpxfer's own loggers write when a trial ends


@dataclass(frozen=True, kw_only=True)
class Choices:
    """How the runs of a tracker become a table.

    `metric` and `reduce` choose the loss, see `_loss`. `pattern` is a regular expression whose named groups are keys,
    read from the name of a run. `steps` is where a run has finished; by default the last step that any run of its shape
    reached.
    """

    metric: str | None = None
    reduce: str | None = None
    pattern: str | None = None
    steps: int | None = None


class Imported(NamedTuple):
    """The table, and what was chosen, assumed and dropped."""

    frame: pd.DataFrame
    notes: tuple[str, ...]


def is_address(table: str) -> bool:
    """Return whether this is the address of runs, such as `wandb:ENTITY/PROJECT`, and no file."""
    return table.partition(":")[0] in TRACKERS and ":" in table


def read_address(address: str, columns: Mapping[str, str], shape: Sequence[str], choices: Choices) -> Imported:
    """See `tabulate`. Raise HpxferError if there is nothing at an address to put into a table."""
    tracker, _, source = address.partition(":")
    return tabulate(TRACKERS[tracker](source), where=address, columns=columns, shape=shape, choices=choices)


def tabulate(
    runs: Sequence[LoggedRun], *, where: str, columns: Mapping[str, str], shape: Sequence[str] = (), choices: Choices
) -> Imported:
    """Return the table of runs: a row for each, with every key of their configs as a column, and those of `MADE`.

    `columns` and `shape` are those of `hpxfer.judge`. A run that lacks a key that is used is dropped.
    """
    for name in columns:
        if name in MADE:
            legal = nearest(name, [column for column in COLUMNS if column not in MADE])
            raise HpxferError(f"{where}: --map: must be a key of the runs, got {shown(name)}, which they log; {legal}")
    if not runs:
        raise HpxferError(f"{where}: must hold at least one run, got none")
    metrics = sorted({name for run in runs for name in run.metrics})
    loss, why, reduce = _loss(metrics, choices, where)
    notes = [f"loss: {loss}, {why}: {REDUCES[reduce]}"]
    if others := [name for name in metrics if name != loss]:
        notes.append(f"metrics left out: {_listed(others)}")
    configs = {run.id: _config(run, choices.pattern) for run in runs}
    points = {run.id: newest(_history(run, loss, where)) for run in runs}
    if silent := [run for run in runs if not points[run.id]]:
        notes.append(f"dropped, as they have no point of {loss}: {_names(silent)}")
    heard = [configs[run.id] for run in runs if points[run.id]]
    if not heard:
        raise HpxferError(f"{where}: no run has a point of {loss}; name another with --metric")
    keys = dict.fromkeys(key for config in heard for key in config)
    own = {key: [config.get(key) for config in heard] for key in keys} | {name: [None] * len(heard) for name in MADE}
    of, _ = columns_of(own, {**columns, "loss": "loss"}, shape, where)
    used = [name for name in (*of.values(), *shape) if name not in MADE]
    lacking = [run for run in runs if any(is_empty(configs[run.id].get(key)) for key in used)]
    if lacking:
        notes.append(f"dropped, as a key is missing: {_names(lacking)}")
    whole = [run for run in runs if run not in silent and run not in lacking]
    if not whole:
        raise HpxferError(f"{where}: no run has the keys {', '.join(used)} and a point of {loss}; {notes[-1]}")
    sizes = [*(of[name] for name in ("axis", "scale", "shape") if name in of), *shape]
    shapes = {run.id: tuple(str(configs[run.id][key]) for key in sizes) for run in whole}
    last = dict[tuple[str, ...], float]()
    for run in whole:
        last[shapes[run.id]] = max(last.get(shapes[run.id], -math.inf), points[run.id][-1].step)
    rows, lied = [], Counter[str]()
    for run in whole:
        value, status, lie = _ended(run, points[run.id], reduce, choices.steps or last[shapes[run.id]])
        lied.update([lie] if lie else [])
        made = dict(zip(MADE, (value, status, run.id, points[run.id][-1].step, loss), strict=True))
        rows.append({**{key: configs[run.id].get(key) for key in keys}, **made})
    counts = Counter(str(row["status"]) for row in rows)
    notes.append(f"{len(rows)} runs: {', '.join(f'{num} {status}' for status, num in sorted(counts.items()))}")
    return Imported(pd.DataFrame(rows), (*notes, *(f"{num} runs {what}" for what, num in lied.items())))


def _loss(metrics: Sequence[str], choices: Choices, where: str) -> tuple[str, str, str]:
    """Return the metric that is the loss, why, and how its points become one number.

    It is the one that the user names, else the only held-out loss, else the only training loss. Raises HpxferError,
    with what there is, if that is not exactly one.
    """
    if choices.reduce not in (None, *REDUCES):
        raise HpxferError(f"--reduce: unknown choice {shown(choices.reduce)}; {nearest(str(choices.reduce), REDUCES)}")
    raw = [name for name in metrics if LOSS.search(name) and not SMOOTHED.search(name)]
    ours = next((name for name in _MEASURED if name in raw), None)
    held_out = [name for name in raw if HELD_OUT.search(name)]
    if choices.metric is not None:
        if choices.metric not in metrics:
            legal = nearest(choices.metric, metrics)
            raise HpxferError(f"{where}: --metric: no run has {shown(choices.metric)}; {legal}")
        loss, why = choices.metric, "as named"
    elif ours is not None:
        loss, why = ours, "as hpxfer's own runs write it"
    elif not raw:
        listed = ", ".join(map(shown, metrics[:50])) or "none"
        raise HpxferError(f"{where}: no metric looks like a loss; name it with --metric; the metrics are {listed}")
    elif len(several := held_out or raw) > 1:
        listed = ", ".join(map(shown, several[:20]))
        raise HpxferError(f"{where}: one metric must be the loss, got {listed}; name it with --metric")
    else:
        loss, why = (
            several[0],
            "the only held-out loss" if held_out else "the only loss, of training, as none is held out",
        )
    usual = "last" if loss == _MEASURED[1] or HELD_OUT.search(loss) else "tail"
    return loss, why, choices.reduce or usual


def _history(run: LoggedRun, metric: str, where: str) -> Sequence[Point]:
    with reading(f"{where}: run {shown(run.name or run.id)}: the history of {metric} cannot be read"):
        return run.points(metric)


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


def _config(run: LoggedRun, pattern: str | None) -> dict[str, Any]:
    """Return the keys of a run, with the named groups of a pattern in its name, as cells of a table."""
    try:
        found = None if pattern is None else re.search(pattern, run.name)
    except re.error as error:
        raise HpxferError(f"--pattern: must be a regular expression, got {shown(pattern)}: {error}") from None
    config = {**run.config, **(found.groupdict() if found else {})}
    plain = (str, int, float, type(None))
    return {key: cell if isinstance(cell, plain) else str(cell) for key, cell in config.items() if key not in MADE}


def _ended(run: LoggedRun, points: Sequence[Point], reduce: str, end: float) -> tuple[float | None, str, str | None]:
    """Return loss and status of a run that has finished at step `end`, and what its tracker says otherwise.

    A loss is +inf if a point that it rests on is not finite.
    """
    num = 1 if reduce == "last" else max(1, math.ceil(TAIL_SHARE * len(points)))
    values = [point.value for point in points[-num:]]
    if any(not math.isfinite(value) or abs(value) >= INFINITE for value in values):
        return math.inf, "diverged", None  # at a step that says nothing
    said = STATES.get(run.state.lower(), "failed")
    if points[-1].step >= end:
        lie = "reached the last step, so they count as finished, though the tracker says otherwise"
        return math.fsum(values) / num, "finished", None if said == "finished" else lie
    lie = f"ended before step {scale_text(end)}, so they do not count, though called finished"
    return None, "running" if said in ("finished", "running") else "failed", lie if said == "finished" else None


def _names(runs: Sequence[LoggedRun]) -> str:
    return _listed([run.name or run.id for run in runs])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(shown, names[:SHOWN])) + more
