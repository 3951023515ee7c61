"""A Ray cluster that is already there, joined by address and through Ray Client, whose nodes come and go."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
from ports import free_ports
from tiny import write_tiny

from hpxfer.driver import run
from hpxfer.executors.executor import once
from hpxfer.executors.placement import Placement
from hpxfer.executors.ray import RayExecutor
from hpxfer.results import load_results
from hpxfer.spec.resources_section import ResourcesSpec
from hpxfer.testing.executor import GO, WAITS, Misbehave, Reported, tiny_stack
from hpxfer.trial import Setting
from hpxfer.trial.events import Event, Started
from hpxfer.trial.stack import Stack

pytestmark = pytest.mark.slow

LONG_S = 900  # of anything that is waited for; a loaded machine is slow, a test that hangs must still end


def ray_start(*options: str) -> subprocess.Popen[bytes]:
    """Start a node of two CPUs on loopback."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=2"]
    command += ["--node-ip-address=127.0.0.1", *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, str]]:
    """The address of a one-node cluster on loopback and that of its client server."""
    port, client = free_ports(2)
    scratch = tempfile.mkdtemp(prefix="hpxfer-ray-")  # short: Ray puts Unix sockets below it
    head = ray_start(
        *("--head", f"--port={port}", f"--ray-client-server-port={client}"),
        *("--include-dashboard=false", f"--temp-dir={scratch}"),
    )
    try:
        deadline = time.monotonic() + LONG_S
        for number in (port, client):
            while True:
                assert head.poll() is None, "ray start ended"
                try:
                    socket.create_connection(("127.0.0.1", number), timeout=1).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, "ray start does not listen"
                    time.sleep(0.1)
        yield f"127.0.0.1:{port}", f"ray://127.0.0.1:{client}"
    finally:
        head.terminate()
        head.wait(LONG_S)
        shutil.rmtree(scratch, ignore_errors=True)


EDIT = "seeds: 2", "seeds: 1\nprecision: auto"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The trials of a sweep that local processes trained."""
    folder = tmp_path_factory.mktemp("here")
    return run(write_tiny(folder, EDIT), results=folder).trials


@pytest.mark.parametrize("kind", [0, 1], ids=["address", "client"])
def test_a_sweep_through_a_cluster_has_the_bits_of_local_processes(
    kind: int, cluster: tuple[str, str], here: pd.DataFrame, tmp_path: Path
) -> None:
    sweep = write_tiny(tmp_path, EDIT)
    command = [sys.executable, "-m", "hpxfer.cli", "run", str(sweep), "--results", str(tmp_path / "there")]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    end = subprocess.run(
        [*command, "--address", cluster[kind]], capture_output=True, text=True, timeout=LONG_S, env=environment
    )
    assert end.returncode == 0, end.stderr
    there = load_results(tmp_path / "there" / "tiny").trials
    assert set(there["status"]) == {"finished"}
    assert set(there["precision"]) == {"float32"}
    losses = "validation_loss_nats"
    assert dict(zip(there["trial_id"], there[losses], strict=True)) == dict(
        zip(here["trial_id"], here[losses], strict=True)
    )


def pull(node: subprocess.Popen[bytes]) -> None:
    """Kill all processes of a node at once."""
    for process in psutil.Process(node.pid).children(recursive=True):
        process.kill()


@pytest.mark.filterwarnings("ignore")  # Ray's own, in its own threads
def test_a_node_that_joins_is_used_and_one_that_is_pulled_is_survived(
    cluster: tuple[str, str], setting: Setting, tmp_path: Path
) -> None:
    """Four stacks that wait: two run, a node comes and takes two, is killed, and they go on where they can."""
    stacks = [tiny_stack(setting, WAITS, size=1, name=name) for name in "abcd"]
    seen, nodes = Reported(), list[subprocess.Popen[bytes]]()

    def on_event(stack: Stack, event: Event) -> None:
        seen.on_event(stack, event)
        started = sum(len(seen.starts(stack)) for stack in stacks)
        if isinstance(event, Started) and started == 2:
            nodes.append(ray_start(f"--address={cluster[0]}"))
        if isinstance(event, Started) and started == 4:
            pull(nodes[0])
            (tmp_path / GO).touch()

    try:
        RayExecutor(Placement(resources=ResourcesSpec(device="cpu"), address=cluster[0])).run(
            once(stacks), Misbehave(str(tmp_path)), on_event
        )
    finally:
        for node in nodes:
            node.terminate()
            node.wait(LONG_S)
    assert {result.status for result in seen.results.values()} == {"finished"}
    assert sum(len(seen.starts(stack)) for stack in stacks) == 6
