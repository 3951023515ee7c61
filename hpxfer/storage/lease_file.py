"""LeaseStorage: the small object that holds a lease, as a file of a results folder or an object in a bucket."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hpxfer.errors import HpxferError, first_line
from hpxfer.host.files import half_written, locked, path_problem, read_bytes, reason
from hpxfer.storage.remote import Remote

if TYPE_CHECKING:
    from obstore.store import ObjectStore


# LeaseObject: the lease as an object in a bucket, see `hpxfer.storage.lease_file.LeaseStorage`.
#
# S3 and GCS write an object on a condition: that it is absent, or that it has not changed since it was read. Of two
# drivers that write at once, one is refused. obstore sends these requests, which pyarrow cannot.

_RETRY_S = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeaseObject:
    """An object of storage that writes on a condition. Other storage gets plain writes, and a warning."""

    remote: Remote

    def read(self) -> bytes | None:
        """See `LeaseStorage.read`."""
        found = self._found()
        return None if found is None else found[0]

    def create(self, content: bytes) -> bool:
        """See `LeaseStorage.create`."""
        if self.read() is not None:
            return False
        if self._bucket is None:
            self.remote.write(LEASE_FILE, content)
            return True
        if not self._write(content, "create"):
            return False
        if self._write(content, "create"):  # a store that writes it twice does not know the condition
            _warn(self.remote)
        return True

    def swap(self, old: bytes, new: bytes, *, takeover: bool = False) -> bool:
        """See `LeaseStorage.swap`."""
        found = self._found()
        if found is None or found[0] != old:
            return False
        if self._bucket is None:
            self.remote.write(LEASE_FILE, new)
            return True
        try:
            return self._write(new, found[1])
        except FileNotFoundError:
            return False

    def drop(self, old: bytes) -> None:
        """See `LeaseStorage.drop`."""
        if self.read() == old:
            self.remote.delete(LEASE_FILE)

    def writing(self) -> AbstractContextManager[None]:
        """See `LeaseStorage.writing`. Object storage has no locks."""
        return nullcontext()

    @cached_property
    def _bucket(self) -> ObjectStore | None:
        """The bucket, or None if the storage has no conditional writes that obstore knows."""
        uri, options = self.remote.uri, dict(self.remote.uri.options)
        if uri.scheme not in ("s3", "gs"):
            _warn(self.remote)
            return None
        try:
            from obstore.store import GCSStore, S3Store
        except ImportError:
            raise HpxferError(
                f"{uri}: the lease of results in a bucket needs obstore, which is not installed; "
                "pip install 'hpxfer[s3]'"
            ) from None
        retry: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=_RETRY_S)}
        if uri.scheme == "gs":
            return GCSStore(uri.host, retry_config=retry)
        endpoint = options.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint and "://" not in endpoint:
            endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
        client: Any = {"allow_http": True} if endpoint and endpoint.startswith("http://") else {}
        where: Any = {"endpoint": endpoint} if endpoint else {}
        return S3Store(uri.host, region=self.remote.region, client_options=client, retry_config=retry, **where)

    @property
    def _key(self) -> str:
        return "/".join((*self.remote.uri.path, LEASE_FILE))

    def _found(self) -> tuple[bytes, Any] | None:
        """Return the content, and the condition that it has not changed, or None if the object is absent."""
        if self._bucket is None:
            content = self.remote.read(LEASE_FILE)
            return None if content is None else (content, None)
        import obstore

        with _os_errors():
            try:
                found = obstore.get(self._bucket, self._key)
            except FileNotFoundError:
                return None
            unchanged = {name: found.meta[name] for name in ("e_tag", "version") if found.meta.get(name)}
            return bytes(found.bytes()), unchanged

    def _write(self, content: bytes, condition: Any) -> bool:
        """Write the object on a condition. Return False if the condition does not hold."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        assert self._bucket is not None
        with _os_errors():
            try:
                obstore.put(self._bucket, self._key, content, mode=condition, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True


def _warn(remote: Remote) -> None:
    _log.warning(
        "%s: this storage does not write on a condition, so two drivers that start at the same moment are not kept "
        "apart; start one at a time",
        remote.uri,
    )


@contextmanager
def _os_errors() -> Iterator[None]:
    """Turn the errors of obstore into OSError, with their first line."""
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        raise OSError(first_line(error)) from error


LEASE_FILE = "lease.json"
# How long to wait for the lock of the file. A change takes one write. A process that holds the lock longer was
# suspended, and what it writes later is lost.
LOCK_WAIT_S = 5.0


class NoLocks(OSError):
    """The file system has no locks, or has them no more."""


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

    def writing(self) -> AbstractContextManager[None]:
        """Keep others from taking over as long as the context is open, where the storage can.

        Raise HpxferError if another process was suspended while it did the same.
        """


@dataclass(frozen=True)
class LeaseFile:
    """A file in a results folder.

    Its driver changes it in place, under a lock of its own. So neither a full disk nor a long write of the store, which
    has another lock, keeps the counter from moving. Every content has the same length, so nothing of an older text
    remains. Whoever takes over replaces the file, under the lock of the folder. Without locks nobody takes over, and
    the counter stands still.
    """

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / LEASE_FILE

    def read(self) -> bytes | None:
        """See `LeaseStorage.read`."""
        try:
            return read_bytes(self.path)
        except FileNotFoundError:
            if not self.path.is_symlink():
                return None
            why = "it is a link to nothing"
        except OSError as error:
            if (problem := path_problem(error)) is not None:
                raise HpxferError(problem) from None
            why = reason(error)
        raise HpxferError(f"{self.path}: cannot be read: {why}; remove it if no run is active")

    def create(self, content: bytes) -> bool:
        """See `LeaseStorage.create`."""
        if self.path.exists():
            return False
        temporary = self._temporary(content)
        try:
            return self._rename_if_free(temporary, content)
        finally:
            temporary.unlink(missing_ok=True)

    def swap(self, old: bytes, new: bytes, *, takeover: bool = False) -> bool:
        """See `LeaseStorage.swap`. A takeover waits until the driver's current write has ended."""
        if takeover:
            return self._take_over(old, new)
        with self._opened() as handle:
            if handle is None:
                return False
            _lock(handle)
            if not self._holds(handle, old):
                return False
            os.pwrite(handle, new, 0)
            if len(new) < len(old):
                os.ftruncate(handle, len(new))
            os.fsync(handle)
            # If this process was suspended above, another driver may have taken over meanwhile. It then gave the name
            # to a file of its own, and what was written here is gone with the old file.
            return self._is_named(handle)

    def drop(self, old: bytes) -> None:
        """See `LeaseStorage.drop`. Nobody takes over between the look and the removal."""
        with locked(self.folder, exclusive=True):
            if self.read() == old:
                os.unlink(self.path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """See `LeaseStorage.writing`."""
        with locked(self.folder, exclusive=False):
            yield

    def _take_over(self, old: bytes, new: bytes) -> bool:
        """Give the name to a new file. A change of the old file that is suspended halfway then changes nothing."""
        with locked(self.folder, exclusive=True) as refused, self._opened() as handle:
            if refused is not None:
                raise HpxferError(
                    f"{self.folder}: has no locks ({reason(refused)}), so its lease cannot be taken over without the "
                    f"risk of two drivers; remove {self.path} if no run is active, or choose another folder with "
                    "--results"
                )
            if handle is None:
                return False
            with suppress(BlockingIOError):
                _lock(handle)
            if not self._holds(handle, old):
                return False
            temporary = self._temporary(new)
            try:
                os.replace(temporary, self.path)
            finally:
                temporary.unlink(missing_ok=True)
            return True

    def _temporary(self, content: bytes) -> Path:
        """Return a new file with this content that is on the disk."""
        temporary = half_written(self.path).with_suffix(f".{os.urandom(4).hex()}.tmp")
        try:
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

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
        """Yield the open file, or None if it is gone."""
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        try:
            yield handle
        finally:
            os.close(handle)

    def _holds(self, handle: int, content: bytes) -> bool:
        """Return whether the open file is the lease still, and has this content."""
        return os.pread(handle, len(content) + 1, 0) == content and self._is_named(handle)

    def _is_named(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.path))
        except FileNotFoundError:
            return False


def _lock(handle: int) -> None:
    """Lock an open file.

    Raise BlockingIOError if another process holds the lock, which then was suspended, and NoLocks if there are none.
    """
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        except OSError as error:
            raise NoLocks(error.errno, error.strerror) from None
        time.sleep(0.005)
