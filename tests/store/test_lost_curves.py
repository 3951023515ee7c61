"""Which trials lost their curves, and how their curves come back beside the stored rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_results import made, stored, trials_of

from hpxfer.store import CURVES, Store, parquet
from hpxfer.store.lost_curves import lost_curves

TRIALS_OF_SPEC = trials_of()
IDS = [trial.id for trial in TRIALS_OF_SPEC]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of four parts, a trial each. One has diverged, one has failed."""
    store = Store.open(tmp_path / "x", write=True)
    for trial, status in zip(TRIALS_OF_SPEC, ("finished", "diverged", "finished", "failed"), strict=False):
        store.append([made(trial, status)])
    return tmp_path / "x"


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def lost(folder: Path) -> set[str]:
    return Store.open(folder, write=False).without_curves()


def test_nothing_is_lost_as_long_as_every_file_can_be_read(folder: Path) -> None:
    assert lost(folder) == set()
    assert lost_curves(Store.open(folder, write=False), "x") is None
    Store.open(folder, write=True).compact()
    assert lost(folder) == set()


@pytest.mark.parametrize("how", ["truncated", "removed", "empty", "one byte"])
def test_the_trials_of_a_damaged_file_have_lost_theirs(folder: Path, how: str) -> None:
    path = folder / "curves-000002.parquet"
    if how == "one byte":
        content = path.read_bytes()
        path.write_bytes(content[:40] + bytes([content[40] ^ 16]) + content[41:])
    elif how == "truncated":
        damage(path)
    else:
        path.unlink() if how == "removed" else path.write_bytes(b"")
    assert lost(folder) == {IDS[1]}
    Store.open(folder, write=True).compact()
    assert lost(folder) == {IDS[1]}  # the trial is in trials.parquet now too, whose curves can be read
    for name in ("curves-000002.parquet", "trials-000002.parquet"):
        (folder / name).unlink(missing_ok=True)
    assert lost(folder) == {IDS[1]}


def test_a_trial_that_had_no_curves_has_lost_none(tmp_path: Path) -> None:
    at_once = replace(made(TRIALS_OF_SPEC[1], "diverged")[1], diverged_step=0, curves=())
    store = Store.open(tmp_path, write=True)
    store.append([made(TRIALS_OF_SPEC[0]), (TRIALS_OF_SPEC[1], at_once)])
    assert lost(tmp_path) == set()


def test_a_trainer_without_curves_has_lost_none(tmp_path: Path) -> None:
    store = Store.open(tmp_path, write=True)
    for trial in TRIALS_OF_SPEC[:2]:
        store.append([(trial, replace(made(trial)[1], curves=()))])
    store.compact()
    assert lost(tmp_path) == set()


def test_a_failed_trial_has_none_to_lose(folder: Path) -> None:
    damage(folder / "curves-000004.parquet")
    assert lost(folder) == set()


@pytest.mark.parametrize("compacted", [False, True])
def test_restored_curves_stand_beside_rows_that_stay(folder: Path, compacted: bool) -> None:
    before = stored(folder)
    if compacted:
        Store.open(folder, write=True).compact()
        damage(folder / "curves.parquet")
    else:
        damage(folder / "curves-000002.parquet")
    assert lost(folder) == ({*IDS[:3]} if compacted else {IDS[1]})
    store = Store.open(folder, write=True)
    others = [
        replace(made(trial, status, at=9)[1], curves=made(trial, status)[1].curves)
        for trial, status in zip(TRIALS_OF_SPEC[:3], ("finished", "diverged", "finished"), strict=True)
        if trial.id in lost(folder)
    ]
    store.restore_curves(others)
    for _ in range(2):
        assert lost(folder) == set()
        rows, curves = stored(folder)
        assert rows == before[0]
        assert set(before[1]) - set(curves) == ({line for line in before[1] if IDS[3] in line} if compacted else set())
        store.compact()


def test_the_newest_part_has_the_curves_that_count(folder: Path) -> None:
    """A part that was copied from a folder whose curves were lost is readable, and has no point of them."""
    path = folder / "curves-000001.parquet"
    with path.open("wb") as file:
        parquet.write(file, CURVES, [])
    assert lost(folder) == {IDS[0]}
    store = Store.open(folder, write=True)
    store.restore_curves([made(TRIALS_OF_SPEC[0])[1]])
    assert lost(folder) == set()
    damage(folder / "trials-000003.parquet")
    (folder / "trials.parquet").write_bytes(b"foreign")  # so that numbered parts are merged into a numbered one
    store.compact()
    assert lost(folder) == set()
    assert IDS[0] in store.read_curves()["trial_id"].to_pylist()


def test_who_lost_what_is_said_by_shape_and_cut(tmp_path: Path) -> None:
    trials = [replace(TRIALS_OF_SPEC[k % 2], id=f"{k:032x}") for k in range(200)]
    store = Store.open(tmp_path / "small", write=True)
    rows = [made(replace(trial, shape=TRIALS_OF_SPEC[-(k % 3 == 0)].shape)) for k, trial in enumerate(trials)]
    store.append([(trial, replace(result, trial_id=trial.id)) for trial, result in rows])
    (tmp_path / "small" / "curves-000001.parquet").unlink()
    found = lost_curves(store, "small")
    assert found is not None
    assert (len(found), found.num_done) == (200, 200)
    assert found.all_ids() == [trial.id for trial in trials]
    first, larger, smaller = found.text().splitlines()
    assert first == (
        f"{tmp_path}/small: 200 of 200 trials have lost their curves; their losses are stored. `hpxfer run "
        f"{tmp_path}/small/sweep.yaml --retrain-missing-curves` trains these trials again and keeps every stored result"
    )
    assert larger.startswith(f"  133 of {TRIALS_OF_SPEC[0].shape.label()}: 00000000, ")
    assert larger.endswith(" and 125 more")
    assert smaller.startswith(f"  67 of {TRIALS_OF_SPEC[-1].shape.label()}: ")
    other = lost_curves(store, "of another name")
    assert other is not None
    assert "`hpxfer run SWEEP.yaml --retrain" in other.text()
