"""What a job does on the cluster, without Ray: a run is `hpxfer run`, and whatever goes wrong is an answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from made_results import DIGEST, SPEC, made, trials_of

import hpxfer.cli
from hpxfer.cli.job_entry import main
from hpxfer.jobs.answers import has_mark
from hpxfer.jobs.request import VARIABLE, Answer, Request, packed, read_answer, where
from hpxfer.spec import dump_sweep, load_sweep
from hpxfer.store import Store

JOB = "hpxfer-a-1"


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set what travels with a job."""

    def travel(action: str, root: str, sweep: str = "", name: str = SPEC.name, **more: Any) -> None:
        request = Request(action=action, job=JOB, root=root, name=name, nonce="n", **more)  # type: ignore[arg-type]
        monkeypatch.setenv(VARIABLE, packed(request, sweep))

    monkeypatch.setattr(sys, "argv", ["job_entry"])
    return travel


def answer(capsys: pytest.CaptureFixture[str]) -> Answer:
    main()
    found = read_answer(capsys.readouterr().out, "n")
    assert found is not None
    return found


@pytest.mark.parametrize(("code", "more"), [(0, []), (2, ["--no-strict-memory"])])
def test_a_run_is_the_command_of_that_name_and_its_exit_code_the_jobs(
    code: int, more: list[str], job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def run() -> None:
        sweep = Path(sys.argv[2])
        seen.extend([*sys.argv[:2], load_sweep(sweep) == SPEC, *sys.argv[3:]])
        sys.exit(code)

    monkeypatch.setattr(hpxfer.cli, "main", run)
    root = str(tmp_path / "a root; touch harm")
    monkeypatch.setenv("HOME", "/home/ray")
    job("run", root, dump_sweep(SPEC), reuse=("~/b c", "s3://bucket/x"), strict_memory=not more)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
    reused = ["--reuse=/home/ray/b c", "--reuse=s3://bucket/x"]
    assert seen == ["hpxfer", "run", True, f"--results={root}", *reused, *more, "--address=auto", "--yes"]
    assert has_mark(Path(root, SPEC.name), JOB)
    assert not has_mark(Path(root, SPEC.name), "hpxfer-a")


def test_a_root_below_the_home_of_rays_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ray")
    assert where("~/hpxfer-results") == "/home/ray/hpxfer-results"
    assert where("s3://bucket/~/x") == "s3://bucket/~/x"


def test_a_root_that_cannot_be_written_ends_the_job_with_one_message(
    job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    job("run", str(tmp_path / "file"))
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"hpxfer: {tmp_path}/file/{SPEC.name}: cannot be written")


def test_nothing_travelled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "hpxfer: HPXFER_JOB: must be what `hpxfer submit` packs" in capsys.readouterr().err


def test_results_are_sent_whole(job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.open(tmp_path / SPEC.name, write=True)
    store.append([made(trials_of()[0])])
    store.save_sweep(SPEC, DIGEST)
    (tmp_path / SPEC.name / "secret.txt").write_text("not the store's")
    job("fetch", str(tmp_path))
    found = answer(capsys)
    assert set(found.files) == {"sweep.yaml", "trials-000001.parquet", "curves-000001.parquet"}
    assert all(content == (tmp_path / SPEC.name / name).read_bytes() for name, content in found.files.items())


def test_a_run_that_has_not_begun(job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job("fetch", str(tmp_path))
    assert answer(capsys) == Answer(data={}, files={})


def test_what_nobody_thought_of_is_an_answer_too(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("hpxfer.jobs.answers.files_of", broken)
    job("fetch", str(tmp_path))
    assert answer(capsys).data == {"error": "RuntimeError: a bug"}
