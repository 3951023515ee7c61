"""StorageFolder: a flat folder of files on this disk, or below a URI. A file in it is whole or absent.

Methods raise OSError if the disk or the storage refuses.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.host.files import half_written, open_regular
from hpxfer.storage.uri import Uri, parse_root

if TYPE_CHECKING:
    from hpxfer.storage.remote import Remote


class LocalFolder:
    """A folder on this disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def where(self) -> str:
        """The path, for people and for other processes."""
        return str(self._folder.resolve())

    def make(self) -> None:
        """Make the folder if it is absent."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def unmake(self) -> None:
        """Remove the folder if it is empty."""
        with suppress(OSError):
            self._folder.rmdir()

    def stamps(self) -> dict[str, Any]:
        """Return name -> a stamp that changes with the file. The mapping is empty if there is no such folder."""
        out = {}
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):  # removed meanwhile
                    state = entry.stat(follow_symlinks=False)
                    out[entry.name] = (state.st_ino, state.st_size, state.st_mtime_ns)
        return out

    def open(self, name: str) -> IO[bytes]:
        """Return a file opened for reading."""
        return open_regular(self._folder / name)

    @contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        """Provide a file on this disk as long as the context is open. The caller must not change it."""
        yield self._folder / name

    def put(self, name: str, write: Callable[[Path], object]) -> None:
        """Replace a file by what `write` writes to the path that it gets."""
        temporary = half_written(self._folder / name)
        try:
            write(temporary)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, self._folder / name)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with suppress(FileNotFoundError):
            (self._folder / name).unlink()


class RemoteFolder:
    """A folder below a URI."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    @property
    def where(self) -> str:
        """The URI."""
        return str(self._remote.uri)

    def make(self) -> None:
        """See `LocalFolder.make`. Object storage has no folders."""

    def unmake(self) -> None:
        """See `LocalFolder.unmake`."""

    def stamps(self) -> Mapping[str, Any]:
        """See `LocalFolder.stamps`."""
        return self._remote.list()

    def open(self, name: str) -> IO[bytes]:
        """See `LocalFolder.open`."""
        file: IO[bytes] = self._remote.open(name)
        return file

    @contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        """See `LocalFolder.local_copy`."""
        with tempfile.TemporaryDirectory(prefix="hpxfer-") as scratch:
            self._remote.fetch(name, Path(scratch) / name)
            yield Path(scratch) / name

    def put(self, name: str, write: Callable[[Path], object]) -> None:
        """See `LocalFolder.put`."""
        with tempfile.TemporaryDirectory(prefix="hpxfer-") as scratch:
            write(Path(scratch) / name)
            self._remote.put(Path(scratch) / name, name, replace=True)

    def remove(self, name: str) -> None:
        """See `LocalFolder.remove`."""
        self._remote.delete(name)


StorageFolder = LocalFolder | RemoteFolder
# Holds a random token. A worker that can read it back sees the driver's folder, and not one of the same name on another
# machine. A driver that starts later writes another token, so that the workers of an earlier one write no more.
MARKER = "driver"


def marked(files: StorageFolder) -> str:
    """Make the folder if it is absent, write a new marker into it, and return the token."""
    token = secrets.token_hex(16)
    files.make()
    files.put(MARKER, lambda path: path.write_bytes(token.encode()))
    return token


def sees(where: str, token: str) -> bool:
    """Return whether this machine sees the folder of the driver that wrote this token last."""
    try:
        with folder_at(where).open(MARKER) as file:
            return file.read() == token.encode()
    except (OSError, HpxferError):
        return False


def folder_at(where: str | Path | Uri) -> StorageFolder:
    """Return the folder on this disk or below a URI. Raise HpxferError if the storage cannot be reached."""
    found = where if isinstance(where, Uri) else parse_root(where)
    if isinstance(found, Path):
        return LocalFolder(found)
    from hpxfer.storage.remote import Remote

    return RemoteFolder(Remote(found))
