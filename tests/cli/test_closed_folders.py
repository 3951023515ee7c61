"""Folders and files that are closed, damaged or named pipes: one sentence that says which, and the repair."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Fails, hpxfer
from corpus import tokenizer_file
from fixture_types import Capsys, Folders, Patch
from permissions import permissions_count
from tiny import write_tiny

from hpxfer.driver import run
from hpxfer.store import SWEEP_FILE

# Of each command that reads a folder; {} is the folder, {root} the one above it.
COMMANDS = [
    "report {} --format text",
    "recipe write {}",
    "recipe predict {} --target shape.json",
    "watch {} --once",
    "weights {} --best --out w",
    "list {}",
    "limit --against {}",
    "plan {sweep} --results {root}",
    "run {sweep} --results {root}",
    "plan {sweep} --reuse {}",
    "data info tokens:{}",
    "data info text:{}/*.txt",
    "data prepare {} --tokenizer tokenizer.json --out made",
]
SMOKE = Path(__file__).parents[2] / "sweeps" / "smoke.yaml"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: Patch) -> Iterator[Path]:
    """Provide a folder of results in a folder of their own."""
    folder = tmp_path / "closed" / "smoke"
    folder.mkdir(parents=True)
    (folder / "sweep.yaml").write_text("name: smoke\n")
    (folder / "a.jsonl").write_text('{"text": "hello"}\n')
    (tmp_path / "shape.json").write_text('{"width": 64, "depth": 2, "dense_width": 64}')
    monkeypatch.chdir(tmp_path)
    yield folder
    for path in (folder.parent, folder):
        path.chmod(0o755)


@pytest.mark.parametrize(
    ("command", "closed", "mode"),
    [*((command, ".", 0) for command in COMMANDS), ("report {}", "..", 0), ("report {}", ".", 0o444)],
)
def test_a_closed_folder_is_named(results: Path, capsys: Capsys, command: str, closed: str, mode: int) -> None:
    if "prepare" in command:
        tokenizer_file(Path("tokenizer.json"))
    folder = Path(os.path.normpath(results / closed))
    folder.chmod(mode)
    words = command.format(results, root=results.parent, sweep=SMOKE).split()
    with permissions_count():
        code, _, err = hpxfer(capsys, *words)
    assert code == 2
    assert err == (f"hpxfer: {folder}: must be open to this user, got 'Permission denied'\n")


REPAIR = "`hpxfer run SWEEP.yaml`, with your own file of this sweep, writes it again and keeps every result"
DAMAGED = "the stored sweep is damaged, or of another hpxfer: "
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "within a word": lambda content: content[: content.index(b"family") + 3],
    "after the seeds": lambda content: content[: content.index(b"judge:")],  # what is left is a legal sweep
    "zeros": lambda content: bytes(len(content)),
    "no text": lambda content: b"\xff\xfe" + content,
    "another document": lambda content: b"- 1\n",
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: Folders) -> Path:
    """A folder with tiny.yaml and, in results/, its results."""
    folder = tmp_path_factory.mktemp("done")
    run(write_tiny(folder), results=folder / "results", executor=Fails(0))
    return folder


@pytest.fixture
def tiny(done: Path, tmp_path: Path) -> Path:
    """The results folder of a tiny.yaml in tmp_path: copies that a test may damage."""
    return Path(shutil.copytree(done, tmp_path, dirs_exist_ok=True)) / "results" / "tiny"


@pytest.mark.parametrize("how", DAMAGES)
def test_a_command_on_the_folder_names_the_file_and_the_repair(how: str, tiny: Path, capsys: Capsys) -> None:
    stored = tiny / SWEEP_FILE
    stored.write_bytes(DAMAGES[how](stored.read_bytes()))
    (tiny / "progress.json").unlink()
    every = [
        ("report", tiny),
        ("recipe", "write", tiny),
        ("watch", tiny),
        ("plan", stored),
        ("explain", "--sweep", stored),
    ]
    for command in every if how == "empty" else every[:1]:
        code, out, err = hpxfer(capsys, *command)
        assert (code, out) == (2, "")
        assert err.startswith(f"hpxfer: {stored}: {DAMAGED}")
        assert err.endswith(f"; {REPAIR}\n")
        assert err.count("\n") == err.count(str(stored)) == 1


def test_the_line_of_the_damage_is_named(tiny: Path, capsys: Capsys) -> None:
    stored = tiny / SWEEP_FILE
    stored.write_text(stored.read_text().replace("width: 16\n", "width: wide\n", 1))
    line = stored.read_text().splitlines().index("    width: wide") + 1
    _, _, err = hpxfer(capsys, "report", tiny)
    assert f"{DAMAGED}line {line}: model.base.width: must be a valid integer, got 'wide'; {REPAIR}" in err


def test_list_and_watch_warn_and_go_on(tiny: Path, capsys: Capsys) -> None:
    (tiny / SWEEP_FILE).write_bytes(b"")
    code, _, err = hpxfer(capsys, "list", tiny.parent)
    assert (code, f"warning: {tiny}: skipped: " in err) == (0, True)
    assert f"{DAMAGED}must be a mapping that starts with name:, got an empty file; {REPAIR}" in err
    code, out, err = hpxfer(capsys, "watch", tiny, "--once")  # whose report of the run is whole
    assert (code, "the run has ended" in out) == (0, True)
    assert f"warning: {tiny / SWEEP_FILE}: {DAMAGED}" in err


@pytest.mark.parametrize("how", DAMAGES)
def test_a_run_repairs_it_and_deletes_nothing(how: str, tiny: Path, tmp_path: Path, capsys: Capsys) -> None:
    stored, whole = tiny / SWEEP_FILE, (tiny / SWEEP_FILE).read_bytes()
    stored.write_bytes(damaged := DAMAGES[how](whole))
    before = {path.name: path.read_bytes() for path in tiny.glob("*.parquet")}
    command = ("run", tmp_path / "tiny.yaml", "--results", tiny.parent, "--json")
    if how == "empty":
        code, out, err = hpxfer(capsys, *command)
        assert (code, '"num_left": 0' in out) == (0, True)
    else:
        _, _, err = hpxfer(capsys, "plan", *command[1:])
        run(tmp_path / "tiny.yaml", results=tiny.parent, executor=Fails(100))  # nothing is left to train
    assert f"warning: {stored}: {DAMAGED}" in err
    assert stored.read_bytes() == whole
    assert before == {path.name: path.read_bytes() for path in tiny.glob("*.parquet")}
    assert [path.read_bytes() for path in tiny.glob("sweep-*.yaml")] == [damaged]
    assert hpxfer(capsys, "watch", tiny, "--once")[0] == 0


def test_a_users_own_file_is_not_called_damaged(tmp_path: Path, capsys: Capsys) -> None:
    own = tmp_path / SWEEP_FILE
    own.write_text("name: a\n")
    _, _, err = hpxfer(capsys, "plan", own)
    assert "damaged" not in err
    assert f"{own}:1: model: must be given" in err


@pytest.mark.parametrize("content", [{}, {"notes.txt": "mine"}, {SWEEP_FILE: "name: mine\n"}, {SWEEP_FILE: "a song\n"}])
def test_a_folder_that_is_no_sweep_is_refused(content: dict[str, str], tmp_path: Path, capsys: Capsys) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    for command in (["report"], ["recipe", "write"], ["watch"]):
        code, out, err = hpxfer(capsys, *command, tmp_path)
        assert (code, out, err.startswith(f"hpxfer: {tmp_path}")) == (2, "", True)
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == content


@pytest.mark.parametrize(
    ("file", "command", "code"),
    [
        ("sweep.yaml", "report {folder}", 2),
        ("sweep.yaml", "plan {folder}/sweep.yaml", 2),
        ("sweep.yaml", "list {folder}", 0),
        ("lease.json", "watch --once {folder}", 2),
        ("lease.json", "run --yes {folder}/../../tiny.yaml --results {folder}/..", 2),
        ("lease.json", "list {folder}", 0),
        ("progress.json", "watch --once {folder}", 2),
        ("trials-1.parquet", "report --format text {folder}", 0),
    ],
)
def test_a_pipe_in_a_results_folder_is_never_waited_for(
    file: str, command: str, code: int, tiny: Path, capsys: Capsys
) -> None:
    (tiny / file).unlink(missing_ok=True)
    os.mkfifo(tiny / file)
    found, _, err = hpxfer(capsys, *command.format(folder=tiny).split())
    assert found == code
    assert file in err
    assert "must be a regular file, got a named pipe" in err or file == "trials-1.parquet"


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
        "judge pipe.csv",
    ],
)
def test_a_pipe_as_a_file_of_the_user_is_never_waited_for(
    command: str, tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pipe.yaml", "pipe.json", "pipe.py", "pipe.txt", "pipe.csv"):
        os.mkfifo(name)
    Path("shape.json").write_text(json.dumps({"width": 32, "depth": 2, "head_dim": 32, "dense_width": 32}))
    text = write_tiny(tmp_path).read_text()
    Path("pipe-data.yaml").write_text(text.replace("builtin:stdlib", "text:pipe.txt"))
    code, _, err = hpxfer(capsys, *command.split())
    assert (code, "must be a regular file" in err) == (2, True)
    assert "\n" not in err.strip()
