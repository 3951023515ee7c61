"""Dataset: the parts of a data set, such as files, and how their tokens join into one index space."""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.sources.remote import is_uri, local_copy, remote_bytes, remote_size
from hpxfer.errors import HpxferError
from hpxfer.host.files import open_regular


class Part(Protocol):
    """One part of a data set, usually a file."""

    @property
    def path(self) -> str:
        """The name of the part in messages."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def header(self) -> bytes:
        """What the digest covers beside the tokens."""

    def read(self, low: int, high: int) -> NDArray[Any]:
        """Return tokens `low` to `high` of the part, unsigned [high - low]."""


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One file: `header`, then `num_tokens` tokens of `dtype`."""

    path: str
    num_tokens: int
    dtype: str
    header: bytes = b""

    def read(self, low: int, high: int) -> NDArray[Any]:
        """Return tokens `low` to `high`, unsigned [high - low]. Reads no other bytes of the file."""
        size = np.dtype(self.dtype).itemsize
        data = read_bytes(self.path, len(self.header) + low * size, (high - low) * size)
        if len(data) < (high - low) * size:
            raise HpxferError(
                f"{self.path}: the file became shorter while it was read; start again when it is complete"
            )
        return np.frombuffer(data, self.dtype)

    def mapped(self) -> NDArray[Any]:
        """Return all tokens of the file, memory-mapped."""
        path = local_copy(self.path) if is_uri(self.path) else self.path
        whole = np.memmap(path, self.dtype, mode="r")  # with its header: a map of no bytes is an error
        return whole[len(self.header) // whole.itemsize :]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The parts of a data set, in order."""

    format: str
    """The format of the parts, e.g. `text`. It is part of the digest, so never change it."""
    parts: tuple[Part, ...]
    token_bytes: int = 1
    """The bytes per token as stored. They decide which tokens of a large data set the digest covers."""

    @property
    def num_tokens(self) -> int:
        return self.starts[-1]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each part starts in the index space, and finally where the space ends."""
        return cumulative(part.num_tokens for part in self.parts)


def cumulative(counts: Iterable[int]) -> tuple[int, ...]:
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


def check_ids(ids: NDArray[Any], vocab_size: int, path: str, position: int) -> None:
    """Raise HpxferError unless all `ids`, which start at token `position` of a part, are in the vocabulary."""
    if ids.max(initial=0) < vocab_size:
        return
    at = int(np.argmax(ids >= vocab_size))
    bits = 8 * ids.itemsize
    negative = int(ids[at]) - 2**bits
    # Ids of 16 bits may well be large.
    if negative >= (-(2 ** (bits - 1)) if bits > 16 else -128):
        raise HpxferError(
            f"{path}: token {position + at}: the id must be at least 0 and below the vocabulary of {vocab_size}, got "
            f"{negative}{'' if bits > 16 else f', or {int(ids[at])} if it has no sign'}; write the data again with the "
            "ids of its tokenizer"
        )
    raise HpxferError(
        f"{path}: token {position + at}: the id must be below the vocabulary of {vocab_size}, got {int(ids[at])}; "
        f"set data.vocab_size to the size of the vocabulary that the data was written with"
    )


def file_size(path: str) -> int:
    """Return the bytes of a regular file, or of one in storage. Raise HpxferError for anything else."""
    if is_uri(path):
        return remote_size(path)
    try:
        found = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(found.st_mode):
        raise HpxferError(f"{path}: must be a regular file, which can be read twice; store the data in one")
    return found.st_size


def read_bytes(path: str, offset: int, num_bytes: int) -> bytes:
    """Return up to `num_bytes` bytes of a file from `offset` on. Raise HpxferError if it cannot be read."""
    if is_uri(path):
        return remote_bytes(path, offset, num_bytes)
    try:
        with open_regular(path) as file:
            file.seek(offset)
            return file.read(num_bytes)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError) -> HpxferError:
    return HpxferError(f"{path}: cannot be read: {error.strerror}")
