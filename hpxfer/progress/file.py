"""progress.json in a results folder: how far its run is, for `hpxfer watch` in another shell.

The driver writes it every two seconds, if it still holds the lease; a reader sees a whole file or none. It is only for
display: nothing resumes from it, and a disk that refuses it stops no run. By its counter, readers tell a live driver
from a dead one.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from hpxfer.errors import HpxferError, shown
from hpxfer.host.files import half_written, read_text
from hpxfer.host.process import machine_id, process_is_gone, process_started
from hpxfer.progress.counts import RunCounts
from hpxfer.progress.status import RunStatus, run_status_from_dict

FILE = "progress.json"
EVERY_S = 2.0

# ended: the run came to its end; stopped: it was interrupted, or met an error.
State = Literal["running", "ended", "stopped"]


@dataclass(frozen=True, kw_only=True)
class Written:
    """The content of progress.json. `counter` grows with every write of a driver, `run` tells drivers apart."""

    state: State
    run: str
    counter: int
    host: str
    pid: int
    machine: str | None  # tells hosts, boots and containers apart; None if unknown
    started: str | None  # tells the process from a later one with the same id
    run_status: RunStatus

    @property
    def is_gone(self) -> bool:
        """Whether the driver is known to have ended: it ran on this host, and its process is gone."""
        return self.machine is not None and self.machine == machine_id() and process_is_gone(self.pid, self.started)


@contextmanager
def writing(
    folder: Path,
    counts: RunCounts,
    every_s: float = EVERY_S,
    *,
    allowed: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[None]:
    """Keep `folder`/progress.json up to date as long as the context is open, and write at its end how the run ended.

    A thread writes, so that the counter moves while no stack reports. `allowed` is entered for every write. It raises
    HpxferError where this process may not write now; then the file stays as it is.
    """
    run, counter, done = os.urandom(8).hex(), 0, threading.Event()

    def put(state: State) -> None:
        nonlocal counter
        counter += 1
        # A full disk is reported by the store, which cannot go on without it. This file can.
        with suppress(OSError, HpxferError), allowed():
            write(folder, state=state, run=run, counter=counter, run_status=counts.run_status())

    def write_regularly() -> None:
        while not done.wait(every_s):
            put("running")

    put("running")
    thread = threading.Thread(target=write_regularly, name="hpxfer-progress", daemon=True)
    thread.start()
    state: State = "stopped"
    try:
        yield
        state = "ended"
    finally:
        done.set()
        thread.join()
        put(state)


def write(folder: Path, *, state: State, run: str, counter: int, run_status: RunStatus) -> None:
    """Replace progress.json. Raise OSError if the disk refuses."""
    pid = os.getpid()
    process = {"host": socket.gethostname(), "pid": pid, "machine": machine_id(), "started": process_started(pid)}
    data = {"state": state, "run": run, "counter": counter, **process}
    path = folder / FILE
    temporary = half_written(path)
    try:
        temporary.write_text(json.dumps({**data, "progress": run_status.to_dict()}, allow_nan=False), encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(folder: Path) -> Written | None:
    """Return the content of progress.json, or None if there is none. Raise HpxferError if it cannot be understood."""
    path = folder / FILE
    try:
        data = json.loads(read_text(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {error.strerror}; name a results folder") from None
    except (ValueError, RecursionError):
        raise HpxferError(
            f"{path}: must be JSON, got something else; remove it, and the next run writes a new one"
        ) from None
    try:
        run_status = run_status_from_dict(data["progress"], str(path))
        state, counter, pid = data["state"], int(data["counter"]), int(data["pid"])
        if state not in get_args(State):
            raise ValueError(f"state {shown(state)}")
        if not 0 < pid < 2**31:
            raise ValueError(f"pid {shown(pid)}")
        return Written(
            state=state,
            run=str(data["run"]),
            counter=counter,
            host=str(data["host"]),
            pid=pid,
            machine=data["machine"],
            started=data["started"],
            run_status=run_status,
        )
    except HpxferError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise HpxferError(
            f"{path}: must hold the progress of a run, got {error}; remove it, and the next run writes a new one"
        ) from None
