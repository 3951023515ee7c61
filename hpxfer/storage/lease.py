"""The lease of a results folder: one driver at a time writes there, and a driver that is gone does not block it.

lease.json names the driver's host and process, and holds a counter that the driver raises every BUMP_S seconds. A
second driver that finds the file watches the counter: if it moves, the first driver is at work. The second takes the
lease over if the first process ran on this host and is dead, or if the counter stands still for STALE_S seconds of the
second's own monotonic clock. Times of day are never compared. A driver that was suspended for so long that it lost its
lease notices before its next write, because every write asks the lease (`Lease.writing`).
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host.files import reason
from hpxfer.host.machine import machine_id, process_is_gone, process_started
from hpxfer.storage.lease_file import LEASE_FILE, LeaseStorage, NoLocks

LEASE_VERSION = 1
BUMP_S = 10.0
STALE_S = 60.0
POLL_S = 0.5
# Every lease has this length in bytes. The longest host name has 255.
_BYTES = 1024
_NAME_BYTES = 255


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The driver that a lease names."""

    nonce: str  # unique per driver
    host: str
    pid: int
    machine: str | None = None  # this boot of the host and, in a container, the namespace of its processes
    started: str | None = None  # when the process started, by the host's own count, because process ids are reused
    since: str = ""  # UTC, for people only
    counter: int = 0

    @property
    def is_gone(self) -> bool:
        """Whether this machine can see that the process has ended."""
        if self.machine is None or self.machine != machine_id():
            return False  # the name of a host is no proof: two hosts may share it
        return self.host == socket.gethostname() and process_is_gone(self.pid, self.started)

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"


class Lease:
    """A lease that this process holds. Made by `leased`. A thread raises its counter."""

    def __init__(self, lease_storage: LeaseStorage, where: str, holder: Holder) -> None:
        self._storage, self._where, self._holder = lease_storage, where, holder
        self._lost: str | None = None
        self._has_locks = False  # whether the storage has ever locked the lease
        self._ended = threading.Event()

    def check(self, *, read: bool = True) -> None:
        """Raise HpxferError if this process no longer holds the lease. With `read`, read the lease now."""
        if read and self._lost is None:
            self._read()
        if self._lost is not None:
            raise HpxferError(self._lost)

    def is_ours(self) -> bool:
        """Return whether this process can be seen to hold the lease still."""
        with suppress(HpxferError):
            self.check()
            return True
        return False

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Let this process write as long as the context is open. Every write of a driver goes through here.

        Nobody takes the lease over meanwhile, where the storage can prevent it. Raises HpxferError if this process no
        longer holds the lease. The store, which has the same lock, calls `check` instead.
        """
        with self._storage.writing():
            self.check()
            yield

    def bump(self) -> None:
        """Raise the counter. If the disk refuses, the next call tries again. A lost lease stays lost.

        Without the lock nothing is written. A file system that had locks and has them no more ends the run.
        """
        following = replace(self._holder, counter=self._holder.counter + 1)
        try:
            if self._storage.swap(encoded(self._holder), encoded(following)):
                self._holder, self._has_locks = following, True
            elif (found := self._read()) is not None:
                self._holder = found  # an earlier write arrived after all, although the disk reported an error
        except NoLocks as error:
            if self._has_locks:
                self._lost = (
                    f"{self._where}: its lease cannot be locked: {reason(error)}; this run stops and writes nothing "
                    "more; what it stored is kept. Run again when the file system has its locks back"
                )
        except (OSError, HpxferError):
            pass

    def _read(self) -> Holder | None:
        """Return what the lease says if it is ours. If it is not, it is lost."""
        try:
            found = self._storage.read()
        except OSError as error:
            raise HpxferError(
                f"{self._where}: its lease cannot be read: {reason(error)}; run again to train the rest"
            ) from None
        if found is not None:
            holder = decoded(found)
            if holder is not None and holder.nonce == self._holder.nonce:
                return holder
        by = "was removed" if found is None else f"was taken over by {holder or 'something unreadable'}"
        self._lost = (
            f"{self._where}: the lease of this run {by}: this process was suspended for longer than {STALE_S:g} s, or "
            "someone changed the file. This run stops and writes nothing more; what it stored is kept. When no other "
            "run is active, run again to train the rest"
        )
        return None

    def _bump_until_ended(self, every_s: float) -> None:
        while not self._ended.wait(every_s) and self._lost is None:
            self.bump()

    def _release(self) -> None:
        with suppress(OSError, HpxferError):
            if self._lost is None and (found := self._read()) is not None:
                self._storage.drop(encoded(found))


@contextmanager
def leased(
    lease_storage: LeaseStorage,
    where: str,
    *,
    on_wait: Callable[[str], None] | None = None,
    bump_s: float = BUMP_S,
    stale_s: float = STALE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Lease]:
    """Hold the lease as long as the context is open. Raise HpxferError, which names the driver that has it.

    `where` names the folder in messages. `on_wait` is called once with a line if an old lease has to be watched.
    """
    mine = _new_holder()
    try:
        _acquire(lease_storage, where, mine, on_wait or (lambda _: None), stale_s, clock, sleep)
    except OSError as error:
        fix = "choose another folder with --results"
        raise HpxferError(f"{where}: its lease cannot be written: {reason(error)}; {fix}") from None
    lease = Lease(lease_storage, where, mine)
    lease.bump()  # finds out whether there are locks
    thread = threading.Thread(target=lease._bump_until_ended, args=(bump_s,), name="hpxfer-lease", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        lease._ended.set()
        thread.join()
        lease._release()


def encoded(holder: Holder) -> bytes:
    """Return a lease as bytes. All leases have the same length."""
    text = json.dumps({"version": LEASE_VERSION, **asdict(holder)})
    return text.encode().ljust(_BYTES - 1) + b"\n"


def decoded(content: bytes) -> Holder | None:
    """Return the driver that a lease names, or None if it cannot be understood."""
    data = _data(content)
    try:
        names = Holder.__dataclass_fields__
        holder = Holder(**{name: data[name] for name in names})
    except (KeyError, TypeError):
        return None
    numbers = all(type(number) is int and number >= 0 for number in (holder.pid, holder.counter))
    return holder if numbers and holder.pid and isinstance(holder.host, str) else None


def _acquire(
    lease_storage: LeaseStorage,
    where: str,
    mine: Holder,
    on_wait: Callable[[str], None],
    stale_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    content = encoded(mine)
    watched: bytes | None = None
    since = clock()
    while not lease_storage.create(content):
        found = lease_storage.read()
        if found is None:
            continue  # released between the two calls
        _check_version(found, where)
        holder = decoded(found)
        if watched is not None and found != watched:
            raise HpxferError(_busy(where, holder))
        if (holder is not None and holder.is_gone) or (watched is not None and clock() - since >= stale_s):
            if lease_storage.swap(found, content, takeover=True):
                return
            watched = found  # another driver was quicker: the lease is no longer the one that was read
            continue
        if watched is None:
            watched, since = found, clock()
            on_wait(
                f"{where}: {'its lease cannot be read' if holder is None else f'in use by {holder}'}; checking for at "
                f"most {stale_s:g} s whether that run is alive"
            )
        sleep(POLL_S)


def _busy(where: str, holder: Holder | None) -> str:
    if holder is None:
        return f"{where}: another driver has just started to write to it; wait until that run ends, then run again"
    return (
        f"{where}: in use by {holder}, which is running since {holder.since}; wait until it ends, stop it "
        f"(kill {holder.pid} on {holder.host}), or give another folder with --results"
    )


def _check_version(content: bytes, where: str) -> None:
    version = _data(content).get("version")
    if isinstance(version, int) and version != LEASE_VERSION:
        raise HpxferError(
            f"{where}: {LEASE_FILE} must have version {LEASE_VERSION}, got {version}; use the hpxfer that wrote it, or "
            "remove the file if no run is active"
        )


def _data(content: bytes) -> dict[str, Any]:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _new_holder() -> Holder:
    return Holder(
        nonce=os.urandom(8).hex(),
        host=socket.gethostname()[:_NAME_BYTES],
        pid=os.getpid(),
        machine=machine_id(),
        started=process_started(os.getpid()),
        since=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
