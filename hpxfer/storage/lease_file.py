"""Where a lease lies: one small object that is created if absent, and changed by whoever knows what it says now."""

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
# A change of the lease takes the time of one write. Who keeps it longer was suspended in the middle of one, and gives
# up the lease when it looks again.
_LOCK_WAIT_S = 5.0


class LeaseStorage(Protocol):
    """One small object. All methods raise OSError where the place refuses."""

    def read(self) -> bytes | None:
        """Return what it says, None if it is not there."""

    def create(self, content: bytes) -> bool:
        """Make it, whole, unless it is there; return whether it was made."""

    def swap(self, old: bytes, new: bytes, *, takeover: bool = False) -> bool:
        """Change it from `old` to `new`; return False, changing nothing, if it says something else or is gone."""

    def drop(self, old: bytes) -> None:
        """Remove it if it says `old`."""


@dataclass(frozen=True)
class LeaseFile:
    """A file in a results folder.

    It is changed in place, under a lock of its own: a full disk does not keep the counter from moving, nor does the
    store's lock while much is written. All that is written is of one length, so no tail of an older text is left.
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
            return self._place(temporary, content)
        finally:
            temporary.unlink(missing_ok=True)

    def swap(self, old: bytes, new: bytes, *, takeover: bool = False) -> bool:
        """See `LeaseStorage.swap`. A takeover waits until a write of the store that has begun is over."""
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

    def _place(self, temporary: Path, content: bytes) -> bool:
        """Give the written file its name, unless the name is taken."""
        try:
            os.link(temporary, self.path)
        except FileExistsError:
            return False
        except OSError:
            # A file system without hard links. Here a crash may leave an empty lease, which costs the next run a wait.
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
        """Yield the file, open and locked; None if it is gone."""
        try:
            handle = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            yield None
            return
        try:
            _lock(handle)
            # Another driver may have removed it while this one waited for the lock: no name, no lease.
            yield handle if self._is_named(handle) else None
        finally:
            os.close(handle)

    def _is_named(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.path))
        except FileNotFoundError:
            return False


def _lock(handle: int) -> None:
    """Lock an open file; go on without where there are no locks, or where a stopped process keeps it."""
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
