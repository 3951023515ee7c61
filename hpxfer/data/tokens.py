"""Tokens: the parts of a data set of token ids, such as files, their digest, and all ids behind one index."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hpxfer.data.files import local_copy, read_bytes
from hpxfer.errors import HpxferError
from hpxfer.host import is_uri

# The digest covers so many blocks of so many bytes.
NUM_BLOCKS, BLOCK_BYTES = 64, 64 * 1024
# `chunks` reads at most so many tokens, 128 MiB of shards: 0.1 s from memory (one core of an AMD EPYC, 2026-11), about
# a second from a slow disk.
MOST_TOKENS, CHUNK_TOKENS = 2**26, 2**18


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
            raise HpxferError(f"{self.path}: the file became shorter while it was read")
        return np.frombuffer(data, self.dtype)

    def mapped(self) -> tuple[NDArray[Any], ...]:
        """Return all tokens of the file, memory-mapped."""
        whole = np.memmap(local_copy(self.path) if is_uri(self.path) else self.path, self.dtype, mode="r")
        return (whole[len(self.header) // whole.itemsize :],)


def counted_file(path: str, head: bytes, num_bytes: int, num_tokens: int, token_bytes: int) -> DataFile:
    """Return a file of `head` and so many tokens. Raise HpxferError if it has another size.

    Ids are read as unsigned: a negative id becomes one beyond every vocabulary.
    """
    expected = len(head) + num_tokens * token_bytes
    if num_bytes != expected:
        rule = f"the {'header' if head else 'index'} counts {num_tokens} tokens, which make a file of {expected} bytes"
        raise HpxferError(f"{path}: {rule}, got {num_bytes}")
    return DataFile(path=path, num_tokens=num_tokens, dtype=f"<u{token_bytes}", header=head)


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

    def read(self, begin: int, end: int, vocab_size: int | None) -> Iterator[NDArray[Any]]:
        """Yield tokens `begin` to `end`, part by part. Raise HpxferError for an id that is not below `vocab_size`."""
        for index, low, high in spans(self.starts, begin, end):
            ids = self.parts[index].read(low, high)
            if vocab_size is not None:
                check_ids(ids, vocab_size, self.parts[index].path, low)
            yield ids

    def digest(self, vocab_size: int | None = None) -> str:
        """Return the digest of the data set, 32 hex digits. It reads at most 4 MiB of tokens.

        The digest is the 16-byte blake2b of these bytes, in this order:
        1. the format (`text` or `tokens`; built-in data is text), a space, the number of files in decimal, a newline;
        2. for each file, its number of tokens in decimal, a newline, and its header: 1024 bytes for a token shard, none
           for text;
        3. all tokens, or 64 blocks of 64 KiB spaced evenly from the first token to the last. They index the tokens of
           all files in order.

        The digest covers the order of the files, not their paths. It does not cover the tokenizer, which is a separate
        part of a trial's identity. If `vocab_size` is given, raise HpxferError for a token read here that is not below
        it.
        """
        state = hashlib.blake2b(digest_size=16)
        state.update(f"{self.format} {len(self.parts)}\n".encode())
        for part in self.parts:
            state.update(f"{part.num_tokens}\n".encode() + part.header)
        for begin, end in spread(self.num_tokens, BLOCK_BYTES // self.token_bytes, NUM_BLOCKS):
            for ids in self.read(begin, end, vocab_size):
                state.update(ids.tobytes())
        return state.hexdigest()

    def chunks(self, vocab_size: int | None) -> Iterator[NDArray[Any]]:
        """Yield the tokens, or those of pieces spread evenly if the data set is large."""
        for begin, end in spread(self.num_tokens, CHUNK_TOKENS, MOST_TOKENS // CHUNK_TOKENS):
            yield from self.read(begin, end, vocab_size)


def cumulative(counts: Iterable[int]) -> tuple[int, ...]:
    """Return 0 and the running sums."""
    return tuple(accumulate(counts, initial=0))


def spread(num_tokens: int, block: int, number: int) -> list[tuple[int, int]]:
    """Return ranges of `block` tokens: all, or `number` spaced evenly, of which the first and the last are the ends."""
    if num_tokens <= number * block:
        return [(begin, min(begin + block, num_tokens)) for begin in range(0, num_tokens, block)]
    starts = (index * (num_tokens - block) // (number - 1) for index in range(number))
    return [(start, start + block) for start in starts]


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
    bits, got = 8 * ids.itemsize, str(ids[at])
    negative, rule = int(got) - 2**bits, f"below the vocabulary of {vocab_size}"
    # Ids of 16 bits may well be large.
    if negative >= (-(2 ** (bits - 1)) if bits > 16 else -128):
        unsigned = "" if bits > 16 else f", or {got} if it has no sign"
        rule, got = f"at least 0 and {rule}", f"{negative}{unsigned}"
    raise HpxferError(f"{path}: token {position + at}: the id must be {rule}, got {got}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """All ids of a data set, in memory or memory-mapped. `parts` are unsigned. `names` are those of the parts."""

    parts: tuple[NDArray[Any], ...]
    names: tuple[str, ...]
    vocab_size: int

    @cached_property
    def starts(self) -> tuple[int, ...]:
        return cumulative(map(len, self.parts))

    @property
    def num_tokens(self) -> int:
        return self.starts[-1]

    def rows(self, begins: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return the `length` tokens from each of `begins` on, int64 [len(begins), length].

        Raise HpxferError if an id is not in the vocabulary.
        """
        out = np.empty((len(begins), length), np.int64)
        starts = np.array(self.starts)
        part_of = np.searchsorted(starts, begins, side="right") - 1
        whole = begins + length <= starts[np.minimum(part_of + 1, len(self.parts))]
        for part in np.unique(part_of[whole]).tolist():
            rows = np.flatnonzero(whole & (part_of == part))
            out[rows] = sliding_window_view(self.parts[part], length)[begins[rows] - self.starts[part]]
        for index in np.flatnonzero(~whole).tolist():
            begin = int(begins[index])
            found = [self.parts[part][low:high] for part, low, high in spans(self.starts, begin, begin + length)]
            out[index] = np.concatenate(found)
        # One check of the whole batch. Only a bad batch is read again, to find the position.
        if out.max(initial=0) >= self.vocab_size:
            for begin in begins.tolist():
                for part, low, high in spans(self.starts, begin, begin + length):
                    check_ids(self.parts[part][low:high], self.vocab_size, self.names[part], low)
        return out
