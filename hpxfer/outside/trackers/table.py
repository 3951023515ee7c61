"""The table of logged runs. Whether a run finished is read from its steps: what a tracker says of it may be wrong."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from hpxfer.errors import HpxferError, first_line, nearest, shown
from hpxfer.outside.cells import STATES, is_empty
from hpxfer.outside.columns import COLUMNS, columns_of
from hpxfer.outside.trackers.logged import INFINITE, TAIL_SHARE, LoggedRun, Loss, Point, choose_loss, newest
from hpxfer.outside.trackers.mlflow import mlflow_runs
from hpxfer.outside.trackers.tensorboard import tensorboard_runs
from hpxfer.outside.trackers.wandb import wandb_runs
from hpxfer.verdict.shape_names import scale_text

TRACKERS = {"wandb": wandb_runs, "mlflow": mlflow_runs, "tensorboard": tensorboard_runs}
MADE = ("loss", "status", "run_id", "steps", "loss_name")  # columns that are made of points, never of HPs
SHOWN = 5  # runs named per note


@dataclass(frozen=True, kw_only=True)
class Choices:
    """How the runs of a tracker become a table.

    `metric` and `reduce` choose the loss, see `choose_loss`. `pattern` is a regular expression whose named groups are
    keys, read from the name of a run. `steps` is where a run has finished; by default the last step that any run of its
    shape reached.
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
    loss = choose_loss(runs, choices.metric, choices.reduce, where)
    notes = [f"loss: {loss.metric}, {loss.why}: {loss.how}"]
    if others := sorted({name for run in runs for name in run.metrics} - {loss.metric}):
        notes.append(f"metrics left out: {_listed(others)}")
    logged = [(run, _config(run, choices.pattern), newest(_history(run, loss.metric, where))) for run in runs]
    if silent := [run for run, _, points in logged if not points]:
        notes.append(f"dropped, as they have no point of {loss.metric}: {_names(silent)}")
    if len(silent) == len(runs):
        raise HpxferError(f"{where}: no run has a point of {loss.metric}; name another with --metric")
    heard = [config for _, config, points in logged if points]
    keys = dict.fromkeys(key for config in heard for key in config)
    own = {key: [config.get(key) for config in heard] for key in keys} | {name: [None] * len(heard) for name in MADE}
    of, _ = columns_of(own, {**columns, "loss": "loss"}, shape, where)
    used = [name for name in (*of.values(), *shape) if name not in MADE]
    lacking = [run.id for run, config, _ in logged if any(is_empty(config.get(key)) for key in used)]
    if lacking:
        notes.append(f"dropped, as a key is missing: {_names([run for run in runs if run.id in lacking])}")
    whole = [each for each in logged if each[2] and each[0].id not in lacking]
    if not whole:
        raise HpxferError(f"{where}: no run has the keys {', '.join(used)} and a point of {loss.metric}; {notes[-1]}")
    sizes = [*(of[name] for name in ("axis", "scale", "shape") if name in of), *shape]
    shapes = [tuple(str(config[key]) for key in sizes) for _, config, _ in whole]
    last: dict[tuple[str, ...], float] = {}
    for each, (_, _, points) in zip(shapes, whole, strict=True):
        last[each] = max(last.get(each, -math.inf), points[-1].step)
    lied = Counter[str]()
    rows = [
        {**{key: config.get(key) for key in keys}, **_ended(run, points, loss, choices.steps or last[each], lied)}
        for each, (run, config, points) in zip(shapes, whole, strict=True)
    ]
    counts = Counter(row["status"] for row in rows)
    notes.append(f"{len(rows)} runs: {', '.join(f'{num} {status}' for status, num in sorted(counts.items()))}")
    return Imported(pd.DataFrame(rows), (*notes, *(f"{num} runs {what}" for what, num in lied.items())))


def _history(run: LoggedRun, metric: str, where: str) -> Sequence[Point]:
    try:
        return run.points(metric)
    except Exception as error:  # whatever a tracker's client or the network say
        name = shown(run.name or run.id)
        raise HpxferError(f"{where}: run {name}: the history of {metric} cannot be read: {first_line(error)}") from None


def _config(run: LoggedRun, pattern: str | None) -> dict[str, Any]:
    """Return the keys of a run, with the named groups of a pattern in its name, as cells of a table."""
    try:
        found = None if pattern is None else re.search(pattern, run.name)
    except re.error as error:
        raise HpxferError(f"--pattern: must be a regular expression, got {shown(pattern)}: {error}") from None
    config = {**run.config, **(found.groupdict() if found else {})}
    plain = (str, int, float, type(None))
    return {key: cell if isinstance(cell, plain) else str(cell) for key, cell in config.items() if key not in MADE}


def _ended(run: LoggedRun, points: Sequence[Point], loss: Loss, end: float, lied: Counter[str]) -> dict[str, Any]:
    """Return the columns of `MADE` of a run that has finished at step `end`, and count in `lied` what its tracker says
    otherwise. A loss is +inf if a point that it rests on is not finite.
    """
    num = 1 if loss.reduce == "last" else max(1, math.ceil(TAIL_SHARE * len(points)))
    values = [point.value for point in points[-num:]]
    said, steps = STATES.get(run.state.lower(), "failed"), points[-1].step
    status = "finished" if steps >= end else "running" if said in ("finished", "running") else "failed"
    if any(not math.isfinite(value) or abs(value) >= INFINITE for value in values):
        status = "diverged"  # at a step that says nothing
    elif status == "finished" and said != "finished":
        lied["reached the last step, so they count as finished, though the tracker says otherwise"] += 1
    elif status != "finished" and said == "finished":
        lied[f"ended before step {scale_text(end)}, so they do not count, though called finished"] += 1
    value = math.inf if status == "diverged" else math.fsum(values) / num
    return {
        "loss": value if status in ("diverged", "finished") else None,
        "status": status,
        "run_id": run.id,
        "steps": steps,
        "loss_name": loss.metric,
    }


def _names(runs: Sequence[LoggedRun]) -> str:
    return _listed([run.name or run.id for run in runs])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(shown, names[:SHOWN])) + more
