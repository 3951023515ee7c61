"""Supervised: a command under its supervisor, seen from the process that started it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpxfer.trainer import supervisor

# The variable by which the processes of a command are found if their supervisor itself was killed.
MARK = "HPXFER_MARK"
# Beyond the time that the supervisor needs at most. A supervisor that takes longer is killed.
SLACK_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a command ended."""

    code: int | None = None  # an exit code, or the negative number of a signal; None: it was not seen
    not_started: str | None = None  # why there was no command
    no_memory: bool = False  # the system had no memory or no process left to start it
    oom_kills: int = 0  # processes of the control group that were killed meanwhile for lack of memory
    lost: str | None = None  # why nobody knows: the supervisor was killed
    asked: bool = False  # others sent SIGTERM to the supervisor, and so to the command too, as Slurm does
    left: tuple[int, ...] = ()  # processes that SIGKILL did not end


class Supervised:
    """A running command. As a context manager it kills the command, and all that it started, at the end."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        grace_s: float,
    ) -> None:
        self._mark = uuid.uuid4().hex
        self._events = b""
        self._exit: Exit | None = None
        self._deadline: float | None = None
        self.is_ending = False  # the command has ended, or is being killed; some processes may be left
        script = os.path.abspath(supervisor.__file__)
        # Isolated: neither the user's variables nor site-packages decide what the supervisor imports.
        with stderr.with_name("supervisor").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL")},
                start_new_session=True,
            )
        task = {
            "argv": list(argv),
            "cwd": str(cwd),
            "env": {**env, MARK: self._mark},
            "stdout": str(stdout),
            "stderr": str(stderr),
            "grace_s": grace_s,
        }
        self._send(task)

    def __enter__(self) -> Supervised:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, timeout_s: float) -> Exit | None:
        """Return how the command ended, or None if it still runs after the time."""
        if self._exit is not None:
            return self._exit
        if self._deadline is not None and time.monotonic() > self._deadline:
            self._abandon("it did not answer")
            return self._exit
        out = self._process.stdout
        assert out is not None
        if not select.select([out], [], [], timeout_s)[0]:
            return None
        data = os.read(out.fileno(), 65536)
        if not data:
            self._abandon("it was killed")
            return self._exit
        *lines, self._events = (self._events + data).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))
        return self._exit

    def kill(self, grace_s: float, *, stacks: bool = False) -> None:
        """Ask for SIGTERM, and for SIGKILL after `grace_s`. `stacks`: processes that can write their stacks before."""
        self._ends_in(grace_s)
        self._send({"grace_s": grace_s, "stacks": stacks})

    def close(self) -> None:
        """Kill whatever still runs, and wait for its end."""
        pipe = self._process.stdin
        assert pipe is not None
        with suppress(BrokenPipeError):
            pipe.close()  # the supervisor takes it as a request to kill
        self._ends_in(supervisor.QUICK_S)
        while self.wait(0.2) is None:
            pass
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ends_in(self, grace_s: float) -> None:
        self.is_ending = True
        self._deadline = time.monotonic() + grace_s + supervisor.GIVE_UP_S + SLACK_S

    def _hear(self, event: Mapping[str, object]) -> None:
        match event:
            case {"event": "exited"} if not self.is_ending:
                self._ends_in(supervisor.QUICK_S)
            case {"event": "ended", "code": int() | None as code, "oom_kills": int(kills), "left": list(left)}:
                self._exit = Exit(code=code, oom_kills=kills, asked=bool(event["asked"]), left=tuple(left))
            case {"event": "not_started", "what": what, "why": why, "errno": number}:
                named = f"{what}: {why}" if what else str(why)
                self._exit = Exit(not_started=named, no_memory=number in supervisor.NO_MEMORY)

    def _abandon(self, why: str) -> None:
        """Kill the supervisor, and the processes with its mark."""
        self._process.kill()
        self._process.wait()
        end_marked({f"{MARK}={self._mark}".encode()})
        self._exit = Exit(lost=f"the supervisor of the command is gone: {why}")

    def _send(self, message: Mapping[str, object]) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with suppress(BrokenPipeError, ValueError):  # it has ended, or is closed: `wait` says how
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()


def end_marked(marks: Set[bytes]) -> None:
    """Send SIGKILL to all processes of this user with one of the marks in their environment, until there is none.

    A mark is a variable and its value, e.g. b"NAME=value".
    """
    deadline = time.monotonic() + supervisor.GIVE_UP_S
    while (found := [pid for pid in supervisor.parents() if _has_mark(pid, marks)]) and time.monotonic() < deadline:
        supervisor.signal_all(found, signal.SIGKILL)
        time.sleep(0.02)


def _has_mark(pid: int, marks: Set[bytes]) -> bool:
    try:
        return not marks.isdisjoint((supervisor.PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return False
