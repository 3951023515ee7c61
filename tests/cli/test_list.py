"""`hpxfer list` shows every results folder with its state; `hpxfer init` writes a sweep to start from."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from command_line import Fails, hpxfer
from fixture_types import Capsys, Folders, Patch
from tiny import write_tiny

from hpxfer.cli.init import NO_SWEEPS, STARTS, examples
from hpxfer.driver import run
from hpxfer.host.machine import machine_id, process_started
from hpxfer.report.listing import Verdict, verdict_text
from hpxfer.results import load_results
from hpxfer.spec import load_sweep
from hpxfer.spec.yaml_file import read_yaml
from hpxfer.storage.lease import LEASE_FILE, Holder, encoded

PUBLISHED = Path(__file__).parents[2] / "results" / "published"


@pytest.fixture(scope="module")
def root(tmp_path_factory: Folders) -> Path:
    """A folder with one finished sweep and one with failed trials."""
    root = tmp_path_factory.mktemp("root")
    for name, failed in (("all", 0), ("some", 3)):
        (root / name).mkdir()
        run(write_tiny(root / name), results=root / name / "results", executor=Fails(failed))
    return root


def listed(capsys: Capsys, *arguments: object) -> tuple[dict[str, Any], str]:
    """Return what `list --json` says by folder, and stderr."""
    code, out, err = hpxfer(capsys, "list", "--json", *arguments)
    assert code == 0
    return {entry["folder"]: entry for entry in json.loads(out)}, err


@pytest.mark.slow
def test_published_sweeps_have_their_verdicts(tmp_path: Path, capsys: Capsys) -> None:
    quickstart, transfer = (shutil.copytree(PUBLISHED / name, tmp_path / name) for name in ("quickstart", "transfer"))
    code, out, err = hpxfer(capsys, "list", tmp_path)
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines()}
    num = len(load_results(quickstart).trials)
    assert f"{num}/{num}" in lines[str(quickstart)]
    assert lines[str(quickstart)].endswith("completep-moe transfers; sp drifts")
    assert lines[str(transfer)].endswith("completep-moe transfers; sp drifts along joint, width")
    alone = hpxfer(capsys, "list", transfer)[1].splitlines()[1]
    assert alone.split() == lines[str(transfer)].split()
    _, out, _ = hpxfer(capsys, "list", PUBLISHED, "--no-verdict")
    assert "transfers" not in out
    assert f"{PUBLISHED}/transfer" in out


def test_finished_and_partial(root: Path, capsys: Capsys) -> None:
    found, err = listed(capsys, root)
    assert err == ""
    finished, partial = (found[f"{root}/{name}/results/tiny"] for name in ("all", "some"))
    names = ("state", "num_trials", "num_done", "num_failed")
    assert [finished[name] for name in names] == ["finished", 30, 30, 0]
    assert [partial[name] for name in names] == ["partial", 30, 27, 3]
    files = [path for path in (root / "all" / "results" / "tiny").rglob("*") if path.is_file()]
    assert finished["size_bytes"] == sum(path.stat().st_size for path in files)
    verdicts = {(verdict["parameterization"], verdict["axis"]) for verdict in finished["verdicts"]}
    assert verdicts == {("completep-moe", "width"), ("sp", "width")}


@pytest.mark.parametrize("stored", [True, False])
def test_a_folder_that_a_driver_holds_is_running(stored: bool, root: Path, tmp_path: Path, capsys: Capsys) -> None:
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


def test_an_interrupted_run_is_stopped(root: Path, tmp_path: Path, capsys: Capsys) -> None:
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


def test_damaged_and_foreign_folders_are_skipped_with_a_word(root: Path, tmp_path: Path, capsys: Capsys) -> None:
    made = damage(tmp_path)
    shutil.copytree(root / "all" / "results" / "tiny", tmp_path / "tiny")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "plain").mkdir()
    del made["folder"], made["lease"]  # no results folder; and whoever wrote the lease may come back
    found, err = listed(capsys, tmp_path)
    assert found.pop(f"{tmp_path}/tiny")["state"] == "finished"
    assert found.pop(f"{tmp_path}/lease")["state"] == "running"
    assert set(found) == {str(path) for path in made.values()}
    for folder, entry in found.items():
        assert entry["problem"]
        assert f"warning: {folder}: skipped: {entry['problem']}\n" in err
    code, out, _ = hpxfer(capsys, "list", tmp_path)
    assert (code, len(out.splitlines())) == (0, 3)


def test_a_root_with_damaged_folders_alone_has_results(tmp_path: Path, capsys: Capsys) -> None:
    assert hpxfer(capsys, "list", tmp_path)[2] == f"{tmp_path}: no results yet; `hpxfer run SWEEP` makes some\n"
    (tmp_path / "trials.parquet").write_bytes(b"PAR1")
    code, out, err = hpxfer(capsys, "list", tmp_path)
    assert (code, out) == (0, "")
    assert err.startswith(f"warning: {tmp_path}: skipped: ")
    assert "no results yet" not in err


def test_a_sweep_whose_parts_are_cut_short_is_still_listed(root: Path, tmp_path: Path, capsys: Capsys) -> None:
    for number, part in enumerate(sorted((root / "all" / "results" / "tiny").iterdir())):
        folder = tmp_path / str(number)
        shutil.copytree(root / "all" / "results" / "tiny", folder)
        if (folder / part.name).is_file():
            (folder / part.name).write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    found, _ = listed(capsys, tmp_path)
    assert len(found) == number + 1
    assert all(entry["state"] or entry["problem"] for entry in found.values())


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


SWEEPS = Path(__file__).parents[2] / "sweeps"


def test_every_committed_sweep_is_an_example() -> None:
    committed = {path for path in SWEEPS.rglob("*.yaml") if path.name not in NO_SWEEPS}
    assert {path.resolve() for path in committed} == {path.resolve() for path in examples().values()}
    assert examples().keys() >= {"regime_i", "mssp/q08", "completep-moe/fig02-full"}


@pytest.mark.parametrize("name", sorted(examples()))
def test_an_example_is_written_and_can_be_planned(
    name: str, tmp_path: Path, capsys: Capsys, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = hpxfer(capsys, "init", name, "new/folder")
    path = Path("new", "folder", examples()[name].name)
    beside = sorted(examples()[name].parent.glob("*.py"))
    written = [path, *(path.with_name(each.name) for each in beside)]
    assert (code, out) == (0, "\n".join(["written:", *(f"  {each}" for each in written)]) + "\n")
    assert [each.read_bytes() for each in written[1:]] == [each.read_bytes() for each in beside]
    is_checked = "hpxfer check --sweep" in path.read_text()
    assert f"hpxfer {'check --sweep' if is_checked else 'plan'} {path}" in err
    on: tuple[str, ...] = ()
    if name.endswith("-full"):  # too large for a CPU, and its data is beside it
        on = "--hardware", "b200"
        assert path.read_text() == examples()[name].read_text()
    elif recipe := (read_yaml(path).data.get("hps") or {}).get("recipe"):  # another sweep writes it
        (path.parent / recipe).parent.mkdir(parents=True)
        own = PUBLISHED / Path(recipe).parent.name / "recipe.yaml"
        other = own if own.exists() else PUBLISHED / "quickstart" / "recipe.yaml"
        (path.parent / recipe).write_bytes(other.read_bytes())
    elif beside:  # the folder of a trainer is part of a sweep, and not of its trials
        assert load_sweep(path).trainer.digests == load_sweep(examples()[name]).trainer.digests
    else:
        assert load_sweep(path) == load_sweep(examples()[name])
    assert hpxfer(capsys, "plan", path, *on)[0] == 0


def test_the_default_stands_here_and_is_commented(tmp_path: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = hpxfer(capsys, "init", "--json")
    assert (code, json.loads(out)) == (0, {"sweep": "quickstart.yaml"})
    assert Path("quickstart.yaml").read_text().count("#") > 8


@pytest.mark.parametrize(("example", "name"), [("quickstart", "quickstart.yaml"), ("own_numpy", "train.py")])
def test_a_file_is_never_overwritten(example: str, name: str, tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / name
    path.write_text("mine")
    code, out, err = hpxfer(capsys, "init", example, tmp_path)
    assert (code, out, path.read_text()) == (2, "", "mine")
    assert err == f"hpxfer: {path}: must not exist yet, as it would be overwritten; name another folder\n"
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_an_unknown_name_is_told_the_nearest(tmp_path: Path, capsys: Capsys) -> None:
    rest = f"--list names all {len(examples())}, and a folder comes after the name\n"
    for name, nearest in (("quikstart", "did you mean 'quickstart'?; "), ("foo", "")):
        code, _, err = hpxfer(capsys, "init", name, tmp_path)
        assert (code, err) == (2, f"hpxfer: NAME: unknown example '{name}'; {nearest}{rest}")
    assert not list(tmp_path.iterdir())


def test_the_list_says_what_each_example_asks(capsys: Capsys) -> None:
    code, out, _ = hpxfer(capsys, "init", "--list")
    assert code == 0
    first, studies, figures = re.split("\n\nsweeps of studies:\n|\n\nand ", out)
    names, below = ([line.split()[0] for line in part.splitlines()] for part in (first, studies))
    assert (tuple(names), below) == (STARTS, sorted(below))
    of_papers = [name for name in examples() if "/" in name]
    assert [*names, *below, *of_papers] == [*examples()]
    assert re.findall(r"^  (\w+) +[A-Z].{,120}[.?)]$", out, re.MULTILINE) == [*names, *below]
    assert figures == f"{len(of_papers)} of figures of papers, such as {of_papers[-1]}: docs/papers.md\n"
    code, out, _ = hpxfer(capsys, "init", "--list", "--json")
    assert (code, list(json.loads(out))) == (0, [*examples()])
    assert all(json.loads(out).values())
