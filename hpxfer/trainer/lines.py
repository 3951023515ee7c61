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

import json
import math
import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, TypeAdapter, ValidationError

from hpxfer.errors import nearest, shown
from hpxfer.host import open_regular, reason
from hpxfer.trainer.job import REPORTS, attempt_folder, attempt_numbers
from hpxfer.trial import blow_up_limit, is_bad

# No list of a model's parameter groups is as long.
MAX_LINE_BYTES = 4 * 2**20
_SPELLED = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}


class Fault(ValueError):
    """A line that breaks the protocol. The text says the rule and what was got."""


def _number(value: object) -> float:
    if isinstance(value, str):
        value = _SPELLED.get(value.strip().lower().removeprefix("+"), value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number, NaN or Infinity")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _step(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value >= 0 and value % 1 == 0):
        raise ValueError("must be a whole number, 0 or more")
    return int(value)


Number = Annotated[float, BeforeValidator(_number)]
Step = Annotated[int, BeforeValidator(_step)]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True)

    trial: str | None = None
    attempt: Step | None = None
    time: Number | None = None


class _Numbers(_Line):
    """A line with any other numbers by name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number] = Field(init=False)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The other numbers by name."""
        return self.__pydantic_extra__


class Report(_Numbers):
    type: Literal["report"] = "report"
    step: Step
    loss: Number


class Alive(_Line):
    type: Literal["alive"] = "alive"


class Checkpoint(_Line):
    """A checkpoint that is whole. A `path` that is not absolute is relative to the trial's folder."""

    type: Literal["checkpoint"] = "checkpoint"
    step: Step
    path: Annotated[str, Field(pattern=r"^[^\x00]+$")]


class Groups(_Line):
    type: Literal["groups"] = "groups"
    step: Step
    groups: list[dict[str, Any]]
    changes: dict[str, Number] | None = None
    batch: str | None = None


class Forward(_Line):
    type: Literal["forward"] = "forward"
    step: Step
    outputs: list[dict[str, Any]]


class Result(_Numbers):
    type: Literal["result"] = "result"
    status: Literal["finished", "diverged"]
    step: Step | None = None
    validation_loss: Number | None = None


Line = Report | Alive | Checkpoint | Groups | Forward | Result
_LINE: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Discriminator("type")])
_TYPES = ("report", "alive", "checkpoint", "groups", "forward", "result")


def parse_line(text: bytes, *, trial_id: str, attempt: int, steps: int) -> Line:
    """Return what a line says. Raise Fault if it breaks a rule that can be seen from the line alone."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = text.decode(errors="replace")
    if not isinstance(data, dict):
        raise Fault(f"must be one JSON object, got {shown(data)}")
    kind = data.get("type")
    if kind not in _TYPES:
        raise Fault(f"type: must be one of {', '.join(_TYPES)}, got {shown(kind)}; {nearest(str(kind), _TYPES)}")
    try:
        line = _LINE.validate_python(data)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        where = ".".join(shown(str(part))[1:-1] for part in found["loc"][1:])
        rule = re.sub(
            r"^(Value error, )?((Input|String) should)?", lambda said: "must" if said[2] else "", found["msg"]
        )
        missing = found["type"] == "missing"
        got = "must be given, got nothing" if missing else f"{rule}, got {shown(found['input'])}"
        raise Fault(f"{where}: {got}") from None
    for name, value, ours in (("trial", line.trial, trial_id), ("attempt", line.attempt, attempt)):
        if value not in (None, ours):
            raise Fault(f"{name}: must be the {name} of the config, {ours!r}, got {shown(value)}")
    if (step := getattr(line, "step", None) or 0) > steps:
        raise Fault(f"step: must not be beyond the {steps} steps of the run, got {step}")
    return line


class Point(NamedTuple):
    """What was reported of one step."""

    step: int
    loss: float
    metrics: Mapping[str, float]


# A file may have so many bytes, and more for each step. A trainer that writes more does not report, it dumps.
_FILE_BYTES, _STEP_BYTES, _CHUNK_BYTES = 64 * 2**20, 4096, 2**20
# Receipts are for a few steps, and the newest checkpoints count. Who writes them at each step fills no memory.
_MOST = 64


class Reports:
    """What one attempt at a trial has reported, read from its file as it grows. The file may come later.

    The reading ends with a result, with the first line that breaks a rule, or with a loss that is bad: not finite, or
    blown up. Losses are judged where `before` is given, the points of the attempts before this one.
    """

    def __init__(
        self, folder: Path, attempt: int, *, trial_id: str, steps: int, before: Sequence[Point] | None = None
    ) -> None:
        self.attempt, self.path = attempt, attempt_folder(folder, attempt) / REPORTS
        self.points = list[Point]()
        self.checkpoints = list[Checkpoint]()
        self.groups = list[Groups]()
        self.outputs = list[Forward]()
        self.result: Result | None = None
        self.divergence: tuple[int, str] | None = None  # the step of a bad loss, and what is bad
        self.fault: str | None = None  # the line that breaks a rule, the rule, and what was got
        self._trial_id, self._steps, self._before = trial_id, steps, before
        self._offset = self._num_lines = 0
        self._torn = b""  # the start of a line whose end has not been written

    @property
    def _is_over(self) -> bool:
        return self.result is not None or self.divergence is not None or self.fault is not None

    @property
    def has_more(self) -> bool:
        """Whether there are bytes that were not read, and that count."""
        return not self._is_over and self._size() > self._offset

    def read(self) -> Iterator[Line]:
        """Take the lines that are whole now, at most a megabyte of them, and yield each."""
        for text in () if self._is_over else self._new_lines():
            self._num_lines += 1
            if text.strip():
                try:
                    line = parse_line(text, trial_id=self._trial_id, attempt=self.attempt, steps=self._steps)
                    self._take(line)
                except Fault as fault:
                    self.fault = f"{self.path}:{self._num_lines}: {fault}"
                    return
                yield line
                if self._is_over:
                    return
        if len(self._torn) > MAX_LINE_BYTES:
            rule = f"a line must have at most {MAX_LINE_BYTES / 2**20:g} MiB"
            start = shown(self._torn[:100].decode(errors="replace"))
            self.fault = f"{self.path}:{self._num_lines + 1}: {rule}, got more; it starts with {start}"

    def _take(self, line: Line) -> None:
        match line:
            case Report(step=step, loss=loss):
                if self.points and step <= (last := self.points[-1].step):
                    raise Fault(f"step: must be greater than that of the report before, {last}, got {step}")
                if self._before is not None:
                    first = next((point.loss for point in (*self._before[:1], *self.points[:1])), loss)
                    if is_bad(loss, limit := blow_up_limit(first)):
                        above = f", above {limit:g}, 4 times the first loss" if math.isfinite(loss) else ""
                        self.divergence = step, f"loss {loss:g} at step {step}{above}"
                        return
                self.points.append(Point(step, loss, line.metrics))
            case Checkpoint():
                self.checkpoints = [*self.checkpoints[1 - _MOST :], line]
            case Groups() if len(self.groups) < _MOST:
                self.groups.append(line)
            case Forward() if len(self.outputs) < _MOST:
                self.outputs.append(line)
            case Result():
                self.result = line

    def _new_lines(self) -> list[bytes]:
        size, most, chunk = self._size(), _FILE_BYTES + _STEP_BYTES * self._steps, b""
        if size < self._offset:
            self.fault = f"{self.path}: must only grow, got a file that was cut; open it for appending"
        elif size > most:
            self.fault = f"{self.path}: must have at most {most / 2**20:g} MiB for {self._steps} steps, got more"
        elif size > self._offset:
            try:
                with open_regular(self.path) as file:
                    file.seek(self._offset)
                    chunk = file.read(_CHUNK_BYTES)
            except OSError as error:
                self.fault = f"{self.path}: must be a file that can be read, got: {reason(error)}"
        self._offset += len(chunk)
        *lines, self._torn = (self._torn + chunk).split(b"\n")
        return lines

    def _size(self) -> int:
        try:
            return os.stat(self.path).st_size
        except OSError:
            return 0


def read_attempts(folder: Path, *, trial_id: str, steps: int, before: int = sys.maxsize) -> list[Reports]:
    """Return what the attempts at a trial before that number have reported, each up to its first bad line."""
    numbers = (number for number in attempt_numbers(folder) if number < before)
    found = [Reports(folder, number, trial_id=trial_id, steps=steps) for number in numbers]
    for each in found:
        while each.has_more:
            deque(each.read(), maxlen=0)
    return found


def merged(attempts: Iterable[Reports]) -> tuple[Point, ...]:
    """Return the points of all attempts by step. A later attempt wins from its first step on."""
    points: list[Point] = []
    for each in attempts:
        if each.points:
            first = each.points[0].step
            points = [point for point in points if point.step < first] + each.points
    return tuple(points)


def reached(attempts: Iterable[Reports]) -> int:
    """Return the latest step of which any attempt has reported a checkpoint; -1 without any."""
    return max((each.step for one in attempts for each in one.checkpoints), default=-1)


def newest_checkpoint(folder: Path, attempts: Iterable[Reports]) -> str | None:
    """Return the absolute path of the newest checkpoint that still exists, or None. Of one step, the later one wins."""
    found = sorted((each for one in attempts for each in one.checkpoints), key=lambda each: each.step)
    paths = (os.path.join(folder, each.path) for each in reversed(found))
    return next((path for path in paths if os.path.exists(path)), None)
