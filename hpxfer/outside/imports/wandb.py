"""The runs of Weights & Biases: a project of its server, or a folder of files that it wrote on this machine.

`history()` of its client returns a sample of 500 rows, which differs from call to call, so nothing here calls it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError, first_line
from hpxfer.outside.imports.logged import LoggedRun, Point, flat, library

PAGE = 10_000  # rows of a history per request
LATER = 1e12  # more than the records of a file: the points of a later start come after those of an earlier one
_START = b":W&B"
_BLOCK, _HEADER, _FULL, _LAST = 32768, 7, 1, 4  # its files are logs of blocks, as LevelDB has; kinds that end a record
_WORDS = {"nan": math.nan, "infinity": math.inf, "inf": math.inf, "-infinity": -math.inf, "-inf": -math.inf}


def wandb_runs(source: str) -> list[LoggedRun]:
    """Return the runs of a folder with `*.wandb` files below it, or of `ENTITY/PROJECT` on the server.

    Raises HpxferError if they cannot be read.
    """
    wandb = library("wandb", "wandb")
    if Path(source).is_dir():
        return _merged([_local(path) for path in sorted(Path(source).rglob("*.wandb"))])
    if source.count("/") != 1:
        raise HpxferError(f"{source}: must be a folder of wandb, or ENTITY/PROJECT on its server; name one of them")
    return server_runs(wandb.Api, source)


def server_runs(connect: Any, project: str) -> list[LoggedRun]:
    """Return the runs of a project. `connect` makes the client, which is `wandb.Api`."""
    try:
        return [_of_server(run) for run in connect().runs(project)]
    except Exception as error:  # whatever wandb or the network say
        raise HpxferError(
            f"{project}: wandb cannot read it: {first_line(error)}; check the name and `wandb login`"
        ) from None


def _of_server(run: Any) -> LoggedRun:
    summary = {key: value for key, value in flat(dict(run.summary)).items() if _number(value) is not None}
    return LoggedRun(
        id=run.id,
        name=run.name,
        config=flat(dict(run.config)),
        state=run.state,
        metrics=tuple(key for key in summary if not key.startswith("_")),
        points=partial(_server_points, run, summary),
    )


def _server_points(run: Any, summary: Mapping[str, Any], metric: str) -> list[Point]:
    """Return the whole history of a metric. If the server gives none of it, the summary holds the last point."""
    found: list[Point] = []
    for keys in (["_step", metric], None):  # asked by its keys, some servers return nothing
        rows = run.scan_history(keys=keys, page_size=PAGE) if keys else run.scan_history(page_size=PAGE)
        found = [
            Point(step=float(row["_step"]), value=value, time=float(row["_step"]))
            for row in rows
            if row.get("_step") is not None and (value := _number(row.get(metric))) is not None
        ]
        if found:
            return found
    last = _number(summary.get(metric))
    step = _number(summary.get("_step"))
    return [] if last is None or step is None else [Point(step=step, value=last, time=step)]


def _local(path: Path) -> LoggedRun:
    """Return the run in a file of wandb."""
    record_of = library("wandb.proto.wandb_internal_pb2", "wandb").Record.FromString
    config, summary = dict[str, Any](), dict[str, Any]()
    points: dict[str, list[Point]] = {}
    name, run_id, state = path.stem, path.stem, "running"
    try:
        for number, data in enumerate(records(path)):
            record = record_of(data)
            if record.HasField("run"):
                name, run_id = record.run.display_name or name, record.run.run_id or run_id
            for part in (record.run.config, record.config):
                config |= {_key(item): json.loads(item.value_json) for item in part.update}
            for item in record.history.item if record.HasField("history") else ():
                if (value := _number(json.loads(item.value_json))) is not None:
                    step = float(record.history.step.num)
                    points.setdefault(_key(item), []).append(Point(step=step, value=value, time=number))
            if record.HasField("summary"):
                summary |= {_key(item): json.loads(item.value_json) for item in record.summary.update}
            if record.HasField("exit"):
                state = "finished" if record.exit.exit_code == 0 else "failed"
    except Exception as error:  # whatever its messages say of a damaged file
        raise HpxferError(f"{path}: must be a file of wandb, got: {first_line(error)}; move it away") from None
    # Metrics that the run wrote into its summary alone stand at the last step of its history.
    last = max((point for of in points.values() for point in of), key=lambda point: point.step, default=None)
    for key in summary.keys() - points.keys():
        if (value := _number(summary[key])) is not None:
            points[key] = [Point(step=0.0 if last is None else last.step, value=value, time=0.0)]
    metrics = tuple(sorted(key for key in points if not key.startswith("_")))
    return LoggedRun(
        id=run_id,
        name=name,
        config=flat(config),
        state=state,
        metrics=metrics,
        points=lambda metric: points.get(metric, []),
    )


def _merged(runs: Sequence[LoggedRun]) -> list[LoggedRun]:
    """Return each run once: one that was resumed has a file per start, whose names ascend in time."""
    of_id: dict[str, list[LoggedRun]] = {}
    for run in runs:
        of_id.setdefault(run.id, []).append(run)
    return [starts[0] if len(starts) == 1 else _resumed(starts) for starts in of_id.values()]


def _resumed(starts: Sequence[LoggedRun]) -> LoggedRun:
    def points(metric: str) -> list[Point]:
        return [
            replace(point, time=point.time + LATER * number)
            for number, start in enumerate(starts)
            for point in start.points(metric)
        ]

    metrics = tuple(dict.fromkeys(name for start in starts for name in start.metrics))
    return replace(starts[-1], metrics=metrics, points=points)


def _key(item: Any) -> str:
    return item.key or ".".join(item.nested_key)


def _number(value: Any) -> float | None:
    """Return a number; wandb writes those that are not finite as words."""
    if isinstance(value, str):
        return _WORDS.get(value.lower())
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file. One that was being written when the run was killed is left out.

    Raises ValueError if the file starts as no file of wandb does.
    """
    data, at, record = path.read_bytes(), _HEADER, b""
    if not data.startswith(_START[: len(data)]):
        raise ValueError("a file of another kind")
    while at + _HEADER <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER:  # the rest of a block that holds no part
            at += _BLOCK - at % _BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        part = data[at + _HEADER : at + _HEADER + length]
        if kind == 0 or len(part) < length:
            return
        record, at = record + part, at + _HEADER + length
        if kind in (_FULL, _LAST):
            yield record
            record = b""
