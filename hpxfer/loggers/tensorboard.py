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

from hpxfer.loggers.kinds import LoggerKind, library
from hpxfer.loggers.logger import Final, LoggedTrial, OpenTrial, Place, StepValues

NAME = "tensorboard"
_EVENTS = "tfevents"  # what TensorBoard looks for in the name of a file
_VERSION = "brain.Event:2"
_GOOD = ("finished", "diverged", "stopped")


class _Format:
    """The messages of an event file, by the modules of `tensorboard`. None of them imports tensorflow or torch."""

    def __init__(self) -> None:
        self._event = library("tensorboard.compat.proto.event_pb2", NAME)
        self._summary = library("tensorboard.compat.proto.summary_pb2", NAME)
        self._tensor = library("tensorboard.compat.proto.tensor_pb2", NAME)
        self._types = library("tensorboard.compat.proto.types_pb2", NAME)
        self._records = library("tensorboard.summary.writer.record_writer", NAME)
        self._hparams = library("tensorboard.plugins.hparams.summary_v2", NAME)
        self._plugin = library("tensorboard.plugins.hparams.plugin_data_pb2", NAME)
        self._api = library("tensorboard.plugins.hparams.api_pb2", NAME)
        self._metadata = library("tensorboard.plugins.hparams.metadata", NAME)
        of_scalars = self._summary.SummaryMetadata.PluginData(plugin_name="scalars")
        self._of_scalars = self._summary.SummaryMetadata(
            plugin_data=of_scalars, data_class=self._summary.DATA_CLASS_SCALAR
        )

    def records(self, *events: dict[str, Any]) -> bytes:
        """Return events as they stand in a file."""
        out, now = BytesIO(), time.time()
        writer = self._records.RecordWriter(out)
        for event in events:
            writer.write(self._event.Event(wall_time=now, **event).SerializeToString())
        return out.getvalue()

    def scalars(self, step: int, values: Mapping[str, float]) -> dict[str, Any]:
        """Return the event of the values of one step."""
        tensors = {
            tag: self._tensor.TensorProto(dtype=self._types.DT_DOUBLE, double_val=[value])
            for tag, value in values.items()
        }
        return {"step": step, "summary": self._summary.Summary(value=[self._value(*pair) for pair in tensors.items()])}

    def start(self, trial: LoggedTrial) -> dict[str, Any]:
        """Return the event that holds the table of HPs."""
        return {"summary": self._hparams.hparams_pb(dict(trial.config), trial_id=trial.name)}

    def end(self, *, is_good: bool) -> dict[str, Any]:
        """Return the event that says how the trial ended."""
        status = self._api.STATUS_SUCCESS if is_good else self._api.STATUS_FAILURE
        info = self._plugin.SessionEndInfo(status=status, end_time_secs=time.time())
        metadata = self._metadata.create_summary_metadata(self._plugin.HParamsPluginData(session_end_info=info))
        tag = self._metadata.SESSION_END_INFO_TAG
        return {"summary": self._summary.Summary(value=[self._value(tag, self._metadata.NULL_TENSOR, metadata)])}

    def _value(self, tag: str, tensor: Any, metadata: Any = None) -> Any:
        return self._summary.Summary.Value(tag=tag, tensor=tensor, metadata=metadata or self._of_scalars)


class TensorBoard:
    """Writes event files."""

    def __init__(self, place: Place) -> None:
        self._place, self._format = place, _Format()

    def open(self, trial: LoggedTrial) -> OpenTrial:
        """See `Logger.open`. Event files of an earlier run are removed."""
        folder = self._place.folder / NAME / trial.name
        path = folder / f"events.out.{_EVENTS}.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        with self._place.writing():
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.iterdir():
                if _EVENTS in old.name:
                    old.unlink()
            path.write_bytes(self._format.records({"file_version": _VERSION}, self._format.start(trial)))
        return _EventFile(self._place, self._format, path)


@dataclass(frozen=True)
class _EventFile:
    place: Place
    format: _Format
    path: Path

    def log(self, points: StepValues) -> None:
        self._append(*(self.format.scalars(step, values) for step, values in points.items()))

    def close(self, final: Final) -> None:
        last = [self.format.scalars(final.step, final.values)] if final.values else []
        self._append(*last, self.format.end(is_good=final.status in _GOOD))

    def _append(self, *events: dict[str, Any]) -> None:
        """Append events in one write."""
        records = self.format.records(*events)
        # Not `ab`: a file that another driver has removed is not to come back.
        with self.place.writing(), self.path.open("r+b", buffering=0) as file:
            file.seek(0, os.SEEK_END)
            file.write(records)


def _require() -> None:
    _Format()


TENSORBOARD = LoggerKind(name=NAME, require=_require, make=TensorBoard)
