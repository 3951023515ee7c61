"""Lines: what a trainer may write to its report file, one JSON object per line, read as they come.

    {"type": "report", "step": 10, "loss": 3.2, "grad_norm": 0.7}    a loss, and any other numbers by name
    {"type": "alive"}                                                 it works on, and has nothing to report
    {"type": "checkpoint", "step": 10, "path": "ckpt/step-10"}        a checkpoint is whole
    {"type": "groups", "step": 1, "groups": [{"name": "wq", "lr": 0.01}]}    a receipt: what the optimizer holds; also
        "changes": {"wq": 0.01}    by how much (RMS) the update of this step changed each parameter
        "batch": "5f3a"            a hash of the batch of this step
    {"type": "forward", "step": 0, "outputs": [{"key": "readout", "mode": "train", "with": 0.5, "without": 1.0}]}
        the size (RMS) of the output at the site of a forward multiplier, with it and without it
    {"type": "result", "status": "finished", "validation_loss": 3.1}  the last line; or "diverged", with its `step`

Each line may also have `trial`, `attempt` (both must be those of the config) and `time` (seconds since 1970).
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hpxfer.errors import nearest, shown
from hpxfer.host.files import open_regular, reason

# No list of a model's parameter groups is as long.
MAX_LINE_BYTES = 4 * 2**20
_SPELLED = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}
_NO_METRICS: Mapping[str, float] = {}  # one for all of a million points
_COMMON = ("type", "trial", "attempt", "time")


class Fault(ValueError):
    """A line that breaks the protocol. The text says the rule and what was got."""


class Point(NamedTuple):
    """What was reported of one step."""

    step: int
    loss: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Alive:
    """The trainer works on."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is whole. A `path` that is not absolute is relative to the trial's folder."""

    step: int
    path: str


@dataclass(frozen=True)
class Groups:
    """The groups of the optimizer at a step, as the trainer wrote them."""

    step: int
    groups: tuple[Mapping[str, Any], ...]
    changes: Mapping[str, float] | None = None  # name -> RMS of its change by the update of this step
    batch: str | None = None  # a hash of the batch of this step


@dataclass(frozen=True)
class Forward:
    """Outputs at the sites of forward multipliers, each with the multiplier and without it."""

    step: int
    outputs: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Result:
    """How the training ended by its own account."""

    status: Literal["finished", "diverged"]
    step: int | None
    validation_loss: float | None
    metrics: Mapping[str, float]


Line = Point | Alive | Checkpoint | Groups | Forward | Result


def parse_line(text: bytes, *, trial_id: str, attempt: int, steps: int) -> Line:
    """Return what a line says. Raise Fault if it breaks a rule that can be seen from the line alone."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise Fault(f"must be one JSON object, got {shown(text.decode(errors='replace'))}") from None
    if not isinstance(data, dict):
        raise Fault(f"must be one JSON object, got {shown(data)}")
    _check_addressee(data, trial_id, attempt)
    kind = data.get("type")
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise Fault(f"type: must be one of {', '.join(_READERS)}, got {shown(kind)}; {nearest(str(kind), _READERS)}")
    return read(data, steps)


def _check_addressee(data: Mapping[str, Any], trial_id: str, attempt: int) -> None:
    if (trial := data.get("trial", trial_id)) != trial_id:
        raise Fault(f"trial: must be the trial of the config, {trial_id!r}, got {shown(trial)}")
    if (number := data.get("attempt", attempt)) != attempt or isinstance(number, bool):
        raise Fault(f"attempt: must be the attempt of the config, {attempt}, got {shown(number)}")
    if "time" in data:
        _number(data, "time")


def _report(data: Mapping[str, Any], steps: int) -> Point:
    rest = _numbers(data, (*_COMMON, "step", "loss"))
    return Point(_step(data, steps), _number(data, "loss"), rest)


def _alive(data: Mapping[str, Any], _: int) -> Alive:
    return Alive()


def _checkpoint(data: Mapping[str, Any], steps: int) -> Checkpoint:
    path = data.get("path")
    if not isinstance(path, str) or not path or "\0" in path:
        raise Fault(f"path: must be the path of a checkpoint, got {shown(path)}")
    return Checkpoint(_step(data, steps), path)


def _groups(data: Mapping[str, Any], steps: int) -> Groups:
    groups = data.get("groups")
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise Fault(f"groups: must be a list of objects, one per parameter group, got {shown(groups)}")
    changes, batch = data.get("changes"), data.get("batch")
    if changes is not None and not isinstance(changes, dict):
        raise Fault(f"changes: must map a name to the RMS of its change, got {shown(changes)}")
    if batch is not None and not isinstance(batch, str):
        raise Fault(f"batch: must be a text, such as a hash, got {shown(batch)}")
    moved = None if changes is None else {name: _number(changes, name) for name in changes}
    return Groups(_step(data, steps), tuple(groups), moved, batch)


def _forward(data: Mapping[str, Any], steps: int) -> Forward:
    outputs = data.get("outputs")
    if not isinstance(outputs, list) or not all(isinstance(each, dict) and "key" in each for each in outputs):
        raise Fault(f"outputs: must be a list of objects, each with the key of a multiplier, got {shown(outputs)}")
    return Forward(_step(data, steps), tuple(outputs))


def _result(data: Mapping[str, Any], steps: int) -> Result:
    status = data.get("status")
    if status not in ("finished", "diverged"):
        raise Fault(f"status: must be finished or diverged, got {shown(status)}")
    loss = None if data.get("validation_loss") is None else _number(data, "validation_loss")
    step = None if data.get("step") is None else _step(data, steps)
    return Result(status, step, loss, _numbers(data, (*_COMMON, "status", "step", "validation_loss")))


_READERS: Mapping[str, Callable[[Mapping[str, Any], int], Line]] = {
    "report": _report,
    "alive": _alive,
    "checkpoint": _checkpoint,
    "groups": _groups,
    "forward": _forward,
    "result": _result,
}


def _step(data: Mapping[str, Any], steps: int) -> int:
    step = data.get("step")
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise Fault(f"step: must be a whole number, 0 or more, got {shown(step)}")
    if step > steps:
        raise Fault(f"step: must not be beyond the {steps} steps of the run, got {shown(step)}")
    return step


def _numbers(data: Mapping[str, Any], but: tuple[str, ...]) -> Mapping[str, float]:
    return {name: _number(data, name) for name in data if name not in but} or _NO_METRICS


def _number(data: Mapping[str, Any], name: str) -> float:
    value = data.get(name)
    if isinstance(value, str):
        value = _SPELLED.get(value.strip().lower().removeprefix("+"), value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        got = shown(value) if name in data else "nothing"
        raise Fault(f"{shown(name)[1:-1]}: must be a number, NaN or Infinity, got {got}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


_CHUNK_BYTES = 2**20
# A file may have so many bytes, and more for each step. A trainer that writes more does not report, it dumps.
_FILE_BYTES, _STEP_BYTES = 64 * 2**20, 4096


class Reader:
    """Reads what was appended to a report file since the last look. The file may come later.

    The first line that breaks a rule ends the reading: `fault` then names the line, the rule and what was got.
    """

    def __init__(self, path: Path, *, trial_id: str, attempt: int, steps: int) -> None:
        self.fault: str | None = None
        self.num_lines = 0
        self.path, self._trial_id, self._attempt, self._steps = path, trial_id, attempt, steps
        self._offset = 0
        self._torn = b""  # the start of a line whose end has not been written
        self._last_step: int | None = None
        self._most_bytes = _FILE_BYTES + _STEP_BYTES * steps

    def read(self) -> Iterator[Line]:
        """Yield the lines that are whole now, at most a megabyte of them. A torn last line waits for its end."""
        if self.fault is not None:
            return
        for text in self._new_lines():
            if not text.strip():
                continue
            try:
                yield self._checked(text)
            except Fault as fault:
                self.fault = f"{self.path}:{self.num_lines}: {fault}"
                return

    @property
    def has_more(self) -> bool:
        """Whether there are bytes that were not read."""
        return self.fault is None and self._size() > self._offset

    def _new_lines(self) -> Iterator[bytes]:
        size = self._size()
        if size < self._offset:
            self.fault = f"{self.path}: must only grow, got a file that was cut; open it for appending"
            return
        if size > self._most_bytes:
            most = f"{self._most_bytes / 2**20:g} MiB for {self._steps} steps"
            self.fault = f"{self.path}: must have at most {most}, got more; report fewer numbers"
            return
        if size == self._offset:
            return
        try:
            with open_regular(self.path) as file:
                file.seek(self._offset)
                chunk = file.read(_CHUNK_BYTES)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self.fault = f"{self.path}: must be a file that can be read, got: {reason(error)}"
            return
        self._offset += len(chunk)
        *lines, self._torn = (self._torn + chunk).split(b"\n")
        for line in lines:
            self.num_lines += 1
            yield line
            if self.fault is not None:
                return
        if len(self._torn) > MAX_LINE_BYTES:
            start = shown(self._torn[:100].decode(errors="replace"))
            limit = f"a line must have at most {MAX_LINE_BYTES / 2**20:g} MiB"
            self.fault = f"{self.path}:{self.num_lines + 1}: {limit}, got more; it starts with {start}"

    def _checked(self, text: bytes) -> Line:
        if len(text) > MAX_LINE_BYTES:
            raise Fault(f"a line must have at most {MAX_LINE_BYTES / 2**20:g} MiB, got {len(text) / 2**20:.1f} MiB")
        line = parse_line(text, trial_id=self._trial_id, attempt=self._attempt, steps=self._steps)
        if isinstance(line, Point):
            if self._last_step is not None and line.step <= self._last_step:
                raise Fault(f"step: must be greater than that of the report before, {self._last_step}, got {line.step}")
            self._last_step = line.step
        return line

    def _size(self) -> int:
        try:
            return os.stat(self.path).st_size
        except OSError:
            return 0
