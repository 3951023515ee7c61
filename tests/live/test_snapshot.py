"""Copies of a results folder that are made while a driver writes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_results import DIGEST, SPEC, made, trials_of

from hpxfer.errors import HpxferError
from hpxfer.host.files import locked
from hpxfer.live import snapshot as module
from hpxfer.live.snapshot import Snapshot
from hpxfer.store import Store

TRIALS = trials_of()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of two parts."""
    found = Store.open(tmp_path / "made", write=True)
    found.save_sweep(SPEC, DIGEST)
    for trial in TRIALS[:2]:
        found.append([made(trial)])
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def copied_ids(snapshot: Snapshot) -> set[str]:
    """Return the trials of the copy, of which none may have lost its curves."""
    found = Store.open(snapshot.folder, write=False)
    assert (found.problems, found.without_curves()) == ([], set())
    return found.done_ids()


def meddling(monkeypatch: pytest.MonkeyPatch, at: str, act: Callable[[], object]) -> None:
    """Do something once, right before a file of this name is copied."""
    real, done = module.open_regular, []

    def opened(path: Path) -> Any:
        if path.name == at and not done:
            done.append(path)
            act()
        return real(path)

    monkeypatch.setattr(module, "open_regular", opened)


def test_a_copy_has_the_folders_name_and_the_files_of_a_report(store: Store, tmp_path: Path) -> None:
    for name in ("progress.json", "lease.json", "report.html", "trials-000003.parquet.on-1.tmp"):
        (store.folder / name).write_text("x")
    snapshot = Snapshot(store.folder, tmp_path / "copies")
    snapshot.take()
    assert snapshot.folder == tmp_path / "copies" / "made"
    parts = [f"{kind}-00000{number}.parquet" for kind in ("curves", "trials") for number in (1, 2)]
    assert names(snapshot.folder) == sorted([*parts, "sweep.yaml"])
    assert copied_ids(snapshot) == store.done_ids()


def test_only_what_has_changed_is_copied_again(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Snapshot(store.folder, tmp_path / "copies")
    snapshot.take()
    before = snapshot.stamps()
    opened: list[str] = []
    real = module.open_regular
    monkeypatch.setattr(module, "open_regular", lambda path: (opened.append(path.name), real(path))[1])
    snapshot.take()
    assert opened == []
    store.append([made(TRIALS[2])])
    assert snapshot.stamps() != before
    snapshot.take()
    assert sorted(opened) == ["curves-000003.parquet", "trials-000003.parquet"]
    assert copied_ids(snapshot) == store.done_ids()


def test_a_part_that_is_being_written_does_not_count_yet(store: Store, tmp_path: Path) -> None:
    shutil.copy(store.folder / "curves-000002.parquet", store.folder / "curves-000003.parquet")
    snapshot = Snapshot(store.folder, tmp_path / "copies")
    snapshot.take()
    assert "curves-000003.parquet" not in names(snapshot.folder)
    assert copied_ids(snapshot) == store.done_ids()


@pytest.mark.parametrize(
    "at", ["sweep.yaml", *(f"{kind}-00000{n}.parquet" for kind in ("trials", "curves") for n in (1, 2))]
)
def test_a_merge_in_the_middle_of_a_copy_loses_nothing(
    at: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meddling(monkeypatch, at, store.compact)
    snapshot = Snapshot(store.folder, tmp_path / "copies")
    snapshot.take()
    assert names(snapshot.folder) == ["curves.parquet", "sweep.yaml", "trials.parquet"]
    assert copied_ids(snapshot) == store.done_ids()


def test_files_that_keep_changing_are_said_so(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "open_regular", lambda path: path.with_name("gone").open("rb"))
    with pytest.raises(HpxferError, match="its files keep changing, because a driver is merging them"):
        Snapshot(store.folder, tmp_path / "copies").take()


def test_no_lock_is_taken_and_nothing_is_written(store: Store, tmp_path: Path) -> None:
    before = names(store.folder)
    with locked(store.folder, exclusive=True):
        Snapshot(store.folder, tmp_path / "copies").take()
    assert names(store.folder) == before


def test_a_file_that_cannot_be_read_is_named_and_passed_over(store: Store, tmp_path: Path) -> None:
    (store.folder / "trials-000002.parquet").unlink()
    os.mkfifo(store.folder / "trials-000002.parquet")
    snapshot = Snapshot(store.folder, tmp_path / "copies")
    snapshot.take()
    (problem,) = snapshot.problems
    assert problem.startswith(f"{store.folder / 'trials-000002.parquet'}: cannot be read: must be a regular file")
    assert Store.open(snapshot.folder, write=False).done_ids() == {TRIALS[0].id}


def test_a_folder_that_is_not_there_yet_has_no_files(tmp_path: Path) -> None:
    snapshot = Snapshot(tmp_path / "none", tmp_path / "copies")
    assert snapshot.stamps() == {}
    snapshot.take()
    assert names(snapshot.folder) == []


def test_no_room_for_a_copy_is_one_message(store: Store, tmp_path: Path) -> None:
    (tmp_path / "copies").touch()
    with pytest.raises(HpxferError, match=r"the results cannot be copied here: .*; name a folder with room in TMPDIR"):
        Snapshot(store.folder, tmp_path / "copies").take()
