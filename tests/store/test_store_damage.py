"""Files that are broken, foreign or of the future: named, passed over, never changed; and folders that refuse."""

from __future__ import annotations

import errno
import io
import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fixture_types import Patch
from made_results import files, made, trials_of

from hpxfer.errors import HpxferError, cut
from hpxfer.store import TRIALS, Store, parquet
from hpxfer.store.schema import VERSION_KEY
from hpxfer.trial import TRAINER_VERSION

TRIALS_OF_SPEC = trials_of()
IDS = [trial.id for trial in TRIALS_OF_SPEC]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of three parts, a trial each."""
    store = Store.open(tmp_path / "x", write=True)
    for trial in TRIALS_OF_SPEC[:3]:
        store.append([made(trial)])
    return tmp_path / "x"


def put(path: Path, content: bytes) -> None:
    """Write a file as it is."""
    path.write_bytes(content)


def check_passed_over(folder: Path, name: str, why: str) -> Store:
    """Check that the file is named with the reason, and stays as it is through all that a store does."""
    content = (folder / name).read_bytes()
    store = Store.open(folder, write=True)
    (problem,) = store.problems
    assert problem.startswith(f"{folder / name}: ")
    assert why in problem
    assert problem.endswith("; passed over and left where it is")
    store.append([made(TRIALS_OF_SPEC[5])])
    store.compact()
    store.append([made(TRIALS_OF_SPEC[6])])
    store.compact()
    assert (folder / name).read_bytes() == content
    assert [problem] == store.problems
    assert {IDS[5], IDS[6]} <= store.done_ids()
    return store


@pytest.mark.parametrize("part", [0, 4, 0.3, -8, -1])
def test_a_truncated_trials_file(folder: Path, part: float) -> None:
    name = "trials-000002.parquet"
    content = (folder / name).read_bytes()
    length = int(part * len(content)) if isinstance(part, float) else part % len(content)
    put(folder / name, content[:length])
    curves = files(folder)["curves-000002.parquet"]
    store = check_passed_over(folder, name, "not a whole Parquet file" if length else "an empty file")
    assert store.done_ids() == {IDS[0], IDS[2], IDS[5], IDS[6]}
    assert files(folder)["curves-000002.parquet"] == curves


@pytest.mark.parametrize("part", [0, 0.5, -1])
def test_a_truncated_curves_file_loses_no_trial(folder: Path, part: float) -> None:
    name = "curves-000002.parquet"
    whole = (folder / name).read_bytes()
    put(folder / name, whole[: int(part * len(whole)) if isinstance(part, float) else part])
    store = check_passed_over(folder, name, "")
    assert sorted(store.read_trials()["trial_id"].to_pylist()) == sorted(IDS[i] for i in (0, 1, 2, 5, 6))
    assert set(store.read_curves()["trial_id"].to_pylist()) == {IDS[i] for i in (0, 2, 5, 6)}
    put(folder / name, whole)  # e.g. a file that could not be read for a while
    assert set(Store.open(folder, write=False).read_curves()["trial_id"].to_pylist()) == {
        IDS[i] for i in (0, 1, 2, 5, 6)
    }


@pytest.mark.slow
def test_a_flipped_byte_never_gives_wrong_numbers(folder: Path) -> None:
    for path in folder.glob("*-000003.parquet"):
        path.unlink()  # one part beside the damaged one is as good as two, and quicker
    name = "trials-000002.parquet"
    content = (folder / name).read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    expected = Store.open(folder, write=False).read_trials().to_pylist()
    places, noticed = range(4, len(content), 193), []
    for place in places:
        put(folder / name, content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        done = Store.open(folder, write=False).done_ids()  # reads few columns, the damage may be in others
        store = Store.open(folder, write=False)
        found = store.read_trials().to_pylist()
        assert done == {row["trial_id"] for row in found}
        if store.problems:
            noticed.append(place)
        assert found == (expected if not store.problems else [row for row in expected if row["trial_id"] != IDS[1]])
    assert noticed[0] < footer  # a checksum of a page
    assert {place for place in places if place >= footer} <= set(noticed)


def test_a_file_is_read_in_full_once_and_again_if_it_changes(folder: Path, monkeypatch: Patch) -> None:
    asked: list[str] = []
    real = parquet.read_trials
    monkeypatch.setattr(parquet, "read_trials", lambda path: (asked.append(path.name), real(path))[1])
    store = Store.open(folder, write=False)
    first = store.outcomes("validation_loss_nats")
    assert store.outcomes("validation_loss_nats") == first
    assert store.read_trials(["width", "seed"]).equals(store.read_trials().select(["width", "seed"]))
    assert asked == [f"trials-00000{number}.parquet" for number in (1, 2, 3)]
    path = folder / "trials-000002.parquet"
    put(path, path.read_bytes()[:-1])
    assert store.done_ids() == {IDS[0], IDS[2]}
    assert asked[3:] == [path.name]
    assert [path.name in problem for problem in store.problems] == [True]


def test_a_flipped_byte_in_curves_keeps_them_out_of_compact(folder: Path) -> None:
    name = "curves-000002.parquet"
    content = (folder / name).read_bytes()
    put(folder / name, content[:40] + bytes([content[40] ^ 0x10]) + content[41:])
    store = Store.open(folder, write=True)
    store.compact()
    assert ["curves-000002.parquet: damaged" in problem for problem in store.problems] == [True]
    assert sorted(files(folder)) == sorted([name, "trials-000002.parquet", "curves.parquet", "trials.parquet"])
    assert len(pq.read_table(folder / "trials.parquet")) == 2
    assert store.without_curves() == {IDS[1]}


def foreign() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"trial_id": ["a"]}), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("trials-000007.parquet", foreign(), "a Parquet file that hpxfer did not write"),
        ("trials-7.parquet", "trials-000001.parquet", "not a name that the store gives"),
        ("trials-000009.parquet", "curves-000001.parquet", "has no column trial_id of type string"),
        ("trials-000004.parquet", b"", "an empty file"),
        ("trials-000004.parquet", b"PAR1" + b"\x07" * 300 + b"PAR1", "not a whole Parquet file"),
    ],
)
def test_a_file_that_is_not_the_stores(folder: Path, name: str, content: bytes | str, why: str) -> None:
    put(folder / name, (folder / content).read_bytes() if isinstance(content, str) else content)
    store = check_passed_over(folder, name, why)
    assert "a" not in store.done_ids()
    if "000007" in name:
        store.append([made(TRIALS_OF_SPEC[7])])
        assert "trials-000008.parquet" in files(folder)


def test_a_folder_and_a_dead_link_under_the_name_of_a_file(folder: Path) -> None:
    (folder / "trials-000004.parquet").mkdir()
    (folder / "trials-000005.parquet").symlink_to("nowhere")
    store = Store.open(folder, write=True)
    assert [problem.split(":")[0][-21:] for problem in store.problems] == [
        "trials-000004.parquet",
        "trials-000005.parquet",
    ]
    store.append([made(TRIALS_OF_SPEC[3])])
    assert (folder / "trials-000006.parquet").exists()


def test_a_file_without_read_permission(folder: Path, monkeypatch: Patch) -> None:
    whole = pa.OSFile

    def guarded(path: bytes) -> pa.OSFile:
        if path.endswith(b"/trials-000002.parquet"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fsdecode(path))
        return whole(path)

    monkeypatch.setattr(pa, "OSFile", guarded)
    check_passed_over(folder, "trials-000002.parquet", "cannot be read: Permission denied")


def test_curves_without_their_trials_are_named(folder: Path) -> None:
    (folder / "trials-000002.parquet").unlink()
    store = check_passed_over(folder, "curves-000002.parquet", "has no trials file beside it")
    assert IDS[1] not in store.read_curves()["trial_id"].to_pylist()


@pytest.mark.parametrize(("name", "whole"), [("trials.parquet", True), ("curves.parquet", False)])
def test_compact_never_overwrites_what_it_cannot_read(folder: Path, name: str, whole: bool) -> None:
    if whole:
        pq.write_table(pa.table({"x": [1]}), folder / name)
    else:
        put(folder / name, (folder / f"{name[:6]}-000001.parquet").read_bytes()[:-1])
    content = (folder / name).read_bytes()
    store = Store.open(folder, write=True)
    store.compact()
    assert sorted(files(folder)) == sorted([name, "trials-000004.parquet", "curves-000004.parquet"])
    before = files(folder)
    store.compact()
    assert files(folder) == before
    assert before[name] == content
    assert store.done_ids() == set(IDS[:3])
    assert set(store.read_curves()["trial_id"].to_pylist()) == set(IDS[:3])


def test_a_compacted_file_that_broke_is_left_and_its_trials_run_again(folder: Path) -> None:
    Store.open(folder, write=True).compact()
    put(folder / "trials.parquet", (folder / "trials.parquet").read_bytes()[:-3])
    before = files(folder)
    store = Store.open(folder, write=True)
    assert store.done_ids() == set()
    for trial in TRIALS_OF_SPEC[:2]:
        store.append([made(trial, at=9)])
    store.compact()
    assert {name: files(folder)[name] for name in before} == before
    assert store.done_ids() == set(IDS[:2])


def test_compacted_curves_that_can_be_read_again_count_again(folder: Path) -> None:
    Store.open(folder, write=True).compact()
    curves = files(folder)["curves.parquet"]
    put(folder / "curves.parquet", curves[:-1])
    store = Store.open(folder, write=True)
    for trial in TRIALS_OF_SPEC[3:5]:
        store.append([made(trial)])
    store.compact()
    assert set(store.read_curves()["trial_id"].to_pylist()) == set(IDS[3:5])
    put(folder / "curves.parquet", curves)
    for _ in range(2):
        assert set(store.read_curves()["trial_id"].to_pylist()) == set(IDS[:5])
        store.compact()
    assert sorted(files(folder)) == ["curves.parquet", "trials.parquet"]


def test_curves_that_are_all_that_is_left_are_not_overwritten(folder: Path) -> None:
    Store.open(folder, write=True).compact()
    (folder / "trials.parquet").unlink()
    curves = files(folder)["curves.parquet"]
    store = Store.open(folder, write=True)
    store.append([made(TRIALS_OF_SPEC[0])])
    store.compact()
    assert files(folder)["curves.parquet"] == curves
    assert store.done_ids() == {IDS[0]}


@pytest.mark.parametrize(
    ("write", "kind", "version"), [(True, "trials", b"9"), (False, "curves", b"9"), (True, "trials", b"9" * 5000)]
)
def test_another_schema_is_refused_before_anything_is_touched(
    folder: Path, kind: str, version: bytes, write: bool
) -> None:
    path = folder / f"{kind}.parquet"
    other = pa.schema([pa.field("novel", pa.int8())], metadata={VERSION_KEY: version})
    pq.write_table(other.empty_table(), path)
    before = files(folder)
    with pytest.raises(HpxferError) as error:
        Store.open(folder, write=write)
    assert str(error.value) == (
        f"{path}: must have version 8 of the store's schema, got {cut(version.decode())}; use the hpxfer that "
        "wrote it, or give another folder with --results; nothing was changed"
    )
    assert files(folder) == before


def test_the_trainers_version_is_the_newest_of_what_is_done(folder: Path) -> None:
    store = Store.open(folder, write=True)
    assert store.trainer_version() == TRAINER_VERSION
    at = TRIALS.get_field_index("trainer_version")
    for path in folder.glob("trials-*.parquet"):
        rows = pq.read_table(path)
        pq.write_table(rows.set_column(at, TRIALS.field(at), pa.array([2] * len(rows))), path)
    assert store.trainer_version() == 2
    store.append([made(TRIALS_OF_SPEC[4], "failed")])  # no result yet
    assert store.trainer_version() == 2
    store.append([made(TRIALS_OF_SPEC[4], "diverged")])
    assert store.trainer_version() == TRAINER_VERSION
    assert Store.open(folder / "none", write=False).trainer_version() is None


def test_another_schema_is_refused_while_running(folder: Path) -> None:
    store = Store.open(folder, write=True)
    pq.write_table(TRIALS.with_metadata({VERSION_KEY: b"9"}).empty_table(), folder / "trials-000009.parquet")
    before = files(folder)
    for act in (store.compact, store.done_ids, store.read_trials):
        with pytest.raises(HpxferError, match="must have version 8 of the store's schema, got 9"):
            act()
    assert files(folder) == before


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_where_the_folder_should_be(tmp_path: Path, below: str) -> None:
    (tmp_path / "x").write_text("mine")
    where = tmp_path / "x" / below
    with pytest.raises(HpxferError) as error:
        Store.open(where, write=True)
    reason = "Not a directory" if below else "a file is in its place"
    assert str(error.value) == f"{where}: cannot be written: {reason}; choose another folder with --results"
    with pytest.raises(HpxferError, match="must be a path that can be used, got 'Not a directory'"):
        Store.open(where, write=False)
    assert (tmp_path / "x").read_text() == "mine"


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_written(folder: Path, monkeypatch: Patch, code: int) -> None:
    def refuse(**_: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    before = files(folder)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(HpxferError) as error:
        Store.open(folder, write=True)
    assert str(error.value) == (
        f"{folder}: cannot be written: {os.strerror(code)}; choose another folder with --results"
    )
    assert Store.open(folder, write=False).done_ids() == set(IDS[:3])
    monkeypatch.undo()
    Store.open(folder, write=True)  # its proof that it can be written leaves nothing
    assert files(folder) == before


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes: as real as a full disk, and no root may pass it."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("num_bytes", [1000, 2**13])  # too little for the curves; enough for them, not for the trials
def test_a_disk_that_is_full_in_the_middle_of_a_write(folder: Path, num_bytes: int) -> None:
    store = Store.open(folder, write=True)
    before = files(folder)
    assert len(before["curves-000001.parquet"]) < 2**13 < len(before["trials-000001.parquet"])
    with largest_file(num_bytes), pytest.raises(HpxferError) as error:
        store.append([made(trial) for trial in TRIALS_OF_SPEC[3:5]])
    assert str(error.value) == (
        f"{folder}: cannot be written: File too large; 3 trials are safely stored in it, the last 2 are not; "
        "make room in it and run again: only the missing trials are trained"
    )
    assert files(folder) == before
    store.append([made(trial) for trial in TRIALS_OF_SPEC[3:5]])
    assert store.done_ids() == set(IDS[:5])


def test_a_disk_that_is_full_in_compact(folder: Path) -> None:
    store = Store.open(folder, write=True)
    before = files(folder)
    with largest_file(2**13), pytest.raises(HpxferError) as error:
        store.compact()
    assert str(error.value) == (
        f"{folder}: cannot be written: File too large; nothing is lost; make room in the folder and run the sweep again"
    )
    assert files(folder) == before
