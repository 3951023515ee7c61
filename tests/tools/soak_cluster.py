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

    address: str
    scratch: Path
    environment: Callable[[str], dict[str, str]]
    token: str  # by which its processes are known
    head: subprocess.Popen[bytes]
    node: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextmanager
    def started(cls, environment: Callable[[str], dict[str, str]], token: str) -> Iterator[Cluster]:
        """Have a cluster while entered."""
        (port,) = free_ports(1)
        scratch = Path(tempfile.mkdtemp(prefix="hpx-"))  # short: Ray puts Unix sockets below it
        own = [f"--port={port}", "--head", "--include-dashboard=false", f"--temp-dir={scratch}"]
        cluster = cls(f"127.0.0.1:{port}", scratch, environment, token, _ray_start(own, environment("head")))
        try:
            if not wait_until(lambda: _listens(port), START_S) or cluster.head.poll() is not None:
                raise AssertionError("ray start --head does not listen")
            cluster.start_node()
            yield cluster
        finally:
            kill(process.pid for process in cluster.processes())
            cluster.head.wait()
            if cluster.node is not None:
                cluster.node.wait()
            shutil.rmtree(scratch, ignore_errors=True)

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
