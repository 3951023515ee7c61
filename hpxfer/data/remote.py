"""Remote: data on object storage, such as tokens:s3://bucket/shards/*.bin. Planning reads parts, training a local copy.

A copy lies in the user's cache, under a hash of the file's name, size and version. So a file that is written
anew is another one. The cache is bounded: files that were not used for longest make room.
"""

from __future__ import annotations

import fcntl
import fnmatch
import hashlib
import os
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from hpxfer.errors import HpxferError, shown
from hpxfer.host.files import cache_folder
from hpxfer.storage.objects import Bucket, Stamp, storage_errors
from hpxfer.storage.uri import Uri, is_uri, parse_root

# The bound of the cache, and what it is where the user sets none.
VARIABLE, DEFAULT_GB = "HPXFER_DATA_CACHE_GB", 200.0
_FIX = "check the network and the credentials, or copy the data to this machine"


def matching_uris(pattern: str) -> list[str]:
    """Return the URIs that a URI names, whose last part may be a glob, sorted."""
    bucket, name = _located(pattern)
    with storage_errors(pattern, "cannot be listed", _FIX):
        found = bucket.stamps()
    return sorted(str(bucket.uri / each) for each in found if each == name or fnmatch.fnmatchcase(each, name))


def remote_size(uri: str) -> int:
    """Return the bytes of a file. Raise HpxferError if there is none."""
    return _stamp(uri).size


def remote_bytes(uri: str, offset: int, num_bytes: int) -> bytes:
    """Return up to `num_bytes` bytes of a file from `offset` on."""
    bucket, name = _located(uri)
    with storage_errors(uri, "cannot be read", _FIX):
        return bucket.part(name, offset, num_bytes)


def local_copy(uri: str) -> Path:
    """Return the copy of a file in the cache, which is fetched first if it is not there."""
    bucket, name = _located(uri)
    stamp = _stamp(uri)
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
    """Remove the files that were not used for longest, until a new one fits into the bound."""
    most = _bound()
    if num_bytes > most:
        raise HpxferError(
            f"{uri}: must fit into the cache of {most / 1e9:g} GB at {folder}, got {num_bytes / 1e9:.3g} GB; set "
            f"{VARIABLE} to a larger number, or copy the data to this machine"
        )
    there = sorted((path.stat().st_mtime, path) for path in folder.iterdir() if path.suffix not in (".lock", ".tmp"))
    size = sum(path.stat().st_size for _, path in there)
    for _, path in there:
        if size + num_bytes <= most:
            return
        size -= path.stat().st_size
        path.unlink(missing_ok=True)  # a process that has it mapped keeps it


def _bound() -> float:
    """Return the bound of the cache in bytes."""
    text = os.environ.get(VARIABLE, str(DEFAULT_GB))
    try:
        found = float(text) * 1e9
    except ValueError:
        found = -1.0
    if not found > 0:
        raise HpxferError(f"{VARIABLE}: must be a number of gigabytes above 0, got {shown(text)}")
    return found


def _stamp(uri: str) -> Stamp:
    bucket, name = _located(uri)
    with storage_errors(uri, "cannot be read", _FIX):
        return bucket.stamp(name)


def _located(uri: str) -> tuple[Bucket, str]:
    """Return the folder of a file in storage, and the name of the file."""
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


__all__ = ["is_uri", "local_copy", "matching_uris", "remote_bytes", "remote_size"]
