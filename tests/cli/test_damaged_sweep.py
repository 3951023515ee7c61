"""A damaged sweep.yaml in a results folder: every command that reads it names the repair, and `run` is the repair."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Fails, hpxfer
from tiny import write_tiny

from hpxfer.driver import run
from hpxfer.store import SWEEP_FILE

REPAIR = "`hpxfer run SWEEP.yaml`, with your own file of this sweep, writes it again and keeps every result"
DAMAGED = "the stored sweep is damaged, or of another hpxfer: "


def cut_at(key: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content[: content.index(key)]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "within a word": lambda content: content[: content.index(b"family") + 3],
    "after the seeds": cut_at(b"judge:"),  # what is left is a legal sweep
    "zeros": lambda content: bytes(len(content)),
    "no text": lambda content: b"\xff\xfe" + content,
    "another document": lambda content: b"- 1\n",
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with tiny.yaml and, beside it, its results."""
    folder = tmp_path_factory.mktemp("done")
    run(write_tiny(folder), results=folder, executor=Fails(0))
    return folder


@pytest.fixture
def results(done: Path, tmp_path: Path) -> Path:
    """Return the results folder of tiny.yaml, which lies beside it: copies that a test may damage."""
    return Path(shutil.copytree(done, tmp_path, dirs_exist_ok=True)) / "tiny"


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("command", ["report", "recipe", "watch", "plan", "explain"])
def test_a_command_on_the_folder_names_the_file_and_the_repair(
    command: str, how: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = results / SWEEP_FILE
    stored.write_bytes(DAMAGES[how](stored.read_bytes()))
    (results / "progress.json").unlink()
    arguments = {"plan": (stored,), "explain": ("--sweep", stored)}.get(command, (results,))
    code, out, err = hpxfer(capsys, command, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"hpxfer: {stored}: {DAMAGED}")
    assert err.endswith(f"; {REPAIR}\n")
    assert err.count("\n") == err.count(str(stored)) == 1


def test_the_line_of_the_damage_is_named(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = results / SWEEP_FILE
    stored.write_text(stored.read_text().replace("width: 16\n", "width: wide\n", 1))
    line = stored.read_text().splitlines().index("    width: wide") + 1
    _, _, err = hpxfer(capsys, "report", results)
    assert f"{DAMAGED}line {line}: model.base.width: must be a valid integer, got 'wide'; {REPAIR}" in err


def test_list_and_watch_warn_and_go_on(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results / SWEEP_FILE).write_bytes(b"")
    code, _, err = hpxfer(capsys, "list", results.parent)
    assert code == 0
    assert f"warning: {results}: skipped: " in err
    assert f"{DAMAGED}must be a mapping that starts with name:, got an empty file; {REPAIR}" in err
    code, out, err = hpxfer(capsys, "watch", results, "--once")  # whose report of the run is whole
    assert code == 0
    assert "the run has ended" in out
    assert f"warning: {results / SWEEP_FILE}: {DAMAGED}" in err


@pytest.mark.parametrize("how", DAMAGES)
def test_a_run_repairs_it_and_deletes_nothing(how: str, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored, sweep = results / SWEEP_FILE, results.parent / "tiny.yaml"
    whole = stored.read_bytes()
    damaged = DAMAGES[how](whole)
    stored.write_bytes(damaged)
    before = {path.name: path.read_bytes() for path in results.glob("*.parquet")}
    _, _, err = hpxfer(capsys, "plan", sweep, "--results", results.parent)
    assert f"warning: {stored}: {DAMAGED}" in err
    run(sweep, results=results.parent, executor=Fails(100))  # nothing is left to train
    assert stored.read_bytes() == whole
    assert before == {path.name: path.read_bytes() for path in results.glob("*.parquet")}
    assert [path.read_bytes() for path in results.glob("sweep-*.yaml")] == [damaged]
    assert hpxfer(capsys, "watch", results, "--once")[0] == 0


def test_the_run_command_warns_and_repairs(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored, sweep = results / SWEEP_FILE, results.parent / "tiny.yaml"
    whole = stored.read_bytes()
    stored.write_bytes(whole[:100])
    code, out, err = hpxfer(capsys, "run", sweep, "--results", results.parent, "--json")
    assert code == 0
    assert f"warning: {stored}: {DAMAGED}" in err
    assert '"num_left": 0' in out
    assert stored.read_bytes() == whole


def test_a_users_own_file_is_not_called_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / SWEEP_FILE
    own.write_text("name: a\n")
    _, _, err = hpxfer(capsys, "plan", own)
    assert "damaged" not in err
    assert f"{own}:1: model: must be given" in err


@pytest.mark.parametrize("command", ["report", "recipe", "watch"])
@pytest.mark.parametrize("content", [{}, {"notes.txt": "mine"}, {SWEEP_FILE: "name: mine\n"}, {SWEEP_FILE: "a song\n"}])
def test_a_folder_that_is_no_sweep_is_refused(
    command: str, content: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    code, out, err = hpxfer(capsys, command, tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith(f"hpxfer: {tmp_path}")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == content
