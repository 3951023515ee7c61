"""Files: which ones a path, a glob or a URI names, and their bytes.

A glob is followed only so far: `/**` is a whole disk. Planning reads parts of an object in storage, and training a copy
on this disk. A copy lies in the user's cache, under a hash of the object's name, size and version, so one that is
written anew is another. The cache is bounded: copies that were not used for longest make room.
"""

from __future__ import annotations

import fcntl
import fnmatch
import glob
import gzip
import hashlib
import os
import stat
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from hpxfer.errors import HpxferError, cut, shown
from hpxfer.host import Uri, cache_folder, is_uri, open_regular, parse_root, reason, require_reachable
from hpxfer.storage import Bucket, Stamp, storage_errors

# A plan looks at each file, and so many take about a second. So many names are read from the disk in about one.
MAX_FILES = 20_000
MAX_NAMES = 100_000
MAX_PATTERN = 4096  # characters, as for the paths of the system
MAX_BYTES = 16 * 2**30  # of one file that is held in memory
# The bound of the cache, and what it is where the user sets none.
VARIABLE, DEFAULT_GB = "HPXFER_DATA_CACHE_GB", 200.0
_FIX = "check the network and the credentials, or copy the data to this machine"


def matching_files(pattern: str, key: str = "data.source") -> list[str]:
    """Return the file at the literal path `pattern`, or the files that it matches as a glob, sorted. `**` recurses.

    The last part of a URI may be a glob. Raise HpxferError if nothing but folders matches, or too much, or if nothing
    is found where a folder is closed to this user.
    """
    if "\0" in pattern or len(pattern) > MAX_PATTERN:
        rule = f"must be a path of at most {MAX_PATTERN} characters, none of them zero"
        raise HpxferError(f"{key}: {rule}, got {shown(pattern)} of {len(pattern)}")
    if is_uri(pattern):
        bucket, name = _located(pattern)
        with storage_errors(pattern, "cannot be listed", _FIX):
            found = bucket.stamps()
        return sorted(str(bucket.uri / each) for each in found if each == name or fnmatch.fnmatchcase(each, name))
    walk = _Walk(pattern, key)
    matches = [pattern] if os.path.lexists(pattern) else sorted(walk.matches())
    if not matches:
        require_reachable(pattern, walk.closed)
    files = [path for path in matches if not os.path.isdir(path)]
    if matches and not files:
        raise HpxferError(f"{key}: must name files, got the folder {cut(matches[0], 300)}")
    if len(files) > MAX_FILES:
        raise HpxferError(f"{key}: must match at most {MAX_FILES} files, got {len(files)}, with {cut(pattern, 300)}")
    return files


class _Walk:
    """What a glob matches, as `glob.glob` with `recursive=True`, which cannot be stopped: it walks a whole disk."""

    def __init__(self, pattern: str, key: str) -> None:
        self.pattern, self.key, self.num_names = pattern, key, 0
        self.closed: OSError | None = None  # what the system says of a folder that cannot be read

    def matches(self) -> set[str]:
        found = {"/" if self.pattern.startswith("/") else ""}
        parts = [part for part in self.pattern.split("/") if part]
        for number, part in enumerate(parts):
            is_last = number == len(parts) - 1
            if part == "**" and parts[number + 1 : number + 2] == ["**"]:
                continue  # two say no more than one
            found = {match for path in found for match in self._below(path, part, is_last)}
        return found - {""}

    def _below(self, path: str, part: str, is_last: bool) -> Iterator[str]:
        if not glob.has_magic(part):
            match = os.path.join(path, part)
            if os.path.lexists(match) if is_last else os.path.isdir(match):
                yield match
        elif part != "**":
            for name, is_folder in self._entries(path):
                is_hidden = name.startswith(".") and not part.startswith(".")
                if (is_last or is_folder) and not is_hidden and fnmatch.fnmatch(name, part):
                    yield os.path.join(path, name)
        else:
            folders = [path]
            while folders:
                yield (folder := folders.pop())
                for name, is_folder in self._entries(folder):
                    if is_folder and not name.startswith("."):
                        folders.append(os.path.join(folder, name))
                    elif is_last and not name.startswith("."):
                        yield os.path.join(folder, name)

    def _entries(self, path: str) -> Iterator[tuple[str, bool]]:
        """Yield (name, whether it is a folder) of what a folder holds: nothing if it cannot be read."""
        try:
            with os.scandir(path or ".") as found:
                for entry in found:
                    self.num_names += 1
                    if self.num_names > MAX_NAMES:
                        rule = f"must be found among at most {MAX_NAMES} names, got more"
                        raise HpxferError(f"{self.key}: {rule}, with {cut(self.pattern, 300)}")
                    yield entry.name, entry.is_dir()
        except OSError as error:
            self.closed = error


def file_size(path: str) -> int:
    """Return the bytes of a regular file, or of one in storage. Raise HpxferError for anything else."""
    if is_uri(path):
        return _stamp(path).size
    try:
        found = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(found.st_mode):
        raise HpxferError(f"{path}: must be a regular file, which can be read twice")
    return found.st_size


def read_bytes(path: str, offset: int, num_bytes: int) -> bytes:
    """Return up to `num_bytes` bytes of a file from `offset` on. Raise HpxferError if it cannot be read."""
    if is_uri(path):
        bucket, name = _located(path)
        with storage_errors(path, "cannot be read", _FIX):
            return bucket.part(name, offset, num_bytes)
    try:
        with open_regular(path) as file:
            file.seek(offset)
            return file.read(num_bytes)
    except OSError as error:
        raise _unreadable(path, error) from None


def unpacked(path: str, num_bytes: int) -> bytes:
    """Return up to `num_bytes` bytes of a file, unpacked if its name ends in .gz."""
    if num_bytes > MAX_BYTES:
        raise HpxferError(f"{path}: must hold at most {MAX_BYTES} bytes, got {num_bytes}")
    if not path.endswith(".gz"):
        return read_bytes(path, 0, num_bytes)
    try:
        with open_regular(path) as file, gzip.GzipFile(fileobj=file) as content:
            return content.read(num_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise HpxferError(f"{path}: must be whole and packed by gzip, got {error}") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError) -> HpxferError:
    return HpxferError(f"{path}: cannot be read: {reason(error)}")


def local_copy(uri: str) -> Path:
    """Return the copy of an object in the cache, which is fetched first if it is not there."""
    (bucket, name), stamp = _located(uri), _stamp(uri)
    folder = cache_folder("data")
    folder.mkdir(parents=True, exist_ok=True)
    key = hashlib.blake2b(f"{uri} {stamp.size} {stamp.tag}".encode(), digest_size=12).hexdigest()
    copy = folder / f"{key}-{name}"
    # Workers of one machine wait for the one that fetches.
    with open(folder / f"{key}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not copy.exists():
            _make_room(folder, stamp.size, uri)
            with storage_errors(uri, "cannot be fetched", _FIX):
                bucket.fetch(name, copy)
        # The clock of the system's own time stamps is coarse: two uses within milliseconds would count as one.
        now = time.time_ns()
        os.utime(copy, ns=(now, now))
    return copy


def _make_room(folder: Path, num_bytes: int, uri: str) -> None:
    """Remove the copies that were not used for longest, until a new one fits into the bound."""
    text = os.environ.get(VARIABLE, str(DEFAULT_GB))
    try:
        most = float(text) * 1e9
    except ValueError:
        most = -1.0
    if not most > 0:
        raise HpxferError(f"{VARIABLE}: must be a number of gigabytes above 0, got {shown(text)}")
    if num_bytes > most:
        rule = f"must fit into the cache of {most / 1e9:g} GB at {folder}"
        raise HpxferError(f"{uri}: {rule}, got {num_bytes / 1e9:.3g} GB; see {VARIABLE}")
    there = sorted((path.stat().st_mtime, path) for path in folder.iterdir() if path.suffix not in (".lock", ".tmp"))
    size = sum(path.stat().st_size for _, path in there)
    for _, path in there:
        if size + num_bytes <= most:
            return
        size -= path.stat().st_size
        path.unlink(missing_ok=True)  # a process that has it mapped keeps it


def _stamp(uri: str) -> Stamp:
    bucket, name = _located(uri)
    with storage_errors(uri, "cannot be read", _FIX):
        return bucket.stamp(name)


def _located(uri: str) -> tuple[Bucket, str]:
    """Return the folder of an object in storage, and the name of the object."""
    try:
        found = parse_root(uri)
    except HpxferError as error:
        raise HpxferError(f"data.source: {error}") from None
    if not isinstance(found, Uri) or not found.path:
        raise HpxferError(f"data.source: must name files in a bucket, e.g. s3://bucket/shards/*.bin, got {shown(uri)}")
    return _bucket(replace(found, path=found.path[:-1])), found.name


@lru_cache(maxsize=8)
def _bucket(uri: Uri) -> Bucket:
    return Bucket(uri, patient=True)
