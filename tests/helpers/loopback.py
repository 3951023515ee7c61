"""A Ray of its own on loopback: a head, and nodes that come and go. It sees nothing of this machine's other Rays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from ports import free_ports
from waiting import LONG_S, listens, until

_ASK = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))
"""
RAY = (sys.executable, "-m", "ray.scripts.scripts")


@dataclass
class Loopback:
    """A head and its nodes."""

    scratch: Path
    environment: dict[str, str]
    gcs: int
    client: int
    dashboard: int
    agents: list[int]  # free ports; Ray's default for each node may be another Ray's
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)  # the head is the first

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.gcs}"

    def start(self, cpus: int, *how: str) -> subprocess.Popen[bytes]:
        """Start a node, which joins the head unless it is told otherwise."""
        options = [f"--num-cpus={cpus}", f"--temp-dir={self.scratch}/ray", *(how or (f"--address={self.address}",))]
        self.nodes.append(
            subprocess.Popen(
                [*RAY, "start", "--block", *options, f"--dashboard-agent-listen-port={self.agents.pop()}"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self.environment,
            )
        )
        return self.nodes[-1]

    def require_alive(self, number: int) -> None:
        """Wait until the head knows so many nodes. Two that join at once may take the same Unix socket."""
        until(lambda: self._alive() == number, f"there are never {number} nodes")

    def _alive(self) -> int:
        ask = [sys.executable, "-c", _ASK, self.address]
        said = subprocess.run(ask, env=self.environment, capture_output=True, text=True, check=False)
        found = [line for line in said.stdout.splitlines() if line.isdecimal()]  # Ray's own lines stand between
        return int(found[-1]) if found else 0

    def pull(self, node: subprocess.Popen[bytes]) -> None:
        """End a node at once: its raylet, its agents and all its workers."""
        processes = psutil.Process(node.pid).children(recursive=True)
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, timeout=LONG_S)


@contextmanager
def loopback(cpus: int, *, dashboard: bool = False, **environment: str) -> Iterator[Loopback]:
    """Yield a Ray with a head of so many CPUs, and variables of its environment. Afterwards nothing is left of it."""
    scratch = Path(tempfile.mkdtemp(prefix="hpx-"))  # short: Ray puts Unix sockets below it
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    own = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore", "HOME": str(scratch)}
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    gcs, client, web, *agents = free_ports(8)
    found = Loopback(scratch, {**inherited, **own, **path, **environment}, gcs, client, web, agents)
    shown = ("--dashboard-host=127.0.0.1", f"--dashboard-port={web}") if dashboard else ("--include-dashboard=false",)
    ports = f"--port={gcs}", f"--ray-client-server-port={client}"
    try:
        head = found.start(cpus, "--head", "--node-ip-address=127.0.0.1", *ports, *shown)
        for port in (gcs, client, *([web] if dashboard else [])):
            until(lambda port=port: listens(port) or head.poll() is not None, "the head does not listen")
        assert head.poll() is None, "the head ended"
        yield found
    finally:
        for node in reversed(found.nodes):
            children = psutil.Process(node.pid).children(recursive=True) if node.poll() is None else []
            node.terminate()
            try:
                node.wait(30)  # Ray's own end
            except subprocess.TimeoutExpired:
                node.kill()
            for child in psutil.wait_procs(children, timeout=10)[1]:
                child.kill()
        shutil.rmtree(scratch, ignore_errors=True)
