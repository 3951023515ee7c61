"""Processes of a soak: found through /proc by their environment, and killed by number."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Variables in the environment of a soak's processes: of which soak, and in which role the first of them was started.
TOKEN, ROLE = "HPXFER_SOAK", "HPXFER_SOAK_ROLE"


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process that is there."""

    pid: int
    command: str
    role: str  # driver, head or node

    @property
    def is_trainer(self) -> bool:
        """Whether it is a user's own trainer, or one of its ranks."""
        return "soak_trainer.py" in self.command

    @property
    def is_rank(self) -> bool:
        """Whether it is a rank of a user's own trainer beside the first."""
        return self.is_trainer and "--rank" in self.command

    @property
    def trains(self) -> bool:
        """Whether it is a worker: a local one, or Ray's with an actor or a task of ours."""
        ours = self.command.startswith("ray::") and not self.command.startswith(_RAYS_OWN)
        return "hpxfer.executors.local" in self.command or ours


_RAYS_OWN = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


def processes(token: str) -> list[Process]:
    """Return the processes of a soak."""
    out = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            # It may end while it is looked at; one that has ended and waits for its parent has no environment.
            with suppress(OSError):
                environment = dict(_pairs((path / "environ").read_bytes()))
                if environment.get(TOKEN) == token:
                    command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    out.append(Process(pid=int(path.name), command=command, role=environment.get(ROLE, "")))
    return out


def supervisors(folder: Path) -> dict[int, int]:
    """Return pid -> pid of the parent, of the supervisors of trials below a folder. They have no variables of ours."""
    out = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                if b"/trainer/supervisor.py" in (path / "cmdline").read_bytes():
                    log = Path(os.readlink(path / "fd" / "2"))
                    parent = (path / "stat").read_bytes().rpartition(b")")[2].split()[1]
                    if log.is_relative_to(folder):
                        out[int(path.name)] = int(parent)
    return out


def kill(pids: Iterable[int]) -> None:
    """Kill processes, as a power cut would; who has gone already has."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Return whether a condition came true in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _pairs(block: bytes) -> Iterable[tuple[str, str]]:
    for variable in block.split(b"\0"):
        name, equals, value = variable.decode(errors="replace").partition("=")
        if equals:
            yield name, value
