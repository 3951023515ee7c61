"""The trainer of a submitted sweep: what travels, where it is unpacked, and what is refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpxfer.driver.own_code import SENT, code_of, sent_files
from hpxfer.errors import HpxferError
from hpxfer.jobs.request import MOST_CHARACTERS, Request, packed, unpacked
from hpxfer.jobs.trainer import checked_name, trainer_files, with_trainer_files
from hpxfer.spec import SweepSpec, dump_sweep, load_sweep, parse_sweep
from hpxfer.spec.trainer_files import digested
from hpxfer.trainer.files import require_files

SWEEP = """
name: mine
trainer: {command: [python3, train.py], files: [train.py, 'src/**/*.bin'], arms: {plain: {}}}
model: {family: user, own: {d_model: 64}}
training: {steps: 20}
axes: {d_model: [64]}
grid: {lr: [0.015625]}
seeds: 1
"""
BYTES = bytes(range(256))


@pytest.fixture
def spec(tmp_path: Path) -> SweepSpec:
    """A sweep with a trainer of two files, one of them no text."""
    (tmp_path / "here" / "src" / "deep").mkdir(parents=True)
    (tmp_path / "here" / "train.py").write_text("print('ü')\n")
    (tmp_path / "here" / "src" / "deep" / "a.bin").write_bytes(BYTES)
    (tmp_path / "here" / "mine.yaml").write_text(SWEEP)
    return digested(load_sweep(tmp_path / "here" / "mine.yaml"))


def test_the_files_travel_and_the_sweep_stays_the_same(spec: SweepSpec, tmp_path: Path) -> None:
    files = trainer_files(spec)
    assert files.keys() == {"train.py", "src/deep/a.bin", SENT}
    request = Request(action="run", job="a", root=str(tmp_path / "there"), name=spec.name, files=files)
    arrived, text = unpacked(packed(request, dump_sweep(spec)))
    assert arrived == request
    first, second = (with_trainer_files(text, arrived.files, arrived.root, arrived.name) for _ in range(2))
    assert first == second
    there = parse_sweep(first, trusted=False)
    assert there.trainer is not None
    assert spec.trainer is not None
    assert there.trainer.digests == spec.trainer.digests
    folder = Path(there.trainer.folder or "")
    assert folder.is_relative_to(tmp_path / "there" / "mine" / "trainer")
    assert (folder / "src" / "deep" / "a.bin").read_bytes() == BYTES
    assert there.model_copy(update={"trainer": None}) == spec.model_copy(update={"trainer": None})


def test_what_git_says_travels_too(spec: SweepSpec, tmp_path: Path) -> None:
    files = {**trainer_files(spec), SENT: json.dumps({"commit": "a" * 40, "dirty": True})}
    there = parse_sweep(with_trainer_files(dump_sweep(spec), files, str(tmp_path / "there"), "mine"), trusted=False)
    code = code_of(there)
    assert (code["commit"], code["dirty"]) == ("a" * 40, True)


def test_another_file_than_was_submitted_is_refused(spec: SweepSpec, tmp_path: Path) -> None:
    files = {**trainer_files(spec), "train.py": "print('changed')\n"}
    with pytest.raises(HpxferError, match=r"train\.py: must be the file that was submitted"):
        with_trainer_files(dump_sweep(spec), files, str(tmp_path / "there"), "mine")


@pytest.mark.parametrize("name", ["../out.py", "/out.py", "a/../../out.py", "", ".", "a\\..\\b", "C:b", "a\0b"])
def test_a_name_leads_nowhere_else(spec: SweepSpec, tmp_path: Path, name: str) -> None:
    with pytest.raises(HpxferError, match="must be relative paths below one folder"):
        checked_name(name)
    assert spec.trainer is not None
    digests = {**(spec.trainer.digests or {}), name: "0"}
    text = dump_sweep(spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"digests": digests})}))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(HpxferError):
        with_trainer_files(text, {name: "out", **trainer_files(spec)}, str(tmp_path / "there"), "mine")
    assert sorted(tmp_path.rglob("*")) == before


@given(st.lists(st.sampled_from(["..", ".", "", "a", "b.py", "~", "c d"]), min_size=1, max_size=6).map("/".join))
def test_a_name_that_is_taken_stays_below(name: str) -> None:
    """Against the resolution of paths by the system, which shares nothing with the check."""
    try:
        path = checked_name(name)
    except HpxferError:
        return
    assert os.path.normpath(os.path.join("/root", path)).startswith("/root/")


def test_undeclared_and_large_files_are_refused(spec: SweepSpec, tmp_path: Path) -> None:
    assert spec.trainer is not None
    bare = spec.trainer.model_copy(update={"files": None, "digests": None, "version": "1"})
    with pytest.raises(HpxferError, match=r"trainer\.files: must name the files that a job takes along, got none"):
        trainer_files(spec.model_copy(update={"trainer": bare}))
    request = Request(action="run", job="a", root="r", name=spec.name, files=trainer_files(spec))
    noise = os.urandom(MOST_CHARACTERS).decode("latin-1")
    with pytest.raises(HpxferError, match=r"trainer\.files: must fit into .*the largest is big\.bin"):
        packed(replace(request, files={**request.files, "big.bin": noise}), dump_sweep(spec))


def test_each_node_compares_the_files(spec: SweepSpec) -> None:
    assert spec.trainer is not None
    folder = Path(spec.trainer.folder or "")
    known: dict[Path, tuple[int, int, str]] = {}
    require_files(spec.trainer, {}, known)
    content = (folder / "train.py").read_bytes()
    (folder / "train.py").write_text("print('changed')\n")
    with pytest.raises(HpxferError, match=r"train\.py: must be the file that the run began with .* on "):
        require_files(spec.trainer, {}, known)
    (folder / "train.py").unlink()
    with pytest.raises(HpxferError, match="got no such file in "):
        require_files(spec.trainer, {}, known)
    require_files(spec.trainer, {"train.py": content}, known)  # a node that lacks what came with the job gets it
    assert (folder / "train.py").read_bytes() == content


def test_only_what_came_with_a_job_is_given_to_nodes(spec: SweepSpec, tmp_path: Path) -> None:
    assert spec.trainer is not None
    assert sent_files(spec.trainer) == {}
    there = parse_sweep(
        with_trainer_files(dump_sweep(spec), trainer_files(spec), str(tmp_path), "mine"), trusted=False
    ).trainer
    assert there is not None
    assert sent_files(there) == {"train.py": "print('ü')\n".encode(), "src/deep/a.bin": BYTES}
