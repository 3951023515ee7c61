"""The commands about jobs name the next command so that it can be copied: with the address, quoted for a shell."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from command_line import hpxfer
from far_cluster import ADDRESS, JOB, Far, job_info
from made_results import DIGEST, SPEC, made, trials_of

from hpxfer.errors import HpxferError
from hpxfer.jobs import client
from hpxfer.jobs import commands as job_commands
from hpxfer.jobs.client import JobInfo
from hpxfer.jobs.next_command import DEFAULT_ADDRESS, next_command
from hpxfer.jobs.text import status_text
from hpxfer.store import Store

STATUS = f"hpxfer status {JOB} --address {ADDRESS}"


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Far:
    found = Far(tmp_path / "far", "RUNNING")
    monkeypatch.setattr(client, "connect", lambda address: found)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    return found


@pytest.mark.parametrize(
    ("address", "variable", "ends"),
    [
        (DEFAULT_ADDRESS, None, "hpxfer status a"),
        (DEFAULT_ADDRESS, "http://other:8265", f"hpxfer status a --address {DEFAULT_ADDRESS}"),
        ("http://h:8265", "http://h:8265", "hpxfer status a --address http://h:8265"),
        ("http://[::1]:8265", None, "hpxfer status a --address 'http://[::1]:8265'"),
    ],
)
def test_the_address_is_left_out_only_where_every_shell_takes_it(
    address: str, variable: str | None, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", variable)
    assert next_command("status", "a", address=address) == ends


def test_submit_names_the_address(
    far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offered = job_commands.Offer(
        spec=SPEC,
        root="/root",
        host="head",
        plan={"num_left": 0, "gpu_hours": 0, "worker_hours": 0, "rate_from": ""},
        text="",
        warnings=(),
    )
    monkeypatch.setattr(job_commands, "offer", lambda *_, **__: offered)
    monkeypatch.setattr(job_commands, "submit", lambda *_: JOB)
    code, out, err = hpxfer(capsys, "submit", tmp_path / "a.yaml", "--address", ADDRESS)
    assert (code, out) == (0, f"{JOB}\n")
    assert err.endswith(f"next: {STATUS}\n")
    data = json.loads(hpxfer(capsys, "submit", tmp_path / "a.yaml", "--address", ADDRESS, "--json")[1])
    assert (data["job"], data["address"]) == (JOB, ADDRESS)


def test_a_log_that_is_left_names_the_status(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = hpxfer(capsys, "logs", JOB, "--follow", "--address", ADDRESS)
    assert code == 130
    assert err.endswith(f"next: {STATUS}\n")


def test_a_failed_job_names_its_log() -> None:
    text = status_text(job_commands.JobStatus(info=job_info(JOB, "FAILED", {}), progress={}), ADDRESS)
    assert f"(all of it: hpxfer logs {JOB} --address {ADDRESS}):" in text


def test_a_job_that_does_not_end_names_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = object.__new__(client.Cluster)
    cluster.address = ADDRESS
    cluster._client = Far(Path())  # type: ignore[assignment]
    monkeypatch.setattr(cluster._client, "stop_job", lambda job: None, raising=False)
    monkeypatch.setattr(client.Cluster, "info", lambda _, job: job_info(job, "RUNNING", {}))
    monkeypatch.setattr(client, "STOP_S", -40)
    with pytest.raises(HpxferError, match=f"see `{STATUS}`"):
        cluster.stop(JOB)


def test_what_was_fetched_names_the_report_and_nothing_names_none(
    far: Far, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "my results"
    code, out, err = hpxfer(capsys, "fetch", JOB, "--address", ADDRESS, "--results", here)
    assert (code, out) == (2, "")
    assert err == f"hpxfer: {JOB}: has no results yet, it is RUNNING; see `{STATUS}`\n"
    assert not here.exists()
    store = Store.open(far.root / SPEC.name, write=True)
    store.append([made(trials_of()[0])])
    store.save_sweep(SPEC, DIGEST)
    code, out, err = hpxfer(capsys, "fetch", JOB, "--address", ADDRESS, "--results", here)
    assert (code, out) == (0, f"{here}/{SPEC.name}: 1 trials are new, 0 were here\n")
    said = err.removeprefix("next: ").rstrip("\n")
    assert shlex.split(said) == ["hpxfer", "report", f"{here}/{SPEC.name}"]


def test_status_without_a_job_lists_the_jobs_of_submit(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hpxfer(capsys, "status", "--address", ADDRESS)
    assert code == 0
    heading, *lines = out.splitlines()
    assert heading.split() == ["job", "sweep", "state", "started", "results"]
    assert [line.split()[:3] for line in lines] == [[f"hpxfer-a-{at}", SPEC.name, "RUNNING"] for at in (2, 1)]
    assert lines[0].split()[3].startswith("2033-05-1")
    assert err == f"next: hpxfer status hpxfer-a-2 --address {ADDRESS}\n"
    data = json.loads(hpxfer(capsys, "status", "--json", "--address", ADDRESS)[1])
    assert data["address"] == ADDRESS
    assert [(job["job"], job["sweep"], job["state"], job["started"]) for job in data["jobs"]] == [
        ("hpxfer-a-2", SPEC.name, "RUNNING", "2033-05-18T03:33:20+00:00"),
        ("hpxfer-a-1", SPEC.name, "RUNNING", "2001-09-09T01:46:40+00:00"),
    ]


def test_a_cluster_without_jobs_says_so(
    far: Far, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    none: list[JobInfo] = []
    monkeypatch.setattr(far, "jobs", lambda: none)
    assert hpxfer(capsys, "status", "--address", ADDRESS) == (0, f"{ADDRESS}: has no job of `hpxfer submit`\n", "")
    assert json.loads(hpxfer(capsys, "status", "--json", "--address", ADDRESS)[1])["jobs"] == []
