"""Jobs on a Ray of two nodes on loopback: submitted, a node pulled, brought home with the numbers of one machine.

Ray's token authentication is on, with a token of this test's own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from fixture_types import Patch
from lease_holder import holder_of
from loopback import RAY, Loopback, loopback
from tiny import write_tiny
from waiting import LONG_S, until

from hpxfer.jobs import commands as job_commands
from hpxfer.jobs.client import connect
from hpxfer.progress.status import read
from hpxfer.results import load_results
from hpxfer.spec import load_sweep

pytestmark = pytest.mark.slow


TABLE = """
from dataclasses import replace
from hpxfer.scaling import register_parameterization
from hpxfer.scaling.tables import PARAMETERIZATIONS

register_parameterization(replace(PARAMETERIZATIONS.get("completep-moe"), name="travels"))
"""


TRAIN = """
import json, sys
config = json.load(open(sys.argv[1]))
with open(config["report_file"], "a") as out:
    print(json.dumps({"type": "report", "step": 20, "loss": 2.5}), file=out)
    print(json.dumps({"type": "result", "status": "finished", "validation_loss": 2.0}), file=out)
"""
OWN = """
name: mine
trainer: {command: [python3, train.py, "{config_json}"], files: [train.py], arms: {plain: {}}}
model: {family: user, own: {d_model: 64}}
training: {steps: 20}
axes: {d_model: [64]}
grid: {lr: [0.015625, 0.03125]}
seeds: 1
"""


TOKEN = "0123456789abcdef" * 4


@dataclass
class Cluster:
    """A head and a second node, one CPU each."""

    nodes: Loopback

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.nodes.dashboard}"

    def hpxfer(self, *arguments: object, code: int = 0) -> str:
        """Return stdout of a command that ends with `code`; with another code than 0 its stderr."""
        command = [sys.executable, "-m", "hpxfer.cli", *map(str, arguments), "--address", self.address]
        end = self._run(command)
        assert end.returncode == code, end.stdout + end.stderr
        return end.stderr if code else end.stdout

    def ray(self, action: str, *arguments: str) -> str:
        """Return what Ray's own command about a job prints, as `hpxfer submit` names it."""
        end = self._run([*RAY, "job", action, "--address", self.address, *arguments])
        assert end.returncode == 0, end.stdout + end.stderr
        return end.stdout + end.stderr

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, env=self.nodes.environment)

    def get(self, path: str) -> Any:
        """Return what the dashboard answers."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return requests.get(f"{self.address}{path}", headers=headers, timeout=LONG_S).json()["data"]

    def second_pids(self) -> set[int]:
        """Return the second node's processes."""
        return {process.pid for process in psutil.Process(self.nodes.nodes[1].pid).children(recursive=True)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with loopback(1, dashboard=True, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN) as nodes:
        nodes.start(1)
        nodes.require_alive(2)
        yield Cluster(nodes)


@pytest.fixture
def far(cluster: Cluster, monkeypatch: Patch) -> Cluster:
    """The cluster, for calls in this process too; its folders are not seen from here."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, cluster.nodes.environment[name])
    monkeypatch.setattr(job_commands, "_visible_location", lambda *_: None)
    return cluster


def pids(folder: Path) -> set[int]:
    """The workers that have a stack now, by what the run says of itself."""
    written = read(folder)
    assert written is None or written.state == "running", "the run ended before it was seen at work"
    return {stack.pid for stack in written.progress.running} if written else set()


def test_a_job_survives_a_node_and_comes_home_with_the_numbers_of_one_machine(far: Cluster, tmp_path: Path) -> None:
    # Four stacks, each long enough to be seen on its worker: a run says every other second where its stacks are.
    sweep = write_tiny(
        tmp_path,
        *(("steps: 6", "steps: 600"), ("[-8, -4]", "[-6, -5]"), ("seeds: 2", "seeds: 1")),
        *(("[completep-moe, sp]", "[completep-moe]"), (", workers: 2", ", stack_size: 1, checkpoint_s: 1")),
        ("grid:", "precision: auto\ngrid:"),
    )
    head = tmp_path / "head" / "tiny"
    job = far.hpxfer("submit", sweep, "--results", head.parent).strip()
    assert job.startswith("hpxfer-tiny-")
    assert "\n" not in job

    until(lambda: pids(head) & far.second_pids(), "no stack on the second node")
    far.nodes.pull(far.nodes.nodes[1])
    command = [sys.executable, "-m", "hpxfer.cli", "run", str(sweep), "--executor", "local"]
    alone = subprocess.Popen(
        [*command, "--results", str(tmp_path / "local")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    assert "Does lr transfer?" in far.ray("logs", "--follow", job)
    assert "succeeded" in far.ray("status", job)
    assert holder_of(head) is None

    found = job_commands.fetch(connect(far.address), job, tmp_path / "here")
    assert (found.num_new, found.num_known) == (4, 0)
    assert alone.wait(LONG_S) == 0
    assert load_sweep(found.folder / "sweep.yaml").precision == "float32"
    assert _numbers(found.folder) == _numbers(tmp_path / "local" / "tiny")


def _numbers(folder: Path) -> dict[str, tuple[Any, ...]]:
    trials = load_results(folder).trials
    names = ["trial_id", "status", "validation_loss_nats", "final_window_loss_nats"]
    return {row[0]: row[1:] for row in trials[names].itertuples(index=False, name=None)}


def test_a_job_that_is_stopped_keeps_what_it_has_and_gives_the_folder_back(far: Cluster, tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path, ("steps: 6", "steps: 100000"), ("name: tiny", "name: long"))
    head = tmp_path / "head" / "long"
    job = far.hpxfer("submit", sweep, "--results", head.parent).strip()
    until(lambda: pids(head), "no stack")
    assert "is RUNNING, and no trial of it has finished" in far.hpxfer("fetch", job, "--results", tmp_path, code=2)
    assert "was stopped" in far.ray("stop", job)
    assert holder_of(head) is None
    written = read(head)
    assert written.state == "stopped"


def test_a_plugin_travels_with_its_sweep(far: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(TABLE)
    edits = ("[completep-moe, sp]", "[travels, sp]\nplugins: [./mine.py]"), ("[-8, -4]", "[-6, -5]")
    sweep = write_tiny(tmp_path, *edits, ("name: tiny", "name: plugin"), ("executor: local, ", ""))
    job = far.hpxfer("submit", sweep, "--results", tmp_path / "head").strip()
    file.unlink()
    assert "width | travels: " in far.ray("logs", "--follow", job)
    assert "succeeded" in far.ray("status", job)
    found = job_commands.fetch(connect(far.address), job, tmp_path / "here")
    assert set(load_results(found.folder).trials["status"]) == {"finished"}


def test_a_trainer_travels_with_its_sweep(far: Cluster, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "train.py").write_text(TRAIN)
    (here / "mine.yaml").write_text(OWN)
    job = far.hpxfer("submit", here / "mine.yaml", "--results", tmp_path / "head").strip()
    shutil.rmtree(here)  # nothing of it is needed any more
    far.ray("logs", "--follow", job)
    assert "succeeded" in far.ray("status", job)
    assert job_commands.fetch(connect(far.address), job, tmp_path / "home").num_new == 2
    assert set(load_results(tmp_path / "home" / "mine").trials["validation_loss_nats"]) == {2.0}


def test_data_that_the_cluster_does_not_have_stops_the_submission(far: Cluster, tmp_path: Path) -> None:
    source = 'source: "text:nothing here.txt", digest: "0123456789abcdef0123456789abcdef"'
    sweep = write_tiny(tmp_path, ('source: "builtin:stdlib"', source))
    before = _jobs(far)
    said = far.hpxfer("submit", sweep, code=2)
    assert said.startswith(f"hpxfer: {far.address}: node ")
    assert "the sweep's data is not there" in said
    assert "nothing was submitted" in said
    assert "Traceback" not in said
    assert all(job.startswith("hpxfer-check-") for job in _jobs(far) - before)


def test_the_dashboard_sends_no_usage_statistics(far: Cluster) -> None:
    assert far.get("/usage_stats_enabled")["usageStatsEnabled"] is False


def test_jobs_and_tokens_that_the_cluster_does_not_know(far: Cluster, monkeypatch: Patch) -> None:
    nobody = "hpxfer-nobody-1"
    assert f"knows no job {nobody};" in far.hpxfer("fetch", nobody, code=2)
    for name, value, said in (  # each in a process of its own, as Ray remembers what it has read
        ("RAY_AUTH_TOKEN", "no", "does not accept this shell's Ray token"),
        ("RAY_AUTH_MODE", "disabled", "requires Ray's token, and this shell has none"),
    ):
        monkeypatch.setitem(far.nodes.environment, name, value)
        assert said in far.hpxfer("fetch", nobody, code=2)


def _jobs(far: Cluster) -> set[str]:
    return {str(job.submission_id) for job in connect(far.address)._client.list_jobs()}
