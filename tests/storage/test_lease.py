"""One driver at a time: who has the lease, when it is taken over, and what a driver does that has lost it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from deaths import contents, left_by_death
from fixture_types import Patch
from lease_holder import holder_of

from hpxfer.errors import HpxferError
from hpxfer.host.machine import machine_id, process_started
from hpxfer.storage import lease
from hpxfer.storage.lease import LEASE_FILE, Holder, LeaseFile, decoded, encoded, leased

DEADLINE_S = 600.0
# A driver in a process of its own: says what became of it, holds the lease until its input ends.
DRIVER = """
import sys
from pathlib import Path
from hpxfer.errors import HpxferError
from hpxfer.storage.lease import LeaseFile, leased
folder, bump_s, stale_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
try:
    with leased(LeaseFile(folder), "results/x", bump_s=bump_s, stale_s=stale_s) as held:
        print("held", flush=True)
        for line in sys.stdin:
            held.check()
            print("still held", flush=True)
except HpxferError as error:
    print("refused:", error, flush=True)
"""


class Clock:
    """Time that passes only while somebody sleeps; `on_sleep` is what others do meanwhile."""

    def __init__(self, on_sleep: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self.on_sleep = on_sleep

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()


class Drivers:
    """Starts drivers, and ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[subprocess.Popen[str]] = []

    def start(self, bump_s: float = 0.05, stale_s: float = 60.0) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", DRIVER, str(self.folder), str(bump_s), str(stale_s)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.all.append(process)
        return process


def said(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


def ask(process: subprocess.Popen[str]) -> str:
    process.stdin.write("\n")
    process.stdin.flush()
    return said(process)


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    out = Drivers(tmp_path)
    yield out
    for process in out.all:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def other(**changed: object) -> Holder:
    """A driver on another host."""
    holder = Holder(nonce="other", host="elsewhere", pid=4242, machine="its boot", started="77", since="then")
    return replace(holder, **changed)


def here(**changed: object) -> Holder:
    """A driver of this host."""
    return other(host=lease.socket.gethostname(), machine=machine_id(), **changed)


def dead_process() -> Holder:
    """A process of this host that has ended, whose number may be used again at any time."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    started = process_started(ended.pid)
    ended.wait(timeout=DEADLINE_S)
    return here(pid=ended.pid, started=started or "1")


def put(folder: Path, content: bytes) -> None:
    (folder / LEASE_FILE).write_bytes(content)


def take(folder: Path, clock: Clock | None = None, notes: list[str] | None = None) -> float:
    """Take and release the lease; return how long that took by its clock."""
    clock = clock or Clock()
    on_wait = None if notes is None else notes.append
    with leased(LeaseFile(folder), "results/x", on_wait=on_wait, clock=clock, sleep=clock.sleep):
        assert holder_of(folder) is not None
    assert not (folder / LEASE_FILE).exists()
    return clock.now


def test_a_link_to_nothing_is_refused_at_once(tmp_path: Path) -> None:
    """Its name is taken, and nothing can be read there."""
    (tmp_path / LEASE_FILE).symlink_to("nowhere")

    with pytest.raises(HpxferError, match=r"lease.json: cannot be read: No such file .*; remove it if no run"):
        take(tmp_path)


def test_a_lease_names_its_process_and_is_removed_at_the_end(tmp_path: Path) -> None:
    with leased(LeaseFile(tmp_path), "results/x") as held:
        holder = holder_of(tmp_path)
        assert (holder.pid, holder.host) == (os.getpid(), lease.socket.gethostname())
        assert not holder.is_gone
        held.check()
        assert [path.name for path in tmp_path.iterdir()] == [LEASE_FILE]
    assert list(tmp_path.iterdir()) == []


def test_the_counter_moves_and_a_newcomer_refuses_at_its_first_move(tmp_path: Path) -> None:
    mine, counter = other(), 0

    def bump() -> None:
        nonlocal counter
        counter += 1
        if counter == 15:  # the newcomer has watched for 7.5 s
            put(tmp_path, encoded(replace(mine, counter=1)))

    put(tmp_path, encoded(mine))
    clock, notes = Clock(bump), list[str]()
    with pytest.raises(HpxferError) as error:
        take(tmp_path, clock, notes)
    assert str(error.value).startswith("results/x: in use by process 4242 on host elsewhere, which is running since")
    assert "wait until it ends, stop it (kill 4242 on elsewhere)" in str(error.value)
    assert clock.now == 7.5
    (note,) = notes
    assert "in use by process 4242 on host elsewhere; checking for at most 60 s whether that run is alive" in note
    assert holder_of(tmp_path) == replace(mine, counter=1)


@pytest.mark.parametrize(
    "content", [encoded(other()), encoded(here(pid=os.getpid(), started=process_started(os.getpid())))]
)
def test_a_counter_that_stands_still_for_60_s_is_taken_over(tmp_path: Path, content: bytes) -> None:
    """Whether its process is on another host, or alive here and stopped."""
    put(tmp_path, content)
    assert take(tmp_path) == 60.0


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b'{"version": 1}', b"\xff\x00" * 40, b"x" * 5000])
def test_a_lease_that_says_nothing_is_watched_and_taken_over(tmp_path: Path, content: bytes) -> None:
    put(tmp_path, content)
    notes: list[str] = []
    assert take(tmp_path, notes=notes) == 60.0
    assert "its lease cannot be read" in notes[0]


def test_a_lease_that_says_nothing_but_changes_is_somebodys(tmp_path: Path) -> None:
    put(tmp_path, b"")
    with pytest.raises(HpxferError, match="another driver has just started"):
        take(tmp_path, Clock(lambda: put(tmp_path, b"{")))


def test_a_dead_process_of_this_host_alone_is_taken_over_at_once(tmp_path: Path) -> None:
    """Or one whose number another process has now. On another host, or in another container, it says nothing."""
    dead, again = dead_process(), here(pid=os.getpid(), started="1")
    held = [(dead, 0.0), (again, 0.0), (replace(dead, host="elsewhere"), 60.0), (replace(dead, machine="boot"), 60.0)]
    for holder, waited in held:
        put(tmp_path, encoded(holder))
        assert take(tmp_path) == waited


def test_a_lease_of_another_version_is_refused_and_left(tmp_path: Path) -> None:
    content = json.dumps({"version": 2, "who": "knows"}).encode()
    put(tmp_path, content)
    with pytest.raises(HpxferError, match=r"must have version 1, got 2; .*or remove the file if no run is active"):
        take(tmp_path)
    assert (tmp_path / LEASE_FILE).read_bytes() == content


def test_a_release_while_watched_lets_the_newcomer_in(tmp_path: Path) -> None:
    put(tmp_path, encoded(other()))
    assert take(tmp_path, Clock(lambda: (tmp_path / LEASE_FILE).unlink(missing_ok=True))) == lease.POLL_S


def test_a_lease_that_was_taken_over_is_lost_for_good(tmp_path: Path) -> None:
    with leased(LeaseFile(tmp_path), "results/x") as held:
        mine = (tmp_path / LEASE_FILE).read_bytes()
        put(tmp_path, encoded(other()))
        held.check(read=False)  # not read yet
        with pytest.raises(HpxferError, match="was taken over by process 4242 on host elsewhere"):
            held.check()
        put(tmp_path, mine)
        with pytest.raises(HpxferError, match="writes nothing more"):
            held.check(read=False)
        put(tmp_path, encoded(other()))
    assert holder_of(tmp_path) == other()  # not removed: it is another's
    (tmp_path / LEASE_FILE).unlink()
    with leased(LeaseFile(tmp_path), "results/x") as held:
        (tmp_path / LEASE_FILE).unlink()  # taken over, and released
        held.bump()
        with pytest.raises(HpxferError, match="was removed"):
            held.check(read=False)
    assert list(tmp_path.iterdir()) == []


def test_the_counter_moves_on_a_disk_that_is_full_and_catches_up_after_one_that_refused(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    def refuse(_: int) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with leased(LeaseFile(tmp_path), "results/x") as held:
        size = (tmp_path / LEASE_FILE).stat().st_size
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refuse)  # what was written may or may not have arrived
            held.bump()
            held.bump()
        held.bump()
        held.bump()
        found = holder_of(tmp_path)
        assert found.counter >= 2
        assert (tmp_path / LEASE_FILE).stat().st_size == size
        held.check()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOSPC])
def test_a_folder_that_refuses(tmp_path: Path, monkeypatch: Patch, code: int) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(LeaseFile, "create", refuse)
    with pytest.raises(HpxferError) as error:
        take(tmp_path)
    assert str(error.value) == (
        f"results/x: its lease cannot be written: {os.strerror(code)}; choose another folder with --results"
    )


def test_a_lease_round_trips_and_nonsense_is_nobody() -> None:
    assert decoded(encoded(other(counter=12))) == other(counter=12)
    assert len(encoded(other(counter=12))) == len(encoded(other(counter=10**9, host="h" * 255)))
    for changed in ({"pid": "1"}, {"pid": 0}, {"pid": -1}, {"pid": True}, {"host": None}, {"counter": 1.5}):
        assert decoded(encoded(other(**changed))) is None


@pytest.mark.parametrize("links", [True, False])
def test_a_new_lease_is_whole_at_once_where_the_disk_has_links(tmp_path: Path, monkeypatch: Patch, links: bool) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    content = encoded(other())
    left = left_by_death(tmp_path, monkeypatch, lambda: LeaseFile(tmp_path).create(content))
    assert {found[LEASE_FILE] for found in left if LEASE_FILE in found} == {content}
    assert contents(tmp_path) == {LEASE_FILE: content}
    assert not LeaseFile(tmp_path).create(encoded(here()))
    assert contents(tmp_path) == {LEASE_FILE: content}


def test_two_real_drivers_the_second_refuses_and_the_next_gets_in(drivers: Drivers) -> None:
    first = drivers.start()
    assert said(first) == "held"
    answer = said(drivers.start())
    assert answer.startswith(f"refused: results/x: in use by process {first.pid} on host ")
    assert ask(first) == "still held"
    first.communicate(timeout=DEADLINE_S)  # its input ends, and so does it
    assert said(drivers.start()) == "held"


def test_of_many_newcomers_at_once_one_wins(drivers: Drivers, tmp_path: Path) -> None:
    put(tmp_path, encoded(dead_process()))
    answers = [said(process) for process in [drivers.start() for _ in range(6)]]
    assert sorted(answer.partition(":")[0] for answer in answers) == ["held"] + ["refused"] * 5
    assert [path.name for path in tmp_path.iterdir()] == [LEASE_FILE]


def test_a_driver_that_was_killed_gives_way_at_once(drivers: Drivers) -> None:
    first = drivers.start()
    assert said(first) == "held"
    first.kill()  # and not waited for: a zombie has ended, too
    start = time.monotonic()
    assert said(drivers.start(stale_s=DEADLINE_S)) == "held"
    assert time.monotonic() - start < DEADLINE_S / 2


def test_a_driver_that_was_suspended_finds_its_lease_taken(drivers: Drivers) -> None:
    first = drivers.start(bump_s=60.0)
    assert said(first) == "held"
    first.send_signal(signal.SIGSTOP)
    second = drivers.start(stale_s=0.5)
    assert said(second) == "held"
    first.send_signal(signal.SIGCONT)
    assert f"was taken over by process {second.pid} on host" in ask(first)
    assert ask(second) == "still held"


def test_a_change_that_was_suspended_halfway_blocks_nobody(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(lease, "LOCK_WAIT_S", 0.05)
    put(tmp_path, encoded(dead_process()))
    with open(tmp_path / LEASE_FILE, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert take(tmp_path) == 0.0
