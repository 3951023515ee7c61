"""What a file of wandb holds, read without wandb's service."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _HEADER, _FULL, _LAST = 32768, 7, 1, 4  # a file is a log of blocks, as LevelDB has; kinds that end a record


def read(path: Path) -> tuple[dict[str, Any], dict[str, dict[int, Any]]]:
    """Return what a run is called (name, group, project, config), and metric -> step -> value."""
    from wandb.proto.wandb_internal_pb2 import Record

    run: dict[str, Any] = {}
    values: dict[str, dict[int, Any]] = {}
    for data in records(path):
        record = Record.FromString(data)
        if record.HasField("run"):
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            run = {"name": record.run.display_name, "group": record.run.run_group, "config": config}
            run |= {"id": record.run.run_id, "project": record.run.project}
        if record.HasField("history"):
            for item in record.history.item:
                metric = item.key or "/".join(item.nested_key)
                values.setdefault(metric, {})[record.history.step.num] = json.loads(item.value_json)
        if record.HasField("summary"):
            run.setdefault("summary", {}).update(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.summary.update}
            )
        if record.HasField("exit"):
            run["exit_code"] = record.exit.exit_code
    return run, values


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file."""
    data, at, record = path.read_bytes(), _HEADER, b""
    while at + _HEADER <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER:  # the rest of a block that holds no part
            at += _BLOCK - at % _BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record, at = record + data[at + _HEADER : at + _HEADER + length], at + _HEADER + length
        if kind in (_FULL, _LAST):
            yield record
            record = b""
