"""`hpxfer list`: every results folder with its state, and one that cannot be read skipped with a word."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from command_line import Fails, hpxfer
from tiny import write_tiny

from hpxfer.cli.listing import Verdict, verdict_text
from hpxfer.driver import run
from hpxfer.host.process import machine_id, process_started
from hpxfer.results import load_results
from hpxfer.storage.lease import Holder, encoded
from hpxfer.storage.lease_file import LEASE_FILE

PUBLISHED = Path(__file__).parents[2] / "results" / "published"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished sweep and one with failed trials."""
    root = tmp_path_factory.mktemp("root")
    for name, failed in (("all", 0), ("some", 3)):
        (root / name).mkdir()
        run(write_tiny(root / name), results=root / name / "results", executor=Fails(failed))
    return root


def listed(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[dict[str, Any], str]:
    """Return what `list --json` says by folder, and stderr."""
    code, out, err = hpxfer(capsys, "list", "--json", *arguments)
    assert code == 0
    return {entry["folder"]: entry for entry in json.loads(out)}, err


@pytest.mark.slow
def test_published_sweeps_have_their_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hpxfer(capsys, "list", PUBLISHED)
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines()}
    num = len(load_results(PUBLISHED / "quickstart").trials)
    assert f"{num}/{num}" in lines[f"{PUBLISHED}/quickstart"]
    assert lines[f"{PUBLISHED}/quickstart"].endswith("completep-moe transfers; sp drifts")
    assert lines[f"{PUBLISHED}/transfer"].endswith("completep-moe transfers; sp drifts along joint, width")
    alone = hpxfer(capsys, "list", PUBLISHED / "transfer")[1].splitlines()[1]
    assert alone.split() == lines[f"{PUBLISHED}/transfer"].split()
    _, out, _ = hpxfer(capsys, "list", PUBLISHED / "transfer", "--no-verdict")
    assert "transfers" not in out
    assert f"{PUBLISHED}/transfer" in out


def test_finished_and_partial(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, err = listed(capsys, root)
    assert err == ""
    finished, partial = (found[f"{root}/{name}/results/tiny"] for name in ("all", "some"))
    assert (finished["state"], finished["num_trials"], finished["num_done"], finished["num_failed"]) == (
        "finished",
        30,
        30,
        0,
    )
    assert (partial["state"], partial["num_trials"], partial["num_done"], partial["num_failed"]) == (
        "partial",
        30,
        27,
        3,
    )
    files = [path for path in (root / "all" / "results" / "tiny").rglob("*") if path.is_file()]
    assert finished["size_bytes"] == sum(path.stat().st_size for path in files)
    assert {(verdict["parameterization"], verdict["axis"]) for verdict in finished["verdicts"]} == {
        ("completep-moe", "width"),
        ("sp", "width"),
    }


@pytest.mark.parametrize("stored", [True, False])
def test_a_folder_that_a_driver_holds_is_running(
    stored: bool, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tiny"
    if stored:
        shutil.copytree(root / "some" / "results" / "tiny", folder)
        (folder / "progress.json").unlink()
    else:
        folder.mkdir()
    pid = os.getpid()
    holder = Holder(nonce="n", host=socket.gethostname(), pid=pid, machine=machine_id(), started=process_started(pid))
    (folder / LEASE_FILE).write_bytes(encoded(holder))
    found, err = listed(capsys, tmp_path)
    assert err == ""
    assert (found[str(folder)]["state"], found[str(folder)]["num_done"]) == ("running", 27 if stored else 0)


def test_an_interrupted_run_is_stopped(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(root / "some" / "results" / "tiny", folder)
    path = folder / "progress.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "state": "stopped"}))
    assert listed(capsys, tmp_path)[0][str(folder)]["state"] == "stopped"


def damage(folder: Path) -> dict[str, Path]:
    """Make folders that are damaged or of other programs, and return them by name."""
    made = {name: folder / name for name in ("text", "other", "list", "binary", "folder", "parquet", "lease", "empty")}
    for path in made.values():
        path.mkdir()
    (made["text"] / "sweep.yaml").write_text("a: [")
    (made["other"] / "sweep.yaml").write_text("program: train.py\nmethod: bayes\n")  # another tool's sweep
    (made["list"] / "sweep.yaml").write_text("- 1")
    (made["binary"] / "sweep.yaml").write_bytes(bytes(range(256)))
    (made["folder"] / "sweep.yaml").mkdir()
    (made["parquet"] / "trials.parquet").write_bytes(b"no Parquet")
    (made["lease"] / LEASE_FILE).write_text("{}")
    (made["empty"] / "progress.json").touch()
    return made


def test_damaged_and_foreign_folders_are_skipped_with_a_word(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = damage(tmp_path)
    shutil.copytree(root / "all" / "results" / "tiny", tmp_path / "tiny")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "plain").mkdir()
    del (
        made["folder"],
        made["lease"],
    )  # the first is no results folder; whoever wrote the lease of the other may come back
    found, err = listed(capsys, tmp_path)
    assert found.pop(f"{tmp_path}/tiny")["state"] == "finished"
    assert found.pop(f"{tmp_path}/lease")["state"] == "running"
    assert set(found) == {str(path) for path in made.values()}
    for folder, entry in found.items():
        assert entry["problem"]
        assert f"warning: {folder}: skipped: {entry['problem']}\n" in err
    code, out, _ = hpxfer(capsys, "list", tmp_path)
    assert (code, len(out.splitlines())) == (0, 3)


def test_a_root_with_damaged_folders_alone_has_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hpxfer(capsys, "list", tmp_path)[2] == f"{tmp_path}: no results yet; `hpxfer run SWEEP` makes some\n"
    (tmp_path / "trials.parquet").write_bytes(b"PAR1")
    code, out, err = hpxfer(capsys, "list", tmp_path)
    assert (code, out) == (0, "")
    assert err.startswith(f"warning: {tmp_path}: skipped: ")
    assert "no results yet" not in err


def test_a_sweep_whose_parts_are_cut_short_is_still_listed(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, part in enumerate(sorted((root / "all" / "results" / "tiny").iterdir())):
        folder = tmp_path / str(number)
        shutil.copytree(root / "all" / "results" / "tiny", folder)
        if (folder / part.name).is_file():
            (folder / part.name).write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    found, _ = listed(capsys, tmp_path)
    assert len(found) == number + 1
    assert all(entry["state"] or entry["problem"] for entry in found.values())


@pytest.mark.parametrize(
    ("name", "got"), [("nothing", "nothing of that name"), ("file", "a file"), ("s3://bucket/x", "a URI")]
)
def test_a_root_that_is_no_folder(name: str, got: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    code, out, err = hpxfer(capsys, "list", name if "://" in name else tmp_path / name)
    assert (code, out) == (2, "")
    assert f"got {got}; " in err


def test_an_empty_root_says_how_to_fill_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hpxfer(capsys, "list", tmp_path)
    assert (code, out) == (0, "")
    assert "no results yet; `hpxfer run SWEEP` makes some" in err


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        ([], ""),
        ([("a", "width", "transfers")], "a transfers"),
        (
            [("a", "width", "transfers"), ("a", "depth", "transfers"), ("b", "width", "undecided")],
            "a transfers; b is undecided",
        ),
        (
            [("a", "width", "drifts"), ("a", "depth", "undecided"), ("a", "joint", "drifts"), ("a", "x", "transfers")],
            "a drifts along width, joint; a is undecided along depth",
        ),
    ],
)
def test_verdicts_in_short(verdicts: list[tuple[str, str, str]], text: str) -> None:
    found = [Verdict(parameterization=name, axis=axis, verdict=verdict) for name, axis, verdict in verdicts]
    assert verdict_text(found) == text
