"""A Ray cluster that is already there, joined by address and through Ray Client: the same bits as on this machine."""

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

import pytest
from tiny import write_tiny

from hpxfer.driver import run
from hpxfer.results import load_results


def free_port() -> int:
    """Return a port that nothing listens on, outside Ray's default range for workers (10002-19999)."""
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
        if not 10002 <= port <= 19999:
            return port


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, str]]:
    """The address of a one-node cluster on loopback and that of its client server."""
    port, client = free_port(), free_port()
    scratch = tempfile.mkdtemp(prefix="hpxfer-ray-")  # short: Ray puts Unix sockets below it
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"]
    command += ["--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={client}"]
    command += ["--include-dashboard=false", f"--temp-dir={scratch}"]
    head = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        for one in (port, client):
            while True:
                assert head.poll() is None, "ray start ended"
                try:
                    socket.create_connection(("127.0.0.1", one), timeout=1).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, "ray start does not listen"
                    time.sleep(0.1)
        yield f"127.0.0.1:{port}", f"ray://127.0.0.1:{client}"
    finally:
        head.terminate()
        head.wait(30)
        shutil.rmtree(scratch, ignore_errors=True)


@pytest.mark.parametrize("kind", [0, 1], ids=["address", "client"])
def test_a_sweep_through_a_cluster_has_the_bits_of_local_processes(
    kind: int, cluster: tuple[str, str], tmp_path: Path
) -> None:
    sweep = write_tiny(tmp_path, ("seeds: 2", "seeds: 1"))
    command = [sys.executable, "-m", "hpxfer.cli", "run", str(sweep), "--results", str(tmp_path / "there")]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    end = subprocess.run(
        [*command, "--address", cluster[kind]], capture_output=True, text=True, timeout=120, env=environment
    )
    assert end.returncode == 0, end.stderr
    there = load_results(tmp_path / "there" / "tiny").trials
    here = run(sweep, results=tmp_path / "here").trials
    assert set(there["status"]) == {"finished"}
    losses = "validation_loss_nats"
    assert dict(zip(there["trial_id"], there[losses], strict=True)) == dict(
        zip(here["trial_id"], here[losses], strict=True)
    )
