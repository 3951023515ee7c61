"""The lease of a results folder: one driver at a time writes there, and a driver that is gone does not block it.

lease.json names the driver's host and process, and holds a counter that the driver raises every BUMP_S seconds. A
second driver that finds the file watches the counter: if it moves, the first driver is at work. The second takes the
lease over if the first process ran on this host and is dead, or if the counter stands still for STALE_S seconds of the
second's own monotonic clock. Times of day are never compared. A driver that was suspended for so long that it lost its
lease notices before its next write, because every write asks the lease (`Lease.writing`).

On a disk, locks keep changes of lease.json apart (`LeaseFile`); without locks nobody takes over. In a bucket, an object
is written on the condition that it is absent or unchanged (`LeaseObject`).
"""

from __future__ import annotations

import datetime
import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from hpxfer.errors import HpxferError
from hpxfer.host import (
    NoLocks,
    half_written,
    locked,
    machine_id,
    path_problem,
    process_is_gone,
    process_started,
    read_bytes,
    reason,
    wait_for_lock,
    write_files,
)
from hpxfer.storage.objects import Bucket, storage_errors

LEASE_FILE = "lease.json"
LEASE_VERSION: Literal[1] = 1
BUMP_S = 10.0
STALE_S = 60.0
POLL_S = 0.5
# How long to wait for the lock of the file. A change takes one write. A process that holds the lock longer was
# suspended, and what it writes later is lost.
LOCK_WAIT_S = 5.0
# Every lease has this length in bytes. The longest host name has 255.
_BYTES = 1024
_NAME_BYTES = 255
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The driver that a lease names."""

    nonce: str  # unique per driver
    host: str
    pid: Annotated[int, Field(gt=0)]
    machine: str | None = None  # this boot of the host and, in a container, the namespace of its processes
    started: str | None = None  # when the process started, by the host's own count, because process ids are reused
    since: str = ""  # UTC, for people only
    counter: Annotated[int, Field(ge=0)] = 0
    version: Literal[1] = LEASE_VERSION

    @property
    def is_gone(self) -> bool:
        """Whether this machine can see that the process has ended. The name of a host is no proof: two may share it."""
        is_here = self.machine is not None and self.machine == machine_id() and self.host == socket.gethostname()
        return is_here and process_is_gone(self.pid, self.started)

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"


_HOLDER = TypeAdapter(Holder)


def encoded(holder: Holder) -> bytes:
    """Return a lease as bytes. All leases have the same length."""
    return json.dumps(asdict(holder)).encode().ljust(_BYTES - 1) + b"\n"


def decoded(content: bytes, where: str | None = None) -> Holder | None:
    """Return the driver that a lease names, or None if it cannot be understood.

    With `where`, raise HpxferError for a lease of another version.
    """
    try:
        return _HOLDER.validate_json(content, strict=True)
    except ValidationError as error:
        for each in error.errors():
            if where is not None and each["loc"] == ("version",) and isinstance(each["input"], int):
                rule = f"{LEASE_FILE} must have version {LEASE_VERSION}, got {each['input']}"
                fix = "use the hpxfer that wrote it, or remove the file if no run is active"
                raise HpxferError(f"{where}: {rule}; {fix}") from None
        return None


@dataclass(frozen=True)
class LeaseFile:
    """The lease in a folder. All methods raise OSError if the disk refuses.

    Its driver changes the file in place, under a lock of its own. So neither a full disk nor a long write of the store,
    which has another lock, keeps the counter from moving. Whoever takes over replaces the file, under the lock of the
    folder. Without locks nobody takes over, and the counter stands still.
    """

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / LEASE_FILE

    def read(self) -> bytes | None:
        """Return the content, or None if there is no lease. Raise HpxferError if it cannot be read."""
        try:
            return read_bytes(self.path)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not self.path.is_symlink():
                return None
            fix = "remove it if no run is active"
            raise HpxferError(path_problem(error) or f"{self.path}: cannot be read: {reason(error)}; {fix}") from None

    def create(self, content: bytes) -> bool:
        """Create the lease, whole, unless it exists. Return whether it was created."""
        temporary = half_written(self.path)
        try:
            if os.path.lexists(self.path):
                return False
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, self.path)
            except FileExistsError:  # NFS may also say so of a link that it made at the first of two requests
                return os.stat(temporary).st_nlink == 2
            except OSError:  # a file system without links: a kill may leave the file empty there
                with open(self.path, "xb") as file:
                    file.write(content)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def swap(self, old: bytes, new: bytes, *, takeover: bool = False) -> bool:
        """Change the content from `old` to `new`. Return False and change nothing if it is another, or absent.

        A takeover waits until the driver's current write has ended. It gives the name to a new file: a change of the
        old one that is suspended halfway then changes nothing.
        """
        with ExitStack() as stack:
            if takeover and (refused := stack.enter_context(locked(self.folder, exclusive=True))) is not None:
                raise HpxferError(
                    f"{self.folder}: has no locks ({reason(refused)}), so its lease cannot be taken over without the "
                    f"risk of two drivers; remove {self.path} if no run is active, or choose another folder with "
                    "--results"
                )
            try:
                handle = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            stack.callback(os.close, handle)
            with suppress(BlockingIOError) if takeover else nullcontext():
                wait_for_lock(handle, fcntl.LOCK_EX, LOCK_WAIT_S)
            if os.pread(handle, len(old) + 1, 0) != old or not self._is_named(handle):
                return False
            if takeover:
                write_files({self.path: lambda file: file.write(new)})
                return True
            os.pwrite(handle, new, 0)
            os.ftruncate(handle, len(new))
            os.fsync(handle)
            return self._is_named(handle)  # if not, another driver took over while this process was suspended above

    def _is_named(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.path))
        except FileNotFoundError:
            return False

    def drop(self, old: bytes) -> None:
        """Remove the lease if its content is `old`. Nobody takes over between the look and the removal."""
        with locked(self.folder, exclusive=True):
            if self.read() == old:
                os.unlink(self.path)

    def writing(self) -> AbstractContextManager[object]:
        """Keep others from taking over while entered. Raise HpxferError if another process was suspended in here."""
        return locked(self.folder, exclusive=False)


@dataclass(frozen=True)
class LeaseObject:
    """The lease in a bucket, see `LeaseFile`. A bucket that ignores conditions gets a warning."""

    bucket: Bucket

    def read(self) -> bytes | None:
        return (self.bucket.read(LEASE_FILE) or (None,))[0]

    def create(self, content: bytes) -> bool:
        if self.read() is not None or not self.bucket.write(LEASE_FILE, content, "create"):
            return False
        if self.bucket.write(LEASE_FILE, content, "create"):  # a server that knows no conditions
            _log.warning(
                "%s: this storage does not write on a condition, so two drivers that start at the same moment are not "
                "kept apart; start one at a time",
                self.bucket.uri,
            )
        return True

    def swap(self, old: bytes, new: bytes, *, takeover: bool = False) -> bool:
        content, unchanged = self.bucket.read(LEASE_FILE) or (None, None)
        with suppress(FileNotFoundError):
            return content == old and self.bucket.write(LEASE_FILE, new, unchanged)
        return False

    def drop(self, old: bytes) -> None:
        if self.read() == old:
            self.bucket.remove(LEASE_FILE)

    def writing(self) -> AbstractContextManager[object]:
        return nullcontext()  # object storage has no locks


class Lease:
    """A lease that this process holds. Made by `leased`. A thread raises its counter."""

    def __init__(self, lease_storage: LeaseFile | LeaseObject, where: str, holder: Holder) -> None:
        self._storage, self._where, self._holder = lease_storage, where, holder
        self._lost: str | None = None
        self._has_locks = False  # whether the storage has ever locked the lease

    def check(self, *, read: bool = True) -> None:
        """Raise HpxferError if this process no longer holds the lease. With `read`, read the lease now."""
        if read and self._lost is None:
            self._read()
        if self._lost is not None:
            raise HpxferError(self._lost)

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

        Without locks nothing is written. A file system that had locks and has them no more ends the run.
        """
        if self._lost is not None:
            return
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

    def release(self) -> None:
        """Remove the lease if it is still this process's. Without the storage it stays."""
        with suppress(OSError, HpxferError):
            if self._lost is None and (found := self._read()) is not None:
                self._storage.drop(encoded(found))

    def _read(self) -> Holder | None:
        """Return what the lease says if it is ours. If it is not, it is lost."""
        with storage_errors(self._where, "its lease cannot be read", "run again to train the rest"):
            found = self._storage.read()
        holder = None if found is None else decoded(found)
        if holder is not None and holder.nonce == self._holder.nonce:
            return holder
        by = "was removed" if found is None else f"was taken over by {holder or 'something unreadable'}"
        self._lost = (
            f"{self._where}: the lease of this run {by}: this process was suspended for longer than {STALE_S:g} s, or "
            "someone changed the file. This run stops and writes nothing more; what it stored is kept. When no other "
            "run is active, run again to train the rest"
        )
        return None


@contextmanager
def leased(
    lease_storage: LeaseFile | LeaseObject,
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
    mine = Holder(
        nonce=os.urandom(8).hex(),
        host=socket.gethostname()[:_NAME_BYTES],
        pid=os.getpid(),
        machine=machine_id(),
        started=process_started(os.getpid()),
        since=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    lease, ended, content = Lease(lease_storage, where, mine), threading.Event(), encoded(mine)
    watched, since = None, clock()
    with storage_errors(where, "its lease cannot be written", "choose another folder with --results"):
        while not lease_storage.create(content):
            if (found := lease_storage.read()) is None:
                continue  # released between the two calls
            holder = decoded(found, where)
            if watched is not None and found != watched:
                if holder is None:
                    raise HpxferError(f"{where}: another driver has just started to write to it; wait until it ends")
                raise HpxferError(
                    f"{where}: in use by {holder}, which is running since {holder.since}; wait until it ends, stop it "
                    f"(kill {holder.pid} on {holder.host}), or give another folder with --results"
                )
            if (holder is not None and holder.is_gone) or (watched is not None and clock() - since >= stale_s):
                if lease_storage.swap(found, content, takeover=True):
                    break
                watched = found  # another driver was quicker: the lease is no longer the one that was read
                continue
            if watched is None:
                watched, since = found, clock()
                whose = "its lease cannot be read" if holder is None else f"in use by {holder}"
                if on_wait is not None:
                    on_wait(f"{where}: {whose}; checking for at most {stale_s:g} s whether that run is alive")
            sleep(POLL_S)
    lease.bump()  # finds out whether there are locks

    def bump_until_ended() -> None:
        while not ended.wait(bump_s):
            lease.bump()

    thread = threading.Thread(target=bump_until_ended, name="hpxfer-lease", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        ended.set()
        thread.join()
        lease.release()
