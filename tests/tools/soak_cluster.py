"""Processes of a soak, found through /proc by their environment and killed by number, and a Ray cluster of two nodes on
loopback, of which the second is pulled out and put in again.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ports import free_ports

START_S = 120.0
# Variables in the environment of a soak's processes: of which soak, and in which role the first of them was started.
TOKEN, ROLE = "HPXFER_SOAK", "HPXFER_SOAK_ROLE"


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process that is there."""

    pid: int
    command: str
    role: str  # driver, head or node

    @property
    def kind(self) -> str:
        """A worker, local or Ray's; a user's own trainer, or a rank beside its first; else the role."""
        if "soak_trainer.py" in self.command:
            return "rank" if "--rank" in self.command else "trainer"
        ours = self.command.startswith("ray::") and not self.command.startswith(_RAYS_OWN)
        return "worker" if "hpxfer.executors.local" in self.command or ours else self.role


_RAYS_OWN = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


def processes(token: str) -> list[Process]:
    """Return the processes of a soak.

    Ray's workers and agents set their titles, which overwrites part of their environment. What it no longer says holds
    as for their parent.
    """
    parents, commands = dict[int, int](), dict[int, str]()
    tokens, roles = dict[int, str](), dict[int, str]()
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            # It may end while it is looked at; one that has ended and waits for its parent has no environment.
            with suppress(OSError):
                pid, block = int(path.name), (path / "environ").read_bytes().decode(errors="replace")
                environment = dict(pair.split("=", 1) for pair in block.split("\0") if "=" in pair)
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                parents[pid] = int((path / "stat").read_bytes().rpartition(b")")[2].split()[1])
                tokens[pid], roles[pid] = environment.get(TOKEN, ""), environment.get(ROLE, "")
                commands[pid] = command

    def said(of: dict[int, str], pid: int) -> str:
        while not of.get(pid) and pid in parents:
            pid = parents[pid]
        return of.get(pid, "")

    return [
        Process(pid=pid, command=command, role=said(roles, pid))
        for pid, command in commands.items()
        if said(tokens, pid) == token
    ]


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


@dataclass
class Cluster:
    """Two nodes of this machine. `environment` gives the one of a process in a role."""

    environment: Callable[[str], dict[str, str]]
    token: str  # by which its processes are known
    address: str = ""
    scratch: Path | None = None
    head: subprocess.Popen[bytes] | None = None
    node: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextmanager
    def started(cls, environment: Callable[[str], dict[str, str]], token: str) -> Iterator[Cluster]:
        cluster = cls(environment, token)
        try:
            cluster._start()
            yield cluster
        finally:
            cluster._end()

    def _start(self) -> None:
        """Start both nodes, on a port and in a folder of their own."""
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.scratch = Path(tempfile.mkdtemp(prefix="hpx-"))  # short: Ray puts Unix sockets below it
        own = [f"--port={port}", "--head", "--include-dashboard=false", f"--temp-dir={self.scratch}"]
        self.head = _ray_start(own, self.environment("head"))
        if not wait_until(lambda: _listens(port), START_S) or self.head.poll() is not None:
            raise AssertionError("ray start --head does not listen")
        self.start_node()

    def _end(self) -> None:
        """Kill both nodes."""
        self._kill("head", "node")
        for process in (self.head, self.node):
            if process is not None:
                process.wait()
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def restart(self) -> None:
        """Start another cluster in place of one whose head is gone."""
        self._end()
        self._start()

    def pull_head(self) -> None:
        """Kill the head with all that runs on it: the cluster's own store, its scheduler and its workers."""
        self._kill("head")

    def start_node(self) -> None:
        """Add the second node; it joins in its own time."""
        self.node = _ray_start([f"--address={self.address}"], self.environment("node"))

    def pull_node(self) -> None:
        """Kill the second node with all that runs on it, as if its cable were cut."""
        self._kill("node")
        if self.node is not None:
            self.node.wait()

    def _kill(self, *roles: str) -> None:
        kill(process.pid for process in processes(self.token) if process.role in roles)


def _ray_start(options: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1", *options]
    command += ["--node-ip-address=127.0.0.1", "--disable-usage-stats"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment, start_new_session=True)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
