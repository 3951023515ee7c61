"""`hpxfer rekey`: every id is today's, every number is as before, and nothing is lost on the way."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command_line import hpxfer
from legacy_results import (
    NUM_STORED,
    checkpoint_parts,
    files,
    ids_in_files,
    legacy_folder,
    made_up_data,
    seen,
    sweep_ids,
)
from store_rows import abandon, stored

from hpxfer.driver import prepare
from hpxfer.errors import HpxferError
from hpxfer.rekey import rekey, write
from hpxfer.rekey.write import BACKUP
from hpxfer.results import load_results
from hpxfer.storage.folder import folder_at
from hpxfer.storage.lease import Holder, encoded, leased
from hpxfer.storage.lease_file import LEASE_FILE, LeaseFile
from hpxfer.store import Store
from hpxfer.store.location import RemoteLocation, location_at
from hpxfer.train.checkpoints import Checkpoints
from hpxfer.trial.stack import Stack

KILLED = Path(__file__).parents[1] / "helpers" / "killed_rekey.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return legacy_folder(tmp_path / "results" / "small")


def check_todays(folder: Path) -> None:
    """Check that all that a folder holds has today's ids, its checkpoint too."""
    ids = sweep_ids(folder)
    assert ids_in_files(folder) == set(ids[:NUM_STORED])
    (found,) = Checkpoints(folder / "checkpoints").usable()
    left = [trial for trial in load_results(folder).expansion.trials() if trial.id in ids[NUM_STORED:]]
    assert found.trials == tuple(trial.id for trial in left)
    assert found.name == f"{Stack(trials=tuple(left)).id}.safetensors"


def test_in_place_every_id_is_todays_and_the_old_files_are_kept(folder: Path) -> None:
    before, read = files(folder), seen(folder)
    done = rekey(folder)
    assert seen(folder) == read
    check_todays(folder)
    kept = {name.removeprefix(f"{BACKUP}/"): content for name, content in files(folder).items() if BACKUP in name}
    assert kept == {name.removeprefix("checkpoints/"): before[name] for name in before if name != "sweep.yaml"}
    assert (len(done.files), len(done.checkpoints), done.unproven) == (6, 1, ())
    assert done.backup == str(folder / BACKUP)


@pytest.mark.parametrize("at", ["_back_up", "_ids_of_sweep", "rekey_checkpoint"])
def test_a_rekey_that_loses_its_lease_writes_nothing_more(
    at: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was suspended, and a driver has taken the folder over."""
    (folder / "optuna.db").write_bytes(b"with legacy ids")
    real, seen_then = getattr(write, at), []

    def then_steal(*arguments: object) -> object:
        done = real(*arguments)
        (folder / LEASE_FILE).write_bytes(encoded(Holder(nonce="x", host="elsewhere", pid=42)))
        seen_then.append(files(folder))
        return done

    monkeypatch.setattr(write, at, then_steal)
    with pytest.raises(HpxferError, match="was taken over by process 42 on host elsewhere"):
        rekey(folder)
    assert [files(folder)] == seen_then


def test_no_number_changes(folder: Path) -> None:
    before = {path.name: pq.read_table(path) for path in folder.glob("*.parquet")}
    (checkpoint,) = (folder / "checkpoints").iterdir()
    facts, tensors = checkpoint_parts(checkpoint)
    rekey(folder)
    for name, old in before.items():
        new = pq.read_table(folder / name)
        added = [column for column in new.column_names if column not in old.column_names]
        later = ["own", "num_heads", "kv_heads", "momentum", "aux_weight", "z_weight", "trainer", "plugins"]
        later += ["validation_error", "validation_top5_error", "loss_name", "loss_unit", "attempts", "num_gpus"]
        later += ["num_nodes", "provenance", "cpu"]
        assert added == (later if name.startswith("trials") else [])
        same = [repr(table.drop_columns(["trial_id"]).to_pydict()) for table in (old, new.drop_columns(added))]
        assert same[0] == same[1]
    (checkpoint,) = (folder / "checkpoints").iterdir()
    now, still = checkpoint_parts(checkpoint)
    assert still == tensors
    assert {**now, "format": 1, "trials": facts["trials"]} == facts


def test_the_export_for_dashboards_is_kept_aside(folder: Path) -> None:
    (folder / "optuna.db").write_bytes(b"with legacy ids")
    rekey(folder)
    assert not (folder / "optuna.db").exists()
    assert (folder / BACKUP / "optuna.db").read_bytes() == b"with legacy ids"


def test_a_second_time_nothing_changes(folder: Path) -> None:
    rekey(folder)
    before = files(folder)
    done = rekey(folder)
    assert (done.files, done.checkpoints, done.backup) == ((), (), None)
    assert files(folder) == before


def test_the_sweep_goes_on_from_the_trials_and_from_the_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up_data(monkeypatch)
    rekey(folder)
    job = prepare(folder / "sweep.yaml", results=folder.parent)
    assert [trial.id for trial in job.missing] == sweep_ids(folder)[NUM_STORED:]
    stacks, others = Checkpoints(folder / "checkpoints").resumable(job.missing)
    assert ([stack.trials for stack in stacks], others) == ([job.missing], [])


def test_into_a_new_folder(folder: Path, tmp_path: Path) -> None:
    before, read = files(folder), seen(folder)
    target = tmp_path / "deep" / "new"
    done = rekey(folder, target)
    assert (done.where, done.backup) == (str(target), None)
    assert files(folder) == before
    assert seen(target) == read
    check_todays(target)
    assert not [name for name in files(target) if BACKUP in name or "lease" in name]
    after = files(tmp_path / "deep")
    assert rekey(folder, target).files == ()
    assert files(tmp_path / "deep") == after


def test_another_folder_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(HpxferError, match=r"--to .*mine: must be a new or an empty folder, got one with"):
        rekey(folder, tmp_path / "mine")
    with pytest.raises(HpxferError, match=r"--to s3://bucket/x: must be a folder, got a URI"):
        rekey(folder, "s3://bucket/x")
    assert files(tmp_path / "mine") == {"letter.txt": b"dear"}
    (tmp_path / "empty").mkdir()
    assert rekey(folder, tmp_path / "empty").where == str(tmp_path / "empty")


def test_what_is_no_results_folder_is_said(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(HpxferError, match=r"must be a results folder or URI with sweep.yaml, got none"):
            rekey(path)
    assert files(tmp_path) == {}


def test_rows_that_do_not_prove_their_id_are_kept_and_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "trials.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.schema.get_field_index("seed"), table.schema.field("seed"), [[7, 7]]), path)
    old = table["trial_id"].to_pylist()
    code, _, err = hpxfer(capsys, "rekey", folder)
    assert code == 0
    assert "warning: 2 rows do not give their own id when it is computed again; they are kept" in err
    assert all(path in err for path in old)
    assert set(old) < set(stored(folder))
    curves = set(Store.open(folder, write=False).read_curves()["trial_id"].to_pylist())
    assert set(old) < curves
    before = files(folder)
    code, _, err = hpxfer(capsys, "rekey", folder)
    assert (code, err, files(folder)) == (0, "", before)


def test_a_damaged_file_is_left_alone_and_does_not_stand_in_the_way(folder: Path) -> None:
    path = folder / "trials-000002.parquet"
    content = path.read_bytes()[:-1]
    path.write_bytes(content)
    rekey(folder)
    assert path.read_bytes() == content
    assert rekey(folder).files == ()


@pytest.mark.parametrize("name", ["cut", "missing", "no yaml", "empty", "foreign"])
def test_a_broken_folder_is_refused_and_unchanged(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    rekey(folder)
    shutil.rmtree(folder / BACKUP)
    bad = folder / ("trials.parquet" if name in ("cut", "missing") else "sweep.yaml")
    if name in ("cut", "missing"):
        for path in folder.glob("trials-*.parquet"):
            path.unlink()
        bad.unlink()
        if name == "cut":
            bad.write_bytes(b"PAR1")
    else:
        bad.write_text({"no yaml": "a: [", "empty": "", "foreign": "program: train.py\n"}[name])
    before = files(folder)
    code, out, err = hpxfer(capsys, "rekey", folder)
    assert (code, out, files(folder)) == (2, "", before)
    assert str(folder / "curves.parquet" if name == "missing" else bad) in err


def test_a_damaged_file_among_others_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "trials-000002.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    code, out, err = hpxfer(capsys, "rekey", folder)
    assert (code, f"warning: {path}: " in err) == (0, True)
    before = files(folder)
    code, out, err = hpxfer(capsys, "rekey", folder)
    assert (code, out, files(folder)) == (2, "", before)
    assert "these files cannot be read" in err
    assert f"\n{path}: " in err


def test_a_folder_that_cannot_be_written_is_copied(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("hpxfer.rekey.write.prove_writable", refuse)
    monkeypatch.setattr(LeaseFile, "create", refuse)
    before = files(folder)
    folder.chmod(0o555)
    code, _, err = hpxfer(capsys, "rekey", folder)
    assert code == 2
    assert f"{folder}: cannot be written: Read-only file system; give a new folder with --to" in err
    assert hpxfer(capsys, "rekey", folder, "--to", tmp_path / "copy")[0] == 0
    folder.chmod(0o755)
    assert files(folder) == before
    check_todays(tmp_path / "copy")
    assert os.access(tmp_path / "copy", os.W_OK)
    assert (tmp_path / "copy").stat().st_mode & 0o700 == 0o700


def test_an_old_file_that_came_later_is_kept_beside_the_first(folder: Path) -> None:
    first = (folder / "trials.parquet").read_bytes()
    rekey(folder)
    other = (folder / BACKUP / "trials-000001.parquet").read_bytes()
    (folder / "trials.parquet").write_bytes(other)
    rekey(folder)
    assert (folder / BACKUP / "trials.parquet").read_bytes() == first
    assert (folder / BACKUP / "trials.2.parquet").read_bytes() == other


def test_the_command_says_what_it_did(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hpxfer(capsys, "rekey", folder)
    assert (code, err) == (0, "")
    assert f"{folder}: 6 files and 1 checkpoint have today's ids now" in out
    assert f"the old files are in {folder / BACKUP}" in out
    code, out, _ = hpxfer(capsys, "rekey", folder, "--json")
    assert (code, json.loads(out)["files"]) == (0, [])
    code, out, _ = hpxfer(capsys, "rekey", folder)
    assert out == f"{folder}: nothing to do, all ids are today's\n"


def test_it_waits_for_no_driver_at_work(folder: Path) -> None:
    before = files(folder)
    with (
        leased(LeaseFile(folder), str(folder), bump_s=0.05),
        pytest.raises(HpxferError, match=f"{folder}: in use by process {os.getpid()}"),
    ):
        rekey(folder)
    assert files(folder) == before


@pytest.mark.parametrize("to", ["", "new"], ids=["in place", "new folder"])
def test_killed_at_any_operation_it_ends_right(folder: Path, tmp_path: Path, to: str) -> None:
    """Every rename, removal, copy and flush is cut once; see `killed_rekey.py`, which checks each time."""
    for path in folder.glob("*-000002.parquet"):
        path.unlink()  # two parts are as good as three, and quicker
    command = [sys.executable, str(KILLED), str(folder), str(tmp_path / "work"), to]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


def put_there(folder: Path, uri: str) -> None:
    """Copy a results folder below a URI, its checkpoint too."""
    remote = location_at(uri)._remote  # type: ignore[union-attr]
    for path in (path for path in folder.iterdir() if path.is_file()):
        remote.put(path, path.name, replace=False)
    (checkpoint,) = (folder / "checkpoints").iterdir()
    folder_at(f"{uri}/checkpoints").put(checkpoint.name, lambda target: shutil.copyfile(checkpoint, target))


def test_a_uri_is_rekeyed_where_it_is(
    folder: Path, s3: str, s3_names: Callable[[str], list[str]], tmp_path: Path
) -> None:
    put_there(folder, f"{s3}/small")
    read = seen(folder)
    done = rekey(f"{s3}/small")
    assert (len(done.files), len(done.checkpoints)) == (6, 1)
    fresh = location_at(f"{s3}/small")
    assert seen(fresh.folder) == read
    assert ids_in_files(fresh.folder) == set(sweep_ids(folder)[:NUM_STORED])
    assert {path.name for path in folder.glob("*.parquet")} <= set(s3_names(f"small/{BACKUP}"))
    (found,) = Checkpoints(f"{s3}/small/checkpoints").usable()
    assert list(found.trials) == sweep_ids(folder)[NUM_STORED:]
    names = s3_names("small")
    assert rekey(f"{s3}/small").files == ()
    assert s3_names("small") == names
    rekey(f"{s3}/small", tmp_path / "here")
    assert seen(tmp_path / "here") == read
    check_todays(tmp_path / "here")


def test_a_uri_whose_rekey_was_killed_before_it_was_pushed_ends_right(
    folder: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_there(folder, f"{s3}/small")
    read = seen(folder)
    real = RemoteLocation.push

    def push(location: RemoteLocation, *check: Callable[[], None]) -> None:
        if not check:
            return real(location)  # of what was there before
        abandon(location)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RemoteLocation, "push", push)
        with pytest.raises(KeyboardInterrupt):
            rekey(f"{s3}/small")
    assert seen(location_at(f"{s3}/small").folder) == read
    rekey(f"{s3}/small")
    fresh = location_at(f"{s3}/small")
    assert seen(fresh.folder) == read
    assert ids_in_files(fresh.folder) == set(sweep_ids(folder)[:NUM_STORED])
    assert rekey(f"{s3}/small").files == ()
