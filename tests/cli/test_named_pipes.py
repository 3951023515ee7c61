"""A named pipe in place of a file: every command says at once that it must be a regular file, and never waits."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Fails, hpxfer
from tiny import write_tiny

from hpxfer.driver import run

SAID = "must be a regular file, got a named pipe"


@pytest.fixture(autouse=True)
def no_wait() -> Iterator[None]:
    """End a test that waits for a writer."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(write_tiny(folder), results=folder / "results", executor=Fails(0))
    return folder


@pytest.mark.parametrize(
    ("file", "command", "code"),
    [
        ("sweep.yaml", "report {folder}", 2),
        ("sweep.yaml", "recipe {folder}", 2),
        ("sweep.yaml", "plan {folder}/sweep.yaml", 2),
        ("sweep.yaml", "list {folder}", 0),
        ("lease.json", "watch --once {folder}", 2),
        ("lease.json", "run --yes {folder}/../../tiny.yaml --results {folder}/..", 2),
        ("lease.json", "list {folder}", 0),
        ("progress.json", "watch --once {folder}", 2),
    ],
)
def test_in_a_results_folder(
    file: str, command: str, code: int, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "results" / "tiny"
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)
    found, _, err = hpxfer(capsys, *command.format(folder=folder).split())
    assert found == code
    assert SAID in err


def test_trials_in_a_pipe_are_passed_over(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    os.mkfifo(tmp_path / "results" / "tiny" / "trials-1.parquet")
    code, _, err = hpxfer(capsys, "report", "--format", "text", tmp_path / "results" / "tiny")
    assert code == 0
    assert "trials-1.parquet" in err


@pytest.mark.parametrize(
    "command",
    [
        "plan pipe.yaml",
        "explain --sweep pipe.yaml",
        "explain --recipe pipe.yaml",
        "check --sweep pipe.yaml",
        "explain --parameterization sp --base shape.json --target pipe.json",
        "explain --list --plugin ./pipe.py",
        "plan pipe-data.yaml",
    ],
)
def test_as_a_file_of_the_user(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pipe.yaml", "pipe.json", "pipe.py", "pipe.txt"):
        os.mkfifo(name)
    Path("shape.json").write_text(json.dumps({"width": 32, "depth": 2, "head_dim": 32, "dense_width": 32}))
    text = write_tiny(tmp_path).read_text()
    Path("pipe-data.yaml").write_text(text.replace("builtin:stdlib", "text:pipe.txt"))
    code, _, err = hpxfer(capsys, *command.split())
    assert code == 2
    assert "must be a regular file" in err
    assert "\n" not in err.strip()
