"""Remote: the files of one results folder in object storage. A file there is whole or absent, as in a local folder.

pyarrow talks to S3 and GCS itself. Other schemes go through fsspec, if the package for the scheme is installed. The
files lie side by side, without folders.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from hpxfer.errors import HpxferError
from hpxfer.storage.uri import Uri

T = TypeVar("T")

# How long to wait for a network that is down, and the longest pause between two tries.
RETRY_S = 300.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_CHUNK = 2**23
# Without it, Google's client would try silently for a quarter of an hour.
_GCS_RETRY_S = "30"
# Errors that do not go away by waiting, in the words of the clouds.
_PERMANENT = (
    "ACCESS_DENIED",
    "NO_SUCH_BUCKET",
    "INVALID_ACCESS_KEY_ID",
    "SIGNATURE_DOES_NOT_MATCH",
    "INVALID_CLIENT_TOKEN_ID",
    "UNRECOGNIZED_CLIENT",
    "EXPIRED_TOKEN",
    "MISSING_AUTHENTICATION_TOKEN",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "Forbidden",
    "HTTP status 400",
    "HTTP status 403",
)


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """What a listing says about a file."""

    size: int
    mtime_ns: int | None


class Remote:
    """The files below a URI. Methods raise OSError if the storage refuses; `waiting` turns that into a message."""

    def __init__(self, uri: Uri) -> None:
        self.uri = uri
        self._fs = _file_system(uri)

    def list(self) -> dict[str, Stamp]:
        """Return name -> stamp of every file. Raise FileNotFoundError if there is no such bucket."""
        selector = fs.FileSelector(self.uri.key, allow_not_found=True)
        found = {info.base_name: _stamp(info) for info in self._fs.get_file_info(selector) if info.is_file}
        if not found and self._fs.get_file_info(self.uri.host).type is fs.FileType.NotFound and self._has_buckets:
            raise FileNotFoundError(f"there is no bucket {self.uri.host}, or these credentials do not see it")
        return found

    def stamps(self, names: Sequence[str]) -> dict[str, Stamp]:
        """Return name -> stamp of those of the files that exist."""
        infos = self._fs.get_file_info([self._key(name) for name in names]) if names else []
        return {name: _stamp(info) for name, info in zip(names, infos, strict=True) if info.is_file}

    def probe(self) -> None:
        """Raise OSError unless the storage answers."""
        self._fs.get_file_info(self.uri.key)

    def open(self, name: str) -> Any:
        """Return a file of which parts can be read."""
        return self._fs.open_input_file(self._key(name))

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file from the storage to this disk."""
        temporary = target.with_name(f"{target.name}.{secrets.token_hex(4)}.tmp")
        try:
            with self._fs.open_input_stream(self._key(name)) as source, open(temporary, "wb") as file:
                shutil.copyfileobj(source, file, _CHUNK)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)

    def put(self, source: Path, name: str, *, replace: bool) -> None:
        """Copy a file to the storage. With `replace`, a file of the same name stays until the new one is whole."""
        with pa.memory_map(os.fsencode(source)) as file:
            content = file.read_buffer()
            self._put(content, name, replace=replace)

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, or None if it is absent."""
        try:
            with self._fs.open_input_stream(self._key(name)) as file:
                content: bytes = file.read()
                return content
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Write a small file in one piece."""
        self._put(pa.py_buffer(content), name, replace=False)

    def delete(self, name: str) -> None:
        """Remove a file if it exists."""
        with suppress(FileNotFoundError):
            self._fs.delete_file(self._key(name))

    def waiting(self, action: Callable[[], T], what: str, fix: str, *, retry_s: float | None = None) -> T:
        """Return what `action` returns. Try again while the network is down, and raise HpxferError in the end."""
        deadline = time.monotonic() + (RETRY_S if retry_s is None else retry_s)
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return action()
            except (OSError, pa.ArrowException) as error:
                if _is_permanent(error) or time.monotonic() + pause > deadline:
                    raise HpxferError(f"{self.uri}: {what}: {_reason(error)}; {fix}") from None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    @property
    def region(self) -> str | None:
        """The region of an S3 bucket."""
        return self._fs.region if isinstance(self._fs, fs.S3FileSystem) else None

    @property
    def _has_buckets(self) -> bool:
        return self.uri.scheme in ("s3", "gs")

    def _key(self, name: str) -> str:
        return (self.uri / name).key

    def _put(self, content: Any, name: str, *, replace: bool) -> None:
        if not self._has_buckets:
            self._fs.create_dir(self.uri.key, recursive=True)
        # A stream that breaks off would leave part of a file, so write under another name; a copy within the storage is
        # whole.
        key = self._key(f"{name}.{secrets.token_hex(4)}.tmp" if replace else name)
        with self._fs.open_output_stream(key) as file:
            file.write(content)
        found = self._fs.get_file_info(key)
        if found.size != len(content):
            raise OSError(f"{name}: {found.size} of {len(content)} bytes arrived")
        if replace:
            self._move(key, self._key(name))

    def _move(self, old: str, new: str) -> None:
        self._fs.move(old, new)


def _file_system(uri: Uri) -> fs.FileSystem:
    """Return the file system of a URI. Raise HpxferError if it cannot be reached."""
    options = dict(uri.options)
    if uri.scheme == "s3":
        options["allow_delayed_open"] = "true"  # a small file takes one request, and is never left half written
    elif uri.scheme == "gs":
        options.setdefault("retry_limit_seconds", _GCS_RETRY_S)
    else:
        return _through_fsspec(uri)
    query = "&".join(f"{name}={value}" for name, value in options.items())
    try:
        found, _ = fs.FileSystem.from_uri(f"{uri.scheme}://{uri.host}?{query}")
    except (OSError, pa.ArrowException, ValueError) as error:
        raise HpxferError(f"{uri}: cannot be reached: {_reason(error)}; {FIX}") from None
    return found


FIX = "check its name, the network and the credentials in the environment"


def _through_fsspec(uri: Uri) -> fs.FileSystem:
    import fsspec

    try:
        return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(uri.scheme)))
    except ValueError:
        raise HpxferError(
            f"{uri}: must be of a known scheme, got {uri.scheme}://; s3:// and gs:// are built in, others come with "
            f"packages for fsspec"
        ) from None
    except ImportError as error:
        raise HpxferError(f"{uri}: needs a package that is not installed: {error}") from None
    except Exception as error:  # whatever the package raises if its own settings are missing
        raise HpxferError(f"{uri}: cannot be reached: {type(error).__name__}: {_reason(error)}; {FIX}") from None


def _stamp(info: fs.FileInfo) -> Stamp:
    return Stamp(size=info.size, mtime_ns=info.mtime_ns)


def _is_permanent(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, FileNotFoundError | PermissionError) or any(cause in text for cause in _PERMANENT)


def _reason(error: Exception) -> str:
    """Return the first line of an error, without the parts that only the cloud provider can use."""
    text = str(error).strip().partition("\n")[0].partition(" (Request ID")[0].partition("; Details:")[0]
    return text.rstrip(".") or type(error).__name__
