"""Files that are whole or not there, locks, JSON lines, and folders that users name."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

import pyarrow.parquet as pq
import pytest
from fixture_types import Patch
from made_results import files, made, trials_of

from hpxfer.errors import HpxferError
from hpxfer.host.files import (
    append_line,
    half_written,
    json_lines,
    locked,
    make_folder,
    open_regular,
    path_problem,
    read_bytes,
    read_text,
    remove_half_written,
    text_writer,
    write_files,
    write_folder,
)
from hpxfer.store import Store, parquet

TRIALS_OF_SPEC = trials_of()


def is_locked(folder: Path) -> bool:
    """Return whether another process would have to wait before it writes."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def full(file: IO[bytes]) -> None:
    file.write(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_a_disk_refuses_is_named_by_the_path_that_was_to_be_written(tmp_path: Path) -> None:
    """The system names a temporary file, or none."""
    with pytest.raises(OSError, match="No space left") as caught:
        write_files({tmp_path / "recipe.yaml": full})
    rule = "must be on a disk with room, got 'No space left on device'"
    assert path_problem(caught.value) == f"{tmp_path / 'recipe.yaml'}: {rule}"
    assert path_problem(OSError("no more")) is None
    assert path_problem(BrokenPipeError(errno.EPIPE, "Broken pipe")) is None


@pytest.mark.parametrize("exclusive", [True, False])
def test_the_lock_holds_as_long_as_the_block(tmp_path: Path, exclusive: bool) -> None:
    with locked(tmp_path, exclusive=exclusive):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def test_a_folder_that_cannot_be_locked_is_used_all_the_same(tmp_path: Path, monkeypatch: Patch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    store = Store.open(tmp_path, write=True)
    store.append([made(TRIALS_OF_SPEC[0])])
    store.compact()
    assert store.done_ids() == {TRIALS_OF_SPEC[0].id}


def test_every_change_is_made_under_the_lock(tmp_path: Path, monkeypatch: Patch) -> None:
    seen = []
    for name in ("replace", "unlink"):
        step = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, step=step: (seen.append(is_locked(tmp_path)), step(*args)))
    store = Store.open(tmp_path, write=True)
    seen.clear()
    store.append([made(TRIALS_OF_SPEC[0])])
    store.compact()
    assert seen == [True] * 6


def test_small_parts_become_large_row_groups(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(parquet, "BATCH_ROWS", 12)
    store = Store.open(tmp_path, write=True)
    for trial in TRIALS_OF_SPEC[:7]:
        store.append([made(trial)])  # 5 points of curves each
    store.compact()
    metadata = pq.read_metadata(tmp_path / "curves.parquet")
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [15, 15, 5]
    assert len(store.read_curves()) == 35


def test_what_a_dead_process_left_half_written_goes(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    alive = half_written(tmp_path / "recipe.yaml").name
    of_the_dead = alive.replace(f".{os.getpid()}.", f".{gone.pid}.")
    elsewhere = f"recipe.yaml.on-01234567.{gone.pid}.tmp"
    of_a_user = ["a user's.tmp", f"trials.{gone.pid}.tmp", f"on-01234567.{gone.pid}.tmp", "trials.parquet"]
    owned = f"trials-000001.parquet.on-01234567.{os.getpid()}.tmp"
    stay = sorted([alive, elsewhere, *of_a_user])
    for name in (of_the_dead, *stay, owned):
        (tmp_path / name).write_bytes(b"half")
    remove_half_written(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*stay, owned])
    remove_half_written(tmp_path, ("trials",))
    assert sorted(path.name for path in tmp_path.iterdir()) == stay
    (tmp_path / of_the_dead).write_bytes(b"half")
    write_files({tmp_path / "other.yaml": lambda file: file.write(b"whole")})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*stay, "other.yaml"])
    remove_half_written(tmp_path / "none")


def test_what_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x\r\ny\rz\n")
    assert (read_bytes(file), read_text(file)) == (b"x\r\ny\rz\n", "x\ny\nz\n")
    assert read_bytes(file, most=7) == b"x\r\ny\rz\n"
    with pytest.raises(OSError, match="must have at most"):
        read_bytes(file, most=6)


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "pipe", tmp_path / "link", tmp_path / "socket", Path("/dev/zero")):
            with pytest.raises(OSError, match=r"must be a regular file|No such device"):
                open_regular(path)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


def test_lines_come_back_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.jsonl"
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_line(path, {"value": float("nan")})
    assert list(tmp_path.iterdir()) == []
    for value in (1, 2):
        append_line(path, {"value": value})
    assert list(json_lines(path)) == [(1, {"value": 1}), (2, {"value": 2})]
    with pytest.raises(HpxferError, match=r"cannot be written: .*; choose another folder with --output"):
        append_line(path / "b.jsonl", None)


def test_a_half_line_stays_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"value": 1}\n{"val')
    assert list(json_lines(path)) == [(1, {"value": 1})]
    append_line(path, {"value": 2})
    assert path.read_text() == '{"value": 1}\n{"val\n{"value": 2}\n'
    with pytest.raises(HpxferError, match=r"a.jsonl:2: must be a JSON line, got "):
        list(json_lines(path))


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"text\nmore\n"])
def test_what_is_no_file_of_json_lines_is_refused(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "a.jsonl").write_bytes(content or b"")
    with pytest.raises(HpxferError, match=r"\.jsonl"):
        list(json_lines(tmp_path / ("gone.jsonl" if content is None else "a.jsonl")))


def test_files_come_below_their_folder_in_the_order_given(tmp_path: Path) -> None:
    named = [tmp_path / "out" / "b.txt", tmp_path / "out" / "deeper" / "a.txt"]
    written = write_folder({path: text_writer(path.name) for path in named}, tmp_path / "out", "check")
    assert written == named
    assert [path.read_text() for path in written] == ["b.txt\n", "a.txt\n"]


def test_a_folder_that_is_a_file_is_said_before_and_after_the_work(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    message = rf"{file}: the limit cannot be written: a file is in its place; choose another folder with --to"
    with pytest.raises(HpxferError, match=message):
        make_folder(file, "limit", "--to")
    with pytest.raises(HpxferError, match=message):
        write_folder({file / "a.txt": text_writer("new")}, file, "limit", "--to")
    assert file.read_text() == "mine"


def test_a_file_that_cannot_be_written_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine")
    writers = {tmp_path / "a.txt": text_writer("new"), tmp_path / "b.txt": full}
    with pytest.raises(HpxferError, match="the check cannot be written: No space left on device; choose another"):
        write_folder(writers, tmp_path, "check")
    assert files(tmp_path) == {"a.txt": b"mine"}
