"""What a run says of a user's code that has changed, and when it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_line import hpxfer
from fixture_types import Capsys, Folders, Patch

from hpxfer.driver import prepare, run
from hpxfer.errors import HpxferError
from hpxfer.trainer.own_code import SENT, commit_of

TRAIN = """
import json, math, sys
config = json.load(open(sys.argv[1]))
with open(config["report_file"], "a") as out:
    for step in range(config["steps"]):
        print(json.dumps({"type": "report", "step": step, "loss": 2 + math.exp(-step)}), file=out)
    print(json.dumps({"type": "result", "status": "finished", "validation_loss": 2.0}), file=out)
"""
SWEEP = """
name: NAME
trainer: {command: [python3, train.py, "{config_json}"], IDENTITY, arms: {plain: {}}}
model: {family: user, own: {d_model: 64}}
training: {steps: 20}
axes: {d_model: [64]}
grid: {lr: [0.015625, 0.03125]}
seeds: 1
resources: {executor: local, workers: 1}
"""
FILES = "files: ['*.py']"


def write(folder: Path, identity: str = FILES, name: str = "mine", **code: Any) -> Path:
    """Write a sweep, its trainer, and what git says of it."""
    (folder / "train.py").write_text(TRAIN)
    (folder / SENT).write_text(json.dumps({"commit": "a" * 40, "dirty": False, **code}))
    path = folder / f"{name}.yaml"
    path.write_text(SWEEP.replace("IDENTITY", identity).replace("NAME", name))
    return path


def warnings(sweep: Path) -> str:
    return "\n".join(prepare(sweep, results=sweep.parent).plan.cautions)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: Folders) -> Path:
    """The folder of a sweep that was run."""
    folder = tmp_path_factory.mktemp("trained")
    run(write(folder), results=folder)
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def test_the_same_code_is_said_nothing_of(folder: Path) -> None:
    assert "train" not in warnings(write(folder))
    run(folder / "mine.yaml", results=folder, strict_code=True)


def test_another_commit_warns_with_the_difference_and_is_refused_if_strict(folder: Path, capsys: Capsys) -> None:
    sweep = write(folder, commit="b" * 40, dirty=True)
    assert f"commit {'a' * 12} -> {'b' * 12}; dirty clean -> with changes; raise trainer.version" in warnings(sweep)
    assert not prepare(sweep, results=folder).missing
    for command in ("plan", "run"):
        code, _, err = hpxfer(capsys, command, sweep, "--results", folder, "--strict-code")
        assert (code, "--strict-code: trainer: " in err) == (2, True)
        assert "commit aaaaaaaaaaaa -> bbbbbbbbbbbb" in err
    sweep = write(folder, "version: '2', files: [train.py]")
    assert "trainer.version: changed from none to 2 since it trained" in warnings(sweep)


def test_another_package_is_a_difference(folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("hpxfer.trainer.own_code._PACKAGES", ("numpy", "pyarrow"))
    assert "pyarrow none -> " in warnings(write(folder))


def test_changed_files_are_named_and_all_is_trained_again_beside_the_old_rows(folder: Path) -> None:
    (folder / "util.py").write_text("")
    sweep = write(folder, commit="b" * 40)  # is expected to change with the files
    (folder / "train.py").write_text(TRAIN + "# changed\n")
    said = warnings(sweep)
    assert "trainer.files: changed: train.py; new: util.py since it trained" in said
    assert "keeps the old rows" in said
    assert "commit" not in said
    assert len(prepare(sweep, results=folder).missing) == 2
    found = run(sweep, results=folder, strict_code=True)
    assert len(found.trials) == 4
    assert "trainer" not in warnings(sweep)


@pytest.mark.slow
def test_dev_is_never_reused_by_another_folder(tmp_path: Path) -> None:
    one, two = (write(tmp_path, "version: '1'", name=name) for name in ("one", "two"))
    run(one, results=tmp_path)
    assert len(prepare(two, results=tmp_path, reuse=[tmp_path / "one"]).reuse.wanted) == 2
    first, second = (write(tmp_path, "version: dev", name=name) for name in ("dev-one", "dev-two"))
    run(first, results=tmp_path)
    with pytest.raises(HpxferError, match=r"--reuse: must not be given with trainer\.version: dev"):
        prepare(second, results=tmp_path, reuse=[tmp_path / "dev-one"])
    assert not prepare(first, results=tmp_path).missing  # its own folder goes on


def test_git_is_asked(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    assert commit_of(str(tmp_path / "none")) == {"commit": None, "dirty": None}
    (tmp_path / "a").write_text("1")
    for words in (["init", "-q"], ["add", "a"], ["commit", "-q", "-m", "a"]):
        subprocess.run([*git, *words], check=True)
    clean = commit_of(str(tmp_path))
    assert clean["commit"] is not None
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "a").write_text("2")
    assert commit_of(str(tmp_path)) == {**clean, "dirty": True}
    (tmp_path / ".git" / "index").write_bytes(b"")  # a status that fails hides no commit
    assert commit_of(str(tmp_path))["commit"] == clean["commit"]
