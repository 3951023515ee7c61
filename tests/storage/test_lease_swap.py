"""A lease changes hands once: on a disk with drivers that stop at the worst moment, and in storage."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import obstore
import pytest
from fixture_types import Caplog, Patch
from lease_holder import holder_of

from hpxfer.errors import HpxferError
from hpxfer.host.uri import parse_root
from hpxfer.storage import lease
from hpxfer.storage.lease import LEASE_FILE, LeaseFile, LeaseObject, leased
from hpxfer.storage.objects import Bucket

# A driver that stops itself at the first call of os.NAME in `act`, and says in the end what became of it.
STOPS = """
import os, signal, sys
from pathlib import Path
from hpxfer.errors import HpxferError
from hpxfer.storage.lease import LeaseFile, leased

folder, name, act = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def stopping(*args, plain=getattr(os, name)):
    setattr(os, name, plain)
    os.kill(os.getpid(), signal.SIGSTOP)
    return plain(*args)

with leased(LeaseFile(folder), "results/x", bump_s=3600.0) as held:
    print("held", flush=True)
    setattr(os, name, stopping)
    if act == "bump":
        held.bump()
    elif act == "release":
        sys.exit()
    try:
        held.check()
        print("still held", flush=True)
    except HpxferError as error:
        print("lost:", error, flush=True)
"""


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Driver processes, which are ended at the end of the test."""
    out: list[subprocess.Popen[str]] = []
    yield out
    for process in out:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def stopped_at(folder: Path, name: str, act: str, processes: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Return a driver with the lease that has stopped at its first call of os.NAME in an act."""
    command = [sys.executable, "-c", STOPS, str(folder), name, act]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    processes.append(process)
    assert process.stdout.readline() == "held\n"
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    return process


def end_of(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGCONT)
    return process.communicate(timeout=120)[0]


@pytest.mark.parametrize("name", ["pwrite", "fsync"])
def test_a_driver_that_stops_within_a_bump_does_not_put_itself_back(
    name: str, tmp_path: Path, stopped: list[subprocess.Popen[str]], monkeypatch: Patch
) -> None:
    """It has read its own lease, another driver takes over, and then it goes on to write."""
    monkeypatch.setattr(lease, "LOCK_WAIT_S", 0.05)
    first = stopped_at(tmp_path, name, "bump", stopped)
    with leased(LeaseFile(tmp_path), "results/x", stale_s=0.2, sleep=lambda _: None) as held:
        mine = holder_of(tmp_path)
        assert mine.pid == os.getpid()
        assert f"lost: results/x: the lease of this run was taken over by process {os.getpid()} on" in end_of(first)
        held.check()
        assert holder_of(tmp_path) == mine
    assert list(tmp_path.iterdir()) == []


def test_a_driver_that_stops_within_its_release_does_not_remove_the_lease_of_the_next(
    tmp_path: Path, stopped: list[subprocess.Popen[str]], monkeypatch: Patch
) -> None:
    """The next one waits for it, and says what to do."""
    monkeypatch.setattr("hpxfer.host.files.LOCK_WAIT_S", 0.1)
    first = stopped_at(tmp_path, "unlink", "release", stopped)
    with (
        pytest.raises(HpxferError, match="resume that process if it was suspended, or end it"),
        leased(LeaseFile(tmp_path), "results/x", stale_s=0.0, sleep=lambda _: None),
    ):
        raise AssertionError("the first driver would remove this lease")
    end_of(first)
    with leased(LeaseFile(tmp_path), "results/x") as held:
        held.check()


def refuse_locks(monkeypatch: Patch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_driver_whose_file_system_loses_its_locks_gives_the_lease_up_and_writes_nothing(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    with leased(LeaseFile(tmp_path), "results/x", bump_s=3600.0) as held:
        before = (tmp_path / LEASE_FILE).read_bytes()
        refuse_locks(monkeypatch)
        held.bump()
        assert (tmp_path / LEASE_FILE).read_bytes() == before
        with pytest.raises(HpxferError, match="cannot be locked: No locks available"):
            held.check(read=False)


def test_without_locks_a_free_folder_is_used_and_no_lease_is_ever_taken_over(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    refuse_locks(monkeypatch)
    with leased(LeaseFile(tmp_path), "results/x", bump_s=3600.0) as held:
        before = (tmp_path / LEASE_FILE).read_bytes()
        held.bump()
        held.check()
        assert (tmp_path / LEASE_FILE).read_bytes() == before
        with (
            pytest.raises(HpxferError) as error,
            leased(LeaseFile(tmp_path), "results/x", stale_s=0.0, sleep=lambda _: None),
        ):
            raise AssertionError("two drivers")
        assert "has no locks (No locks available), so its lease cannot be taken over" in str(error.value)
        assert f"remove {tmp_path / LEASE_FILE} if no run is active" in str(error.value)
        with held.writing():
            pass
    assert list(tmp_path.iterdir()) == []


def test_nobody_takes_over_while_the_driver_writes(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("hpxfer.host.files.LOCK_WAIT_S", 0.1)
    with leased(LeaseFile(tmp_path), "results/x", bump_s=3600.0) as held:
        with (
            held.writing(),
            pytest.raises(HpxferError, match="must be free to write"),
            leased(LeaseFile(tmp_path), "results/x", stale_s=0.0, sleep=lambda _: None),
        ):
            raise AssertionError("two drivers")
        with (
            leased(LeaseFile(tmp_path), "results/x", stale_s=0.0, sleep=lambda _: None),
            pytest.raises(HpxferError, match="was taken over by process"),
            held.writing(),
        ):
            raise AssertionError("it writes without the lease")


CONDITIONLESS = "this storage does not write on a condition"


def bucket_at(root: str) -> Bucket:
    return Bucket(parse_root(root) / "small")


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_a_swap_changes_only_what_is_known(where: str, s3: str, tmp_path: Path) -> None:
    lease_storage = LeaseFile(tmp_path) if where == "disk" else LeaseObject(bucket_at(s3))
    assert lease_storage.read() is None
    assert not lease_storage.swap(b"", b"x")
    assert lease_storage.create(b"one")
    assert not lease_storage.create(b"two")
    assert not lease_storage.swap(b"on", b"two")
    assert not lease_storage.swap(b"ones", b"two")
    assert lease_storage.swap(b"one", b"2")
    assert lease_storage.read() == b"2"
    assert lease_storage.swap(b"2", b"three", takeover=True)
    lease_storage.drop(b"2")
    assert lease_storage.read() == b"three"
    lease_storage.drop(b"three")
    assert lease_storage.read() is None
    lease_storage.drop(b"three")
    assert not lease_storage.swap(b"three", b"four")
    assert list(tmp_path.glob("*.*")) == []


@pytest.mark.parametrize("old", [None, b"a dead one"])
def test_of_two_that_write_at_once_one_has_it(s3: str, old: bytes | None) -> None:
    bucket = bucket_at(s3)
    if old is not None:
        bucket.write(LEASE_FILE, old)
    got: list[bool] = []

    def take(lease_storage: LeaseObject, content: bytes) -> bool:
        return lease_storage.create(content) if old is None else lease_storage.swap(old, content, takeover=True)

    class Late(Bucket):
        """Another driver writes between its read and its write."""

        def read(self, name: str) -> tuple[bytes, Any] | None:
            found = super().read(name)
            if not got:
                got.append(take(LeaseObject(bucket), b"first"))
            return found

    late = take(LeaseObject(Late(bucket.uri)), b"second")
    assert [*got, late] == [True, False]
    assert LeaseObject(bucket).read() == b"first"


def test_a_bucket_that_is_not_there_is_an_error(s3: str) -> None:
    uri = parse_root("s3://no-such-bucket/x")
    with pytest.raises(OSError, match=r"The specified bucket does not exist \(NoSuchBucket\)"):
        LeaseObject(Bucket(uri)).create(b"one")


def test_a_server_that_ignores_conditions_is_found_out(s3: str, monkeypatch: Patch, caplog: Caplog) -> None:
    put = obstore.put
    monkeypatch.setattr(obstore, "put", lambda *args, mode, **rest: put(*args, mode="overwrite", **rest))
    assert LeaseObject(bucket_at(s3)).create(b"one")
    assert [CONDITIONLESS in message for message in caplog.messages] == [True]


def test_the_lease_is_kept_in_storage_and_lost_when_another_takes_it(s3: str) -> None:
    bucket = bucket_at(s3)
    lease_storage = LeaseObject(bucket)
    with leased(lease_storage, "there", bump_s=0.01) as held:
        first = lease_storage.read()
        while lease_storage.read() == first:
            pass
        held.check()
    assert lease_storage.read() is None
    with leased(lease_storage, "there", bump_s=3600.0) as held:
        bucket.write(LEASE_FILE, b"somebody else's")
        with pytest.raises(HpxferError, match="was taken over by something unreadable"):
            held.check()
    assert lease_storage.read() == b"somebody else's"
