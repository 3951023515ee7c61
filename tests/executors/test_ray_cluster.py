"""Ray clusters on loopback that are there already, joined by address or Ray Client, whose nodes come and go."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
from fixture_types import Folders
from loopback import Loopback, loopback
from tiny import write_tiny
from waiting import LONG_S, until

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


@pytest.fixture(scope="module")
def cluster() -> Iterator[Loopback]:
    """A cluster of one node of two CPUs. It has the token of this process, which joins it, too."""
    own = {name: value for name, value in os.environ.items() if name == "HOME" or name.startswith("RAY_AUTH")}
    with loopback(2, **own) as found:
        yield found


EDIT = "seeds: 2", "seeds: 1\nprecision: auto"


@pytest.fixture(scope="module")
def here(tmp_path_factory: Folders) -> pd.DataFrame:
    """The trials of a sweep that local processes trained."""
    folder = tmp_path_factory.mktemp("here")
    return run(write_tiny(folder, EDIT), results=folder).trials


@pytest.mark.slow
@pytest.mark.parametrize("client", [False, True], ids=["address", "client"])
def test_a_sweep_through_a_cluster_has_the_bits_of_local_processes(
    client: bool, cluster: Loopback, here: pd.DataFrame, tmp_path: Path
) -> None:
    sweep = write_tiny(tmp_path, EDIT)
    command = [sys.executable, "-m", "hpxfer.cli", "run", str(sweep), "--results", str(tmp_path / "there")]
    address = f"ray://127.0.0.1:{cluster.client}" if client else cluster.address
    end = subprocess.run(
        [*command, "--address", address], capture_output=True, text=True, timeout=LONG_S, env=cluster.environment
    )
    assert end.returncode == 0, end.stderr
    there = load_results(tmp_path / "there" / "tiny").trials
    assert set(there["status"]) == {"finished"}
    assert set(there["precision"]) == {"float32"}
    losses = "validation_loss_nats"
    assert dict(zip(there["trial_id"], there[losses], strict=True)) == dict(
        zip(here["trial_id"], here[losses], strict=True)
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own, in its own threads
def test_a_node_that_joins_is_used_and_one_that_is_pulled_is_survived(
    cluster: Loopback, setting: Setting, tmp_path: Path
) -> None:
    """Four stacks that wait: two run, a node comes and takes two, is killed, and they go on where they can."""
    stacks = [tiny_stack(setting, WAITS, size=1, name=name) for name in "abcd"]
    seen, nodes = Reported(), list[subprocess.Popen[bytes]]()

    def on_event(stack: Stack, event: Event) -> None:
        seen.on_event(stack, event)
        started = sum(len(seen.starts(stack)) for stack in stacks)
        if isinstance(event, Started) and started == 2:
            nodes.append(cluster.start(2))
        if isinstance(event, Started) and started == 4:
            cluster.pull(nodes[0])
            (tmp_path / GO).touch()

    placement = Placement(resources=ResourcesSpec(device="cpu"), address=cluster.address)
    RayExecutor(placement).run(once(stacks), Misbehave(str(tmp_path)), on_event)
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


@pytest.mark.slow
def test_a_node_is_killed_in_the_middle_and_the_trial_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("PYTHON", sys.executable))
    with loopback(0) as nodes:
        first = nodes.start(1)
        nodes.require_alive(2)
        second = nodes.start(1)
        nodes.require_alive(3)
        command = [sys.executable, "-m", "hpxfer.cli", "run", "sweep.yaml", "--address", nodes.address, "--yes"]
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        driver = subprocess.Popen(command, cwd=tmp_path, env=nodes.environment, **piped)
        try:
            runs = tmp_path / "results" / "nodes" / "runs"
            until(lambda: _reported(runs) > 5 or driver.poll() is not None, "no trial trains")
            nodes.pull(second)
            nodes.start(1)
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
