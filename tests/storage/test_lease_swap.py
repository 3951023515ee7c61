"""A lease changes hands once: a driver that was stopped at the worst moment never puts itself back, and a driver is
called dead only on the machine that it ran on.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from lease_holder import holder_of

from hpxfer.errors import HpxferError
from hpxfer.storage import lease
from hpxfer.storage import lease_file as lease_slot
from hpxfer.storage.lease import Holder, encoded, leased
from hpxfer.storage.lease_file import LEASE_FILE, LeaseFile

# A driver that stops itself at the first call of os.NAME in `act`, and says in the end what became of it.
STOPS = """
import os, signal, sys
from pathlib import Path
from hpxfer.errors import HpxferError
from hpxfer.storage.lease import leased
from hpxfer.storage.lease_file import LeaseFile

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


def other(**changed: object) -> Holder:
    """A driver on another host."""
    holder = Holder(nonce="other", host="elsewhere", pid=4242, machine="its boot", started="77", since="then")
    return replace(holder, **changed)  # type: ignore[arg-type]


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
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    return process


def end_of(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGCONT)
    return process.communicate(timeout=120)[0]


@pytest.mark.parametrize("name", ["pwrite", "fsync"])
def test_a_driver_that_stops_within_a_bump_does_not_put_itself_back(
    name: str, tmp_path: Path, stopped: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read its own lease, another driver takes over, and then it goes on to write."""
    monkeypatch.setattr(lease_slot, "LOCK_WAIT_S", 0.05)
    first = stopped_at(tmp_path, name, "bump", stopped)
    with leased(LeaseFile(tmp_path), "results/x", stale_s=0.2, sleep=lambda _: None) as held:
        mine = holder_of(tmp_path)
        assert mine is not None
        assert mine.pid == os.getpid()
        assert f"lost: results/x: the lease of this run was taken over by process {os.getpid()} on" in end_of(first)
        held.check()
        assert holder_of(tmp_path) == mine
    assert list(tmp_path.iterdir()) == []


def test_a_driver_that_stops_within_its_release_does_not_remove_the_lease_of_the_next(
    tmp_path: Path, stopped: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
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


def refuse_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_driver_whose_file_system_loses_its_locks_gives_the_lease_up_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with leased(LeaseFile(tmp_path), "results/x", bump_s=3600.0) as held:
        before = (tmp_path / LEASE_FILE).read_bytes()
        refuse_locks(monkeypatch)
        held.bump()
        assert (tmp_path / LEASE_FILE).read_bytes() == before
        with pytest.raises(HpxferError, match="cannot be locked: No locks available"):
            held.check(read=False)


def test_without_locks_a_free_folder_is_used_and_no_lease_is_ever_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_nobody_takes_over_while_the_driver_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_without_an_identity_of_the_machine_two_hosts_of_one_name_are_not_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of its process says nothing here: the lease is watched like that of any other host."""
    monkeypatch.setattr(lease, "machine_id", lambda: None)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(timeout=120)
    twin = other(host=socket.gethostname(), machine=None, pid=ended.pid, started=None)
    assert not twin.is_gone
    (tmp_path / LEASE_FILE).write_bytes(encoded(twin))
    now = [0.0]
    with leased(
        LeaseFile(tmp_path), "results/x", clock=lambda: now[0], sleep=lambda _: now.__setitem__(0, now[0] + 1.0)
    ):
        assert now[0] == lease.STALE_S
