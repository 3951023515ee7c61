"""TensorBoard: event files below `tensorboard/` in the results folder, one folder for each trial.

Values are stored as float64, as the curves of the results are. A file is opened for each write and closed after it, so
that thousands of trials at once need no more open files than one. The writers of `tensorboard` keep a thread and a file
for each.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from hpxfer.loggers.kinds import Final, LoggedTrial, LoggerKind, OpenTrial, Place, StepValues, library

NAME = "tensorboard"
_EVENTS = "tfevents"  # what TensorBoard looks for in the name of a file
_GOOD = ("finished", "diverged", "stopped")
# Modules of `tensorboard`, of which none imports tensorflow or torch.
_PROTO, _HPARAMS = "tensorboard.compat.proto", "tensorboard.plugins.hparams"
_RECORDS = "tensorboard.summary.writer.record_writer"


class TensorBoard:
    """Writes event files."""

    def __init__(self, place: Place) -> None:
        self._place = place
        library(_RECORDS, NAME)

    def open(self, trial: LoggedTrial) -> OpenTrial:
        """See `Logger.open`. Event files of an earlier run are removed."""
        folder = self._place.folder / NAME / trial.name
        path = folder / f"events.out.{_EVENTS}.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        hps = library(f"{_HPARAMS}.summary_v2", NAME).hparams_pb(dict(trial.config), trial_id=trial.name)
        with self._place.writing():
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob(f"*{_EVENTS}*"):
                old.unlink()
            path.write_bytes(_records({"file_version": "brain.Event:2"}, {"summary": hps}))
        return _EventFile(self._place, path)


@dataclass(frozen=True)
class _EventFile:
    place: Place
    path: Path

    def log(self, points: StepValues) -> None:
        self._append(*(_scalars(step, values) for step, values in points.items()))

    def close(self, final: Final) -> None:
        last = [_scalars(final.step, final.values)] if final.values else []
        self._append(*last, _end(is_good=final.status in _GOOD))

    def _append(self, *events: dict[str, Any]) -> None:
        """Append events in one write."""
        # Not `ab`: a file that another driver has removed is not to come back.
        with self.place.writing(), self.path.open("r+b", buffering=0) as file:
            file.seek(0, os.SEEK_END)
            file.write(_records(*events))


def _records(*events: dict[str, Any]) -> bytes:
    """Return events as they stand in a file."""
    event, out, now = library(f"{_PROTO}.event_pb2", NAME).Event, BytesIO(), time.time()
    writer = library(_RECORDS, NAME).RecordWriter(out)
    for each in events:
        writer.write(event(wall_time=now, **each).SerializeToString())
    return out.getvalue()


def _scalars(step: int, values: Mapping[str, float]) -> dict[str, Any]:
    """Return the event of the values of one step."""
    summary, double = library(f"{_PROTO}.summary_pb2", NAME), library(f"{_PROTO}.types_pb2", NAME).DT_DOUBLE
    tensor = library(f"{_PROTO}.tensor_pb2", NAME).TensorProto
    plugin = summary.SummaryMetadata.PluginData(plugin_name="scalars")
    metadata = summary.SummaryMetadata(plugin_data=plugin, data_class=summary.DATA_CLASS_SCALAR)
    found = [
        summary.Summary.Value(tag=tag, tensor=tensor(dtype=double, double_val=[value]), metadata=metadata)
        for tag, value in values.items()
    ]
    return {"step": step, "summary": summary.Summary(value=found)}


def _end(*, is_good: bool) -> dict[str, Any]:
    """Return the event that says how the trial ended."""
    summary, api = library(f"{_PROTO}.summary_pb2", NAME), library(f"{_HPARAMS}.api_pb2", NAME)
    plugin, metadata = library(f"{_HPARAMS}.plugin_data_pb2", NAME), library(f"{_HPARAMS}.metadata", NAME)
    status = api.STATUS_SUCCESS if is_good else api.STATUS_FAILURE
    info = plugin.SessionEndInfo(status=status, end_time_secs=time.time())
    value = summary.Summary.Value(
        tag=metadata.SESSION_END_INFO_TAG,
        tensor=metadata.NULL_TENSOR,
        metadata=metadata.create_summary_metadata(plugin.HParamsPluginData(session_end_info=info)),
    )
    return {"summary": summary.Summary(value=[value])}


TENSORBOARD = LoggerKind(name=NAME, require=lambda: library(_RECORDS, NAME), make=TensorBoard)
