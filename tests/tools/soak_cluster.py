"""A Ray cluster of two nodes on loopback, of which the second is pulled out and put in again."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ports import free_ports
from soak_processes import Process, kill, processes, wait_until

START_S = 120.0


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
        """Have a cluster while entered."""
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
        kill(process.pid for process in self.processes())
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
        kill(process.pid for process in self.processes() if process.role == "head")

    def start_node(self) -> None:
        """Add the second node; it joins in its own time."""
        self.node = _ray_start([f"--address={self.address}"], self.environment("node"))

    def pull_node(self) -> None:
        """Kill the second node with all that runs on it, as if its cable were cut."""
        kill(process.pid for process in self.processes() if process.role == "node")
        if self.node is not None:
            self.node.wait()

    def processes(self) -> list[Process]:
        """Return the processes of both nodes."""
        return [process for process in processes(self.token) if process.role in ("head", "node")]


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
