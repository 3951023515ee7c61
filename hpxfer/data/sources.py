"""Sources: which files a data set is made of, and how their tokens join into one index space."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
import sysconfig
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.tokens import HEADER_BYTES, check_header
from hpxfer.errors import HpxferError

Kind = Literal["text", "tokens"]

# Tests are long and repeat themselves; the packages are not the library.
_SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
# Written for one build or one machine: with them, equal Pythons on two machines would have different data.
_LOCAL_FOLDER, _LOCAL_FILES = "config-", ("_sysconfigdata", "sitecustomize", "usercustomize")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One file of a data set: `header`, then `num_tokens` tokens."""

    path: str
    num_tokens: int
    header: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The files of a data set, in order. A token of text is a byte."""

    name: str  # as the sweep file gives it
    kind: Kind
    pieces: tuple[Piece, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("u1" if self.kind == "text" else "<u2")

    @property
    def num_tokens(self) -> int:
        return self.starts[-1]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each piece starts in the index space, and at last where the space ends."""
        return cumulative(piece.num_tokens for piece in self.pieces)


def cumulative(counts: Iterator[int]) -> tuple[int, ...]:
    """Return 0 and the running sums."""
    return tuple(accumulate(counts, initial=0))


def spans(starts: Sequence[int], begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (part, low, high): the ranges inside the parts that make up tokens `begin` to `end` of the whole."""
    assert 0 <= begin <= end <= starts[-1], f"tokens {begin} to {end} of {starts[-1]}"
    part = bisect_right(starts, begin) - 1
    while begin < end:
        high = min(end, starts[part + 1])
        if begin < high:
            yield part, begin - starts[part], high - starts[part]
        begin, part = high, part + 1


def find(name: str) -> Source | None:
    """Return the data set that a sweep names, or None if no file of it is on this machine.

    `name` is `builtin:stdlib`, `text:PATH-or-glob` or `tokens:GLOB`. Raises HpxferError on files that are there and
    of no use: folders, unreadable or malformed ones, no token in all of them.
    """
    kind, _, path = name.partition(":")
    paths = stdlib_files(sysconfig.get_path("stdlib")) if kind == "builtin" else matching_files(path)
    if not paths:
        return None
    piece = _shard if kind == "tokens" else _text
    source = Source(name=name, kind="tokens" if kind == "tokens" else "text", pieces=tuple(map(piece, paths)))
    if not source.num_tokens:
        raise HpxferError(f"data.source: must hold tokens, got {len(paths)} empty file(s) at {name}; name other files")
    return source


def stdlib_files(root: str) -> list[str]:
    """Return the Python files of a standard library, without tests and what belongs to one build or machine.

    They are ordered by a hash of the path below `root`: the tail, which is held out, is a sample of all modules.
    """
    found = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [one for one in subfolders if one not in _SKIPPED_FOLDERS and not one.startswith(_LOCAL_FOLDER)]
        found += [Path(folder, one) for one in files if one.endswith(".py") and not one.startswith(_LOCAL_FILES)]

    def key(path: Path) -> bytes:
        return hashlib.blake2b(path.relative_to(root).as_posix().encode(), digest_size=16).digest()

    return [str(path) for path in sorted(found, key=key)]


def matching_files(pattern: str) -> list[str]:
    """Return the file at the literal path `pattern`, else the files that it matches as a glob, sorted; `**` recurses.

    Folders among the matches are passed over; raises HpxferError if there is nothing else.
    """
    matches = [pattern] if os.path.lexists(pattern) else sorted(set(glob.glob(pattern, recursive=True)))
    files = [one for one in matches if not os.path.isdir(one)]
    if matches and not files:
        inside = os.path.join(matches[0], "**", "*")
        raise HpxferError(f"data.source: must name files, got the folder {matches[0]}; for all below it: {inside}")
    return files


def read_piece(piece: Piece, dtype: np.dtype[Any], low: int, high: int) -> NDArray[Any]:
    """Return tokens `low` to `high` of one file as [high - low] of `dtype`, reading no more than those."""
    data = _read(piece.path, len(piece.header) + low * dtype.itemsize, (high - low) * dtype.itemsize)
    if len(data) < (high - low) * dtype.itemsize:
        raise HpxferError(f"{piece.path}: the file became shorter while it was read; start again once it is whole")
    return np.frombuffer(data, dtype)


def _text(path: str) -> Piece:
    return Piece(path=path, num_tokens=_size(path))


def _shard(path: str) -> Piece:
    num_bytes = _size(path)
    header = _read(path, 0, HEADER_BYTES)
    return Piece(path=path, num_tokens=check_header(header, num_bytes, path), header=header)


def _size(path: str) -> int:
    try:
        found = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(found.st_mode):
        raise HpxferError(f"{path}: must be a regular file, which can be read twice; store the data in one")
    return found.st_size


def _read(path: str, offset: int, num_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(num_bytes)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError) -> HpxferError:
    return HpxferError(f"{path}: cannot be read: {error.strerror}")
