"""LeaseStorage: the small object that holds a lease, as a file of a results folder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hpxfer.host.files import locked

LEASE_FILE = "lease.json"
# How long to wait for the lock of the file. A change takes one write. A process that holds the lock longer was
# suspended, and gives up the lease when it looks again.
_LOCK_WAIT_S = 5.0


class LeaseStorage(Protocol):
    """One small object. All methods raise OSError if the disk or the storage refuses."""

    def read(self) -> bytes | None:
        """Return the content, or None if the object is absent."""

    def create(self, content: bytes) -> bool:
        """Create the object with all of its content, unless it exists. Return whether it was created."""

    def swap(self, old: bytes, new: bytes, *, takeover: bool = False) -> bool:
        """Change the content from `old` to `new`. Return False and change nothing if the content is another, or
        absent.
        """

    def drop(self, old: bytes) -> None:
        """Remove the object if its content is `old`."""


@dataclass(frozen=True)
class LeaseFile:
    """A file in a results folder.

    It is changed in place, under a lock of its own. So neither a full disk nor a long write of the store, which has
    another lock, keeps the counter from moving. Every content has the same length, so nothing of an older text remains.
    """

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / LEASE_FILE

    def read(self) -> bytes | None:
        """See `LeaseStorage.read`."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def create(self, content: bytes) -> bool:
        """See `LeaseStorage.create`."""
        if self.path.exists():
            return False
        temporary = self.path.with_name(f"{LEASE_FILE}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        try:
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            return self._rename_if_free(temporary, content)
        finally:
            temporary.unlink(missing_ok=True)

    def swap(self, old: bytes, new: bytes, *, takeover: bool = False) -> bool:
        """See `LeaseStorage.swap`. A takeover waits until the store's current write has ended."""
        if takeover:
            with locked(self.folder, exclusive=True):
                return self.swap(old, new)
        with self._opened() as handle:
            if handle is None or os.pread(handle, len(old) + 1, 0) != old:
                return False
            os.pwrite(handle, new, 0)
            if len(new) < len(old):
                os.ftruncate(handle, len(new))
            os.fsync(handle)
            return True

    def drop(self, old: bytes) -> None:
        """See `LeaseStorage.drop`."""
        with self._opened() as handle:
            if handle is not None and os.pread(handle, len(old) + 1, 0) == old:
                self.path.unlink()

    def _rename_if_free(self, temporary: Path, content: bytes) -> bool:
        """Give the written file its name, unless the name is taken."""
        try:
            os.link(temporary, self.path)
        except FileExistsError:
            return False
        except OSError:
            # The file system has no hard links. A crash here may leave an empty lease, which makes the next run wait.
            try:
                handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                return False
            try:
                os.write(handle, content)
                os.fsync(handle)
            finally:
                os.close(handle)
        return True

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """Yield the file, open and locked, or None if it is gone."""
        try:
            handle = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            yield None
            return
        try:
            _lock(handle)
            # Another driver may have removed the file while this one waited for the lock. A file without a name is no
            # lease.
            yield handle if self._is_named(handle) else None
        finally:
            os.close(handle)

    def _is_named(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.path))
        except FileNotFoundError:
            return False


def _lock(handle: int) -> None:
    """Lock an open file. Go on without the lock if there are no locks, or if a suspended process holds it."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    with suppress(OSError):
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return
            time.sleep(0.005)
