"""How far a run is at one moment, as one record: progress.json holds it, and every display draws it.

The driver writes the file every two seconds, if it still holds the lease; a reader sees a whole file or none. It is
only for display: nothing resumes from it, and a disk that refuses it stops no run.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from hpxfer.errors import HpxferError, cut
from hpxfer.host import half_written, machine_id, process_is_gone, process_started, read_text

FILE = "progress.json"
# ended: the run came to its end; stopped: it was interrupted, or met an error.
State = Literal["running", "ended", "stopped"]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Number = Annotated[float, Field(allow_inf_nan=False)]
ENDS = ("finished", "diverged", "stopped", "failed")  # of trials; fields of a shape and of a run count them
_RECORD = ConfigDict(strict=True, extra="forbid")


@dataclass(frozen=True, kw_only=True, config=_RECORD)
class RunningStack:
    """A stack on a worker. Seconds count from the moment when the worker took it."""

    id: str
    label: str  # of its shape
    num_trials: Count
    host: str
    pid: Count
    step: Count
    steps: Count
    running_s: Number
    alive: Count  # trials that have not diverged
    loss_nats: Number | None  # the lowest of its trials' last training losses; a squared error if they train with it


@dataclass(frozen=True, kw_only=True, config=_RECORD)
class ShapeProgress:
    """The trials of one shape. `best` is the best of stored trials and of this run's."""

    label: str
    num_trials: Count = 0  # of the sweep; for an adaptive search, the most it may have
    num_stored: Count = 0  # done before this run
    finished: Count = 0
    diverged: Count = 0
    stopped: Count = 0  # early, by the sweep's early stopping
    failed: Count = 0
    running: Count = 0
    best_loss: Number | None = None  # by which the sweep is judged, in its unit
    best_text: str = ""  # as pages show it, e.g. `3.1415 nats`, or the accuracy `62.30%`
    best: str = ""  # which trial reached it, e.g. `lr 2^-6 completep-moe`

    @property
    def ended(self) -> int:
        """Trials that have ended in this run."""
        return self.finished + self.diverged + self.stopped + self.failed

    @property
    def num_done(self) -> int:
        """Trials that need not be run again."""
        return self.num_stored + self.finished + self.diverged + self.stopped

    @property
    def num_left(self) -> int:
        return max(0, self.num_trials - self.num_done)


@dataclass(frozen=True, kw_only=True, config=_RECORD)
class RunStatus:
    """A run at one moment. `elapsed_s` is by the driver's monotonic clock. No field is a time of day."""

    version: Literal[2] = 2  # raise it with every change of a field: a reader refuses another, and does not guess
    sweep: str
    at_most: bool  # the search may end with fewer trials
    elapsed_s: Number
    num_left: Count  # trials that this run set out to train
    finished: Count
    diverged: Count
    stopped: Count
    failed: Count
    tokens: Count
    tokens_per_s: Number | None
    eta_s: Number | None
    running: tuple[RunningStack, ...]
    shapes: tuple[ShapeProgress, ...]
    reads: str = "tokens"  # what `tokens` counts
    num_notes: Count = 0  # decisions of the search so far
    notes: tuple[str, ...] = ()  # the last few of them
    errors: tuple[str, ...] = ()

    @property
    def ended(self) -> int:
        return self.finished + self.diverged + self.stopped + self.failed


@dataclass(frozen=True, kw_only=True, config=_RECORD)
class Written:
    """The content of progress.json. `counter` grows with every write of a driver, `run` tells drivers apart."""

    state: State
    run: str
    counter: Count
    host: str
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    machine: str | None  # tells hosts, boots and containers apart; None if unknown
    started: str | None  # tells the process from a later one with the same id
    progress: RunStatus

    @property
    def is_gone(self) -> bool:
        """Whether the driver is known to have ended: it ran on this host, and its process is gone."""
        return self.machine is not None and self.machine == machine_id() and process_is_gone(self.pid, self.started)


_WRITTEN, _STATUS = TypeAdapter(Written), TypeAdapter(RunStatus)


def as_data(status: RunStatus) -> dict[str, Any]:
    """Return a status as JSON-ready data. Units end the names."""
    return dict(_STATUS.dump_python(status, mode="json"))


def write(folder: Path, *, state: State, run: str, counter: int, run_status: RunStatus) -> None:
    """Replace progress.json. Raise OSError if the disk refuses."""
    written = Written(
        state=state,
        run=run,
        counter=counter,
        host=socket.gethostname(),
        pid=os.getpid(),
        machine=machine_id(),
        started=process_started(os.getpid()),
        progress=run_status,
    )
    path = folder / FILE
    temporary = half_written(path)
    try:
        temporary.write_bytes(_WRITTEN.dump_json(written))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(folder: Path) -> Written | None:
    """Return the content of progress.json, or None if there is none. Raise HpxferError if it cannot be understood."""
    path = folder / FILE
    try:
        return _WRITTEN.validate_json(read_text(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {error.strerror}; name a results folder") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        at = ".".join(map(str, first["loc"]))
        raise HpxferError(
            f"{path}: must hold the progress of a run of this hpxfer, got at {cut(at) or 'its start'}: "
            f"{cut(first['msg'])}; the next run writes a new one"
        ) from None
    except ValueError as error:  # no UTF-8
        raise HpxferError(f"{path}: must be JSON, got: {error}") from None
