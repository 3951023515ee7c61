"""What a job does on the cluster, and the code that travels with it: plug-ins and trainers. Without Ray."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Capsys, Patch
from hypothesis import given
from hypothesis import strategies as st
from made_results import DIGEST, SPEC, made, trials_of
from tiny import write_tiny

import hpxfer.cli
from hpxfer.cli.job_entry import main
from hpxfer.errors import HpxferError
from hpxfer.jobs.answers import has_mark
from hpxfer.jobs.request import MOST_CHARACTERS, VARIABLE, Request, packed, read_answer, unpacked
from hpxfer.jobs.travel import PLUGIN, TRAINER, arrived, checked_name, files_of
from hpxfer.registry import Registry, read_plugin
from hpxfer.spec import SweepSpec, dump_sweep, load_sweep, parse_sweep
from hpxfer.spec.trainer_files import digested
from hpxfer.store import Store
from hpxfer.trainer.own_code import SENT, code_of, require_files, sent_files

JOB = "hpxfer-a-1"


@pytest.fixture
def job(monkeypatch: Patch) -> Any:
    """Set what travels with a job."""

    def travel(action: str, root: Path, **more: Any) -> None:
        request = Request(action=action, job=JOB, root=str(root), name=SPEC.name, nonce="n", **more)
        monkeypatch.setenv(VARIABLE, packed(request))

    monkeypatch.setattr(sys, "argv", ["job_entry"])
    return travel


def answer(capsys: Capsys) -> tuple[dict[str, Any], dict[str, bytes]]:
    main()
    found = read_answer(capsys.readouterr().out, "n")
    assert found is not None
    return found


def refusal(capsys: Capsys) -> str:
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(("code", "more"), [(0, []), (2, ["--no-strict-memory"])])
def test_a_run_is_the_command_of_that_name_and_its_exit_code_the_jobs(
    code: int, more: list[str], job: Any, tmp_path: Path, monkeypatch: Patch
) -> None:
    seen = []

    def run() -> None:
        seen.extend([*sys.argv[:2], load_sweep(Path(sys.argv[2])) == SPEC, *sys.argv[3:]])
        sys.exit(code)

    monkeypatch.setattr(hpxfer.cli, "main", run)
    monkeypatch.setenv("HOME", str(tmp_path))
    root = tmp_path / "a root; touch harm"
    job(
        "run",
        "~/a root; touch harm",
        sweep=dump_sweep(SPEC),
        reuse=("~/b c", "s3://bucket/~/x"),
        strict_memory=not more,
    )
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
    reused = [f"--reuse={tmp_path}/b c", "--reuse=s3://bucket/~/x"]
    assert seen == ["hpxfer", "run", True, f"--results={root}", *reused, *more, "--address=auto", "--yes"]
    assert has_mark(root / SPEC.name, JOB)
    assert not has_mark(root / SPEC.name, "hpxfer-a")


def test_a_job_that_cannot_begin_ends_with_one_message(job: Any, tmp_path: Path, capsys: Capsys) -> None:
    assert refusal(capsys).startswith("hpxfer: HPXFER_JOB: must be what `hpxfer submit` packs")
    (tmp_path / "file").touch()
    job("run", tmp_path / "file")
    assert refusal(capsys).startswith(f"hpxfer: {tmp_path}/file/{SPEC.name}: cannot be written")


def test_results_are_sent_whole(job: Any, tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    job("fetch", tmp_path)
    assert answer(capsys) == ({}, {})  # nothing has begun
    store = Store.open(tmp_path / SPEC.name, write=True)
    store.append([made(trials_of()[0])])
    store.save_sweep(SPEC, DIGEST)
    (tmp_path / SPEC.name / "secret.txt").write_text("not the store's")
    job("fetch", tmp_path)
    _, found = answer(capsys)
    assert set(found) == {"sweep.yaml", "trials-000001.parquet", "curves-000001.parquet"}
    assert all(content == (tmp_path / SPEC.name / name).read_bytes() for name, content in found.items())

    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("hpxfer.jobs.answers.files_of", broken)
    job("fetch", tmp_path)
    assert answer(capsys)[0] == {"error": "RuntimeError: a bug"}


TABLE = """
from dataclasses import replace
from hpxfer.scaling import register_parameterization
from hpxfer.scaling.tables import PARAMETERIZATIONS

register_parameterization(replace(PARAMETERIZATIONS.get("completep-moe"), name="travels"))
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: Patch) -> Iterator[SweepSpec]:
    """A loaded sweep with a table of a plug-in file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(TABLE)
    file = write_tiny(
        tmp_path, ("parameterizations: [completep-moe, sp]", "parameterizations: [travels, sp]\nplugins: [./mine.py]")
    )
    yield load_sweep(file)
    module = read_plugin(str(tmp_path / "mine.py"), tmp_path).module
    Registry.remove_module(module)
    sys.modules.pop(module)


def at_cluster(spec: SweepSpec, files: dict[str, bytes], root: object = "/nowhere") -> SweepSpec:
    """Return the sweep of a job that took these files along. It is the same each time."""
    request = Request(action="run", job="a", root=str(root), name=spec.name, sweep=dump_sweep(spec), files=files)
    there = unpacked(packed(request))
    assert there == request
    first, second = (arrived(there.sweep, there.files, there.root) for _ in range(2))
    assert first == second
    return parse_sweep(first, trusted=False)


def test_a_plugin_file_travels_and_is_the_one_that_was_submitted(spec: SweepSpec, tmp_path: Path) -> None:
    files = files_of(spec)
    (plugin,) = at_cluster(spec, files).plugins or ()
    assert plugin.digest == spec.plugins[0].digest
    assert Path(plugin.name).read_text() == TABLE
    assert tmp_path / "cache" in Path(plugin.name).parents
    with pytest.raises(HpxferError, match="must be the one that was submitted"):
        at_cluster(spec, {name: source + b"# changed\n" for name, source in files.items()})


def test_a_version_is_no_path(spec: SweepSpec, tmp_path: Path) -> None:
    plugin = spec.plugins[0].model_copy(update={"digest": "version:../../../outside"})
    source = f'version = "../../../outside"\n{TABLE}'.encode()
    there = at_cluster(spec.model_copy(update={"plugins": (plugin,)}), {PLUGIN + plugin.name: source})
    (local,) = there.plugins or ()
    assert Path(local.name).resolve().is_relative_to(tmp_path / "cache" / "hpxfer" / "plugins")


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
def own(tmp_path: Path) -> SweepSpec:
    """A sweep with a trainer of two files, one of them no text."""
    (tmp_path / "here" / "src" / "deep").mkdir(parents=True)
    (tmp_path / "here" / "train.py").write_text("print('ü')\n")
    (tmp_path / "here" / "src" / "deep" / "a.bin").write_bytes(BYTES)
    (tmp_path / "here" / "mine.yaml").write_text(SWEEP)
    return digested(load_sweep(tmp_path / "here" / "mine.yaml"))


def test_the_files_travel_and_the_sweep_stays_the_same(own: SweepSpec, tmp_path: Path) -> None:
    files = files_of(own)
    assert files.keys() == {TRAINER + name for name in ("train.py", "src/deep/a.bin", SENT)}
    files[TRAINER + SENT] = json.dumps({"commit": "a" * 40, "dirty": True}).encode()
    there = at_cluster(own, files, tmp_path / "there")
    assert there.trainer is not None
    assert there.trainer.digests == own.trainer.digests
    folder = Path(there.trainer.folder or "")
    assert folder.is_relative_to(tmp_path / "there" / "mine" / "trainer")
    assert (folder / "src" / "deep" / "a.bin").read_bytes() == BYTES
    assert there.model_copy(update={"trainer": None}) == own.model_copy(update={"trainer": None})
    code = code_of(there.trainer)
    assert (code["commit"], code["dirty"]) == ("a" * 40, True)
    # Only what came with a job is given to nodes.
    assert sent_files(there.trainer) == {"train.py": "print('ü')\n".encode(), "src/deep/a.bin": BYTES}
    assert sent_files(own.trainer) == {}
    with pytest.raises(HpxferError, match=r"train\.py: must be the file that was submitted"):
        at_cluster(own, {**files, f"{TRAINER}train.py": b"print('changed')\n"}, tmp_path / "there")


@pytest.mark.parametrize("name", ["../out.py", "/out.py", "a/../../out.py", "", ".", "a\\..\\b", "C:b", "a\0b"])
def test_a_name_leads_nowhere_else(own: SweepSpec, tmp_path: Path, name: str) -> None:
    with pytest.raises(HpxferError, match="must be relative paths below one folder"):
        checked_name(name)
    digests = {**(own.trainer.digests or {}), name: "0"}
    text = dump_sweep(own.model_copy(update={"trainer": own.trainer.model_copy(update={"digests": digests})}))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(HpxferError):
        arrived(text, {TRAINER + name: b"out", **files_of(own)}, str(tmp_path / "there"))
    assert sorted(tmp_path.rglob("*")) == before


@given(st.lists(st.sampled_from(["..", ".", "", "a", "b.py", "~", "c d"]), min_size=1, max_size=6).map("/".join))
def test_a_name_that_is_taken_stays_below(name: str) -> None:
    """Against the resolution of paths by the system, which shares nothing with the check."""
    try:
        path = checked_name(name)
    except HpxferError:
        return
    assert os.path.normpath(os.path.join("/root", path)).startswith("/root/")


def test_undeclared_and_large_files_are_refused(own: SweepSpec, tmp_path: Path) -> None:
    bare = own.trainer.model_copy(update={"files": None, "digests": None, "version": "1"})
    with pytest.raises(HpxferError, match=r"trainer\.files: must name the files that a job takes along, got none"):
        files_of(own.model_copy(update={"trainer": bare}))
    files = {**files_of(own), f"{TRAINER}big.bin": os.urandom(MOST_CHARACTERS)}
    with pytest.raises(HpxferError, match=r"its files must fit into .*the largest is trainer\.files: big\.bin"):
        at_cluster(own, files)


def test_each_node_compares_the_files(own: SweepSpec) -> None:
    folder = Path(own.trainer.folder or "")
    require_files(own.trainer, {})
    content = (folder / "train.py").read_bytes()
    (folder / "train.py").write_text("print('changed')\n")
    with pytest.raises(HpxferError, match=r"train\.py: must be the file that the run began with .* on "):
        require_files(own.trainer, {})
    (folder / "train.py").unlink()
    with pytest.raises(HpxferError, match="got No such file or directory in "):
        require_files(own.trainer, {})
    require_files(own.trainer, {"train.py": content})  # a node that lacks what came with the job gets it
    assert (folder / "train.py").read_bytes() == content
