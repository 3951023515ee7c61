"""Supervised: a command under its supervisor, seen from the process that started it."""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

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
    left: Sequence[int] = ()  # processes that SIGKILL did not end


class Supervised:
    """A running command. As a context manager it kills the command, and all that it started, at the end."""

    def __init__(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdout: Path, stderr: Path, grace_s: float
    ) -> None:
        self.is_ending = False  # the command has ended, or is being killed; some processes may be left
        self._mark, self._exit, self._deadline = uuid.uuid4().hex, None, math.inf
        with stderr.with_name("supervisor").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", os.path.abspath(supervisor.__file__)],  # -I: no variable of the user's counts
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL")},
                start_new_session=True,
            )
        self._requests: IO[bytes] = self._process.stdin  # type: ignore[assignment]
        self._events: IO[bytes] = self._process.stdout  # type: ignore[assignment]
        paths = {"cwd": str(cwd), "stdout": str(stdout), "stderr": str(stderr)}
        self._send({"argv": list(argv), **paths, "env": {**env, MARK: self._mark}, "grace_s": grace_s})

    def __enter__(self) -> Supervised:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()  # the supervisor takes it as a request to kill
        self._ends_in(supervisor.QUICK_S)
        while self.wait(0.2) is None:
            pass
        self._process.wait()
        self._events.close()

    def wait(self, timeout_s: float) -> Exit | None:
        """Return how the command ended, or None if it still runs after the time."""
        if self._exit is None and time.monotonic() > self._deadline:
            self._abandon("it did not answer")
        if self._exit is not None or not select.select([self._events], [], [], timeout_s)[0]:
            return self._exit
        if not (line := self._events.readline()):
            self._abandon("it was killed")
        elif "exited" not in (event := json.loads(line)):
            self._exit = Exit(**event)
        elif not self.is_ending:
            self._ends_in(supervisor.QUICK_S)
        return self._exit

    def kill(self, grace_s: float, *, stacks: bool = False) -> None:
        """Ask for SIGTERM, and for SIGKILL after `grace_s`. `stacks`: processes that can write their stacks before."""
        self._ends_in(grace_s)
        self._send({"grace_s": grace_s, "stacks": stacks})

    def _ends_in(self, grace_s: float) -> None:
        self.is_ending = True
        self._deadline = time.monotonic() + grace_s + supervisor.GIVE_UP_S + SLACK_S

    def _abandon(self, why: str) -> None:
        """Kill the supervisor, and the processes with its mark."""
        self._process.kill()
        self._process.wait()
        end_marked(MARK, {self._mark})
        self._exit = Exit(lost=f"the supervisor of the command is gone: {why}")

    def _send(self, message: Mapping[str, object]) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        with suppress(BrokenPipeError, ValueError):  # it has ended, or is closed: `wait` says how
            while data:
                data = data[self._requests.write(data) :]


def end_marked(variable: str, values: Set[str]) -> None:
    """End all processes of this user whose environment gives a variable one of the values, until there is none."""
    deadline, found = time.monotonic() + supervisor.GIVE_UP_S, True
    while found and time.monotonic() < deadline:
        found = False
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(variable) in values:
                    process.kill()
                    found = True
        time.sleep(0.02 if found else 0.0)
