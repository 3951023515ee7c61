"""A process that dies between any two steps on the disk loses no result and makes none of them count twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from deaths import die_after
from fixture_types import Patch
from made_results import files, made, stored, trials_of

from hpxfer.host.files import remove_half_written
from hpxfer.store import Store

pytestmark = pytest.mark.slow

TRIALS_OF_SPEC = trials_of()


def filled(folder: Path, *, compacted: bool) -> Store:
    """Return a store of several parts in which results supersede each other."""
    first, second, third, fourth, *_ = TRIALS_OF_SPEC
    store = Store.open(folder, write=True)
    store.append([made(first, "failed", at=1), made(second, at=2)])
    if compacted:
        store.compact()
    store.append([made(first, at=3), made(third, "diverged", at=4)])
    store.append([made(fourth, "failed", at=5)])
    return store


@pytest.mark.parametrize("compacted", [False, True])
def test_compact(tmp_path: Path, monkeypatch: Patch, compacted: bool) -> None:
    filled(tmp_path / "plain", compacted=False)
    expected = stored(tmp_path / "plain")
    num_steps, died = 0, True
    while died:
        folder = tmp_path / str(num_steps)
        died = die_after(num_steps, monkeypatch, filled(folder, compacted=compacted).compact)
        assert stored(folder) == expected
        store = Store.open(folder, write=True)
        store.compact()
        assert stored(folder) == expected
        tidy = {name for name in files(folder) if not name.endswith(".tmp")}
        assert tidy == {"trials.parquet", "curves.parquet"}
        num_steps += 1
    # 2 files are flushed and renamed, a folder flushed after each, and 2 or 3 parts of 2 files are removed.
    assert num_steps == 2 + 2 * 2 + (4 if compacted else 6) + 1


@pytest.mark.parametrize("then_compact", [False, True])
def test_append(tmp_path: Path, monkeypatch: Patch, then_compact: bool) -> None:
    new = made(TRIALS_OF_SPEC[6], at=7)
    filled(tmp_path / "before", compacted=True)
    filled(tmp_path / "after", compacted=True).append([new])
    before, after = stored(tmp_path / "before"), stored(tmp_path / "after")
    num_steps, died, seen = 0, True, []
    while died:
        folder = tmp_path / str(num_steps)
        store = filled(folder, compacted=True)
        died = die_after(num_steps, monkeypatch, lambda store=store: store.append([new]))
        found = stored(folder)
        seen.append(found == after)
        assert found in (before, after)
        again = Store.open(folder, write=True)
        if new[0].id not in again.done_ids():
            again.append([new])
        if then_compact:
            again.compact()
        assert stored(folder) == after
        num_steps += 1
    # Both files are flushed, the curves renamed and that flushed: the trials' new name is what commits.
    assert seen == [False] * 5 + [True] * 2


def test_curves_of_an_append_that_died_are_named(tmp_path: Path, monkeypatch: Patch) -> None:
    store = Store.open(tmp_path, write=True)
    assert die_after(3, monkeypatch, lambda: store.append([made(TRIALS_OF_SPEC[0])]))
    assert [name for name in files(tmp_path) if name.endswith(".parquet")] == ["curves-000001.parquet"]
    (problem,) = Store.open(tmp_path, write=True).problems
    assert "curves-000001.parquet: has no trials file beside it" in problem
    store.append([made(TRIALS_OF_SPEC[0])])
    assert "trials-000002.parquet" in files(tmp_path)


def test_curves_of_an_append_that_died_go_once_their_trials_are_stored(tmp_path: Path, monkeypatch: Patch) -> None:
    store = Store.open(tmp_path, write=True)
    first, second = (made(trial) for trial in TRIALS_OF_SPEC[:2])
    assert die_after(3, monkeypatch, lambda: store.append([first, second]))
    store.append([first])
    store.compact()
    left = ["curves-000001.parquet", "curves.parquet", "trials.parquet"]
    remove_half_written(tmp_path, ("trials", "curves"))  # as every run does first
    assert sorted(files(tmp_path)) == left  # nothing else holds the curves of the second
    store.append([second])
    store.compact()
    assert sorted(files(tmp_path)) == left[1:]
    assert Store.open(tmp_path, write=True).problems == []
    assert set(store.read_curves()["trial_id"].to_pylist()) == {first[0].id, second[0].id}
