"""Ray clusters on loopback that are there already, joined by address or Ray Client, whose nodes come and go."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil
import pytest
from fixture_types import Folders
from ports import free_ports
from tiny import write_tiny
from waiting import LONG_S, listens, until

from hpxfer.driver import run
from hpxfer.executors.executor import Placement, once
from hpxfer.executors.ray import RayExecutor
from hpxfer.results import load_results
from hpxfer.spec.resources_section import ResourcesSpec
from hpxfer.testing.executor import GO, WAITS, Misbehave, Reported, tiny_stack
from hpxfer.trainer.job import REPORTS, attempt_numbers
from hpxfer.trial import Setting
from hpxfer.trial.events import Event, Started
from hpxfer.trial.stack import Stack


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
        for number in (port, client):
            until(lambda number=number: listens(number) or head.poll() is not None, "ray start does not listen")
        assert head.poll() is None, "ray start ended"
        yield f"127.0.0.1:{port}", f"ray://127.0.0.1:{client}"
    finally:
        head.terminate()
        head.wait(LONG_S)
        shutil.rmtree(scratch, ignore_errors=True)


EDIT = "seeds: 2", "seeds: 1\nprecision: auto"


@pytest.fixture(scope="module")
def here(tmp_path_factory: Folders) -> pd.DataFrame:
    """The trials of a sweep that local processes trained."""
    folder = tmp_path_factory.mktemp("here")
    return run(write_tiny(folder, EDIT), results=folder).trials


@pytest.mark.slow
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


@pytest.mark.slow
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


TRAIN = """
import json, math, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
config = json.load(open(sys.argv[1]))
first = dist.get_rank() == 0
out = open(config["report_file"], "a", buffering=1) if first else None
start = 0
if config["resume"]:
    start = 1 + json.load(open(os.path.join(config["resume"], "step.json")))
for step in range(start, config["steps"]):
    here = torch.ones(1)
    dist.all_reduce(here)
    assert here.item() == 2, here
    time.sleep(0.05)
    if first:
        loss = 2 + (math.log2(config["hps"]["lr"]) + 6) ** 2 / 50 + math.exp(-step / 3) + config["seed"] / 1000
        print(json.dumps({"type": "report", "step": step, "loss": loss}), file=out)
        folder = os.path.join(config["checkpoint_dir"], f"step-{step}")
        os.makedirs(folder, exist_ok=True)
        json.dump(step, open(os.path.join(folder, "step.json"), "w"))
        print(json.dumps({"type": "checkpoint", "step": step, "path": folder}), file=out)
if first:
    print(json.dumps({"type": "result", "status": "finished", "validation_loss": loss}), file=out)
dist.destroy_process_group()
"""

SWEEP = """
name: nodes
trainer:
  command: ["{arg.python}", -m, torch.distributed.run, --nnodes, "{nodes}", --nproc-per-node, "1",
            --node-rank, "{node_rank}", --rdzv-backend, c10d, --rdzv-endpoint, "{rdzv_endpoint}",
            --rdzv-id, "{rdzv_id}", --rdzv-conf, "is_host={rdzv_is_host}", --max-restarts, "0",
            train.py, "{config_json}"]
  files: [train.py]
  args: {python: PYTHON}
  arms: {plain: {}}
  timeouts: {grace_s: 2, start_s: 120}
model: {family: user, own: {d_model: 64}}
training: {steps: 120}
axes: {d_model: [128]}
grid: {lr: [0.015625]}
seeds: 1
resources: {nodes_per_trial: 2}
"""


_ASK = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))
"""


@dataclass
class Nodes:
    """A head without CPUs, and nodes of one CPU each."""

    address: str
    environment: dict[str, str]
    start: Callable[[], subprocess.Popen[bytes]]

    def alive(self) -> int:
        """Return how many nodes the head knows to be alive."""
        ask = [sys.executable, "-c", _ASK, self.address]
        said = subprocess.run(ask, env=self.environment, capture_output=True, text=True, check=False)
        found = [line for line in said.stdout.splitlines() if line.isdecimal()]  # Ray's own lines stand between
        return int(found[-1]) if found else 0

    def pull(self, node: subprocess.Popen[bytes]) -> None:
        """End a node at once, with all of its workers."""
        processes = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, timeout=LONG_S)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    scratch = Path(tempfile.mkdtemp(prefix="hpx-"))  # short: Ray puts Unix sockets below it
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONWARNINGS": "ignore",
        "HOME": str(scratch),
    }
    gcs, client, *agents = free_ports(6)
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--temp-dir={scratch}/ray"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    started: list[subprocess.Popen[bytes]] = []

    def start(*how: str) -> subprocess.Popen[bytes]:
        port = agents[len(started)]
        command = [*ray, *(how or (f"--address=127.0.0.1:{gcs}", "--num-cpus=1"))]
        started.append(subprocess.Popen([*command, f"--dashboard-agent-listen-port={port}"], **quiet))
        return started[-1]

    try:
        head = ["--head", "--node-ip-address=127.0.0.1", f"--port={gcs}", f"--ray-client-server-port={client}"]
        start(*head, "--num-cpus=0", "--include-dashboard=false")
        until(lambda: listens(gcs), "the head does not start")
        yield Nodes(f"127.0.0.1:{gcs}", environment, start)
    finally:
        for process in reversed(started):
            children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
            for child in children:
                if child.is_running():
                    child.kill()
        shutil.rmtree(scratch, ignore_errors=True)


@pytest.mark.slow
def test_a_node_is_killed_in_the_middle_and_the_trial_goes_on_from_its_checkpoint(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("PYTHON", sys.executable))
    first = nodes.start()
    until(lambda: nodes.alive() == 2, "the first node does not join")  # two at once may take the same Unix socket
    second = nodes.start()
    until(lambda: nodes.alive() == 3, "the second node does not join")
    command = [sys.executable, "-m", "hpxfer.cli", "run", "sweep.yaml", "--address", nodes.address, "--yes"]
    driver = subprocess.Popen(
        command, cwd=tmp_path, env=nodes.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        runs = tmp_path / "results" / "nodes" / "runs"
        until(lambda: _reported(runs) > 5 or driver.poll() is not None, "no trial trains")
        nodes.pull(second)
        nodes.start()
        said, _ = driver.communicate(timeout=LONG_S)
    finally:
        if driver.poll() is None:
            driver.kill()
    assert first.poll() is None
    assert driver.returncode == 0, said
    trials = load_results(tmp_path / "results" / "nodes").trials
    assert trials["status"].tolist() == ["finished"] * 2, said
    assert trials["num_nodes"].tolist() == [2, 2]
    hit = [folder for folder in runs.iterdir() if len(attempt_numbers(folder)) > 1]
    assert len(hit) == 1, said
    assert trials.loc[trials["trial_id"] == hit[0].name, "resumes"].tolist() == [1]
    assert not _left(tmp_path), "processes of the trainer are left"


def _reported(runs: Path) -> int:
    return sum(path.read_text().count('"report"') for path in runs.glob(f"*/attempt-*/{REPORTS}"))


def _left(folder: Path) -> list[int]:
    """Return the processes that still run the trainer of this folder."""
    found = []
    for process in psutil.process_iter(["cwd", "cmdline"]):
        if process.info["cwd"] == str(folder) and "train.py" in " ".join(process.info["cmdline"] or ()):
            found.append(process.pid)
    return found
