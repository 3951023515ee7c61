"""Held out: the documents of the validation split, chosen by a hash of their tokens while they stream by.

Validation takes the documents with the smallest hashes, as many as it has room for. So it is spread over the whole
source, and copies of a document are all on its side or all on the other. Which documents those are is known at the end
alone: until then each document that may be among them waits, and one that no longer may goes back to training.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.unsignedinteger]
NO_LIMIT = 2**64


def key_of(ids: Ids) -> int:
    """Return the hash of a document, below 2^64."""
    return int.from_bytes(hashlib.blake2b(ids.tobytes(), digest_size=8).digest(), "little")


class HeldOut:
    """The documents that may be held out. Validation needs `wanted` tokens. Only keys below `limit` may still join."""

    def __init__(self, wanted: int, limit: int = NO_LIMIT) -> None:
        self.wanted, self.limit = wanted, limit if wanted else 0
        self.size = 0
        self._documents: dict[int, Ids] = {}  # by the order in which they came
        self._groups: dict[int, list[int]] = {}  # key -> documents of the same tokens
        self._keys: list[int] = []  # a heap of the keys, the largest first

    def takes(self, ids: Ids, key: int) -> bool:
        """Whether a document may be one of validation's."""
        return key < self.limit and len(ids) <= self.wanted

    def add(self, ids: Ids, key: int) -> Iterator[Ids]:
        """Add a document, and yield those that go back to training."""
        number = next(reversed(self._documents), -1) + 1
        self._documents[number] = ids
        if key not in self._groups:
            heapq.heappush(self._keys, -key)
        self._groups.setdefault(key, []).append(number)
        self.size += len(ids)
        while self.size - self._num_last() >= self.wanted:
            yield from self._leave()

    def surplus(self) -> Iterator[Ids]:
        """Yield the documents that go back to training at the end, so that no more is held out than is wanted."""
        while self.size > self.wanted:
            yield from self._leave()

    def documents(self) -> list[Ids]:
        """Return what is held out, in the order of the source."""
        return list(self._documents.values())

    def _num_last(self) -> int:
        """Return the tokens of the documents with the largest key."""
        return sum(len(self._documents[number]) for number in self._groups[-self._keys[0]])

    def _leave(self) -> Iterator[Ids]:
        """Yield the documents with the largest key, which are no longer held out."""
        key = -heapq.heappop(self._keys)
        self.limit = key
        for number in self._groups.pop(key):
            ids = self._documents.pop(number)
            self.size -= len(ids)
            yield ids
