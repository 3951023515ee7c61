"""EndlessSamples: samples that are made on the spot, each a function of its stream and its number, and their words.

Each seed reads a stream of its own, and validation another one. What was made stays in a bounded cache of the process,
so the stacks that a worker trains one after the other share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.samples.facts import Facts, Rows
from hpxfer.data.windows import mix

# Samples are made and cached in blocks of about this size: 256 MiB in all, which is a million images of builtin:shapes.
BLOCK_BYTES, MAX_BLOCKS = 2**18, 2**10
_VALIDATION = "validation"


@dataclass(frozen=True, kw_only=True)
class Maker:
    """How the samples of one name are made."""

    name: str
    """With its version, e.g. `shapes 1`. It is the identity of the samples."""
    facts: Facts
    draw: Callable[[str, int, int, tuple[int, ...]], Rows]
    """(stream, begin, end, classes) -> samples of these classes, numbered in this order. Of real targets, classes is
    empty."""
    normalization: tuple[float, float] | None = None
    cycle: int | None = None
    """The samples after which a stream begins again. Every seed then reads the same ones in the same order."""


@dataclass(frozen=True, kw_only=True)
class EndlessSamples:
    """Samples without end, of the classes in `classes`, or of all where that is empty."""

    maker: Maker
    classes: tuple[int, ...] = ()
    num_train: None = None
    num_test: None = None

    @property
    def facts(self) -> Facts:
        found = self.maker.facts
        return replace(found, num_classes=len(self.classes)) if self.classes else found

    @property
    def normalization(self) -> tuple[float, float] | None:
        return self.maker.normalization

    def only(self, classes: tuple[int, ...]) -> EndlessSamples:
        return EndlessSamples(maker=self.maker, classes=classes)

    def digest(self) -> str:
        return hashlib.blake2b(f"builtin {self.maker.name}".encode(), digest_size=16).hexdigest()

    def train(self, seed: int, begin: int, end: int, num_kept: int) -> Rows:
        return self._rows("train" if self.maker.cycle else f"train {seed}", begin, end)

    def held_out(self, begin: int, end: int) -> Rows:
        return self._rows(_VALIDATION, begin, end)

    def _rows(self, stream: str, begin: int, end: int) -> Rows:
        size = max(1, BLOCK_BYTES // (self.facts.num_inputs * (1 if self.facts.is_pixels else 4)))
        classes = self.classes or tuple(range(self.facts.num_classes))
        if self.maker.cycle:
            x, y = _block(self.maker, classes, stream, 0, self.maker.cycle)
            rows = np.arange(begin, end) % self.maker.cycle
            return x[rows], y[rows]
        inputs, targets = [], []
        for number in range(begin // size, -(-end // size)):
            block = _block(self.maker, classes, stream, number, size)
            here = slice(max(begin - number * size, 0), end - number * size)
            inputs.append(block[0][here])
            targets.append(block[1][here])
        return np.concatenate(inputs), np.concatenate(targets)


@lru_cache(maxsize=MAX_BLOCKS)
def _block(maker: Maker, classes: tuple[int, ...], stream: str, number: int, size: int) -> Rows:
    """Return a block of a stream, read-only because everyone who reads it shares it."""
    found = maker.draw(stream, number * size, (number + 1) * size, classes)
    for array in found:
        _lock(array)
    return found


def _lock(array: NDArray[Any]) -> None:
    array.flags.writeable = False


# Random words for samples that are made on the spot: any part of a stream by itself, with the same bits everywhere.
#
# The words are those of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
# 2014): word n of a stream is mix(start + (n + 1) * GAMMA) modulo 2^64. The hash of the stream's name is the start.

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def words(stream: str, begin: int, end: int, per_sample: int) -> NDArray[np.uint64]:
    """Return the words of samples `begin` to `end` of a stream, uint64 [end - begin, per_sample]."""
    digest = hashlib.blake2b(stream.encode(), digest_size=8).digest()
    start = np.uint64(int.from_bytes(digest, "little"))
    counter = np.arange(begin * per_sample + 1, end * per_sample + 1, dtype=np.uint64)
    return mix(counter * _GAMMA + start).reshape(end - begin, per_sample)


def parts(found: NDArray[np.uint64], dtype: str) -> NDArray[Any]:
    """Return the words [N, W] cut into smaller numbers, the lowest bits first: `<u1` gives [N, 8 W]."""
    return np.ascontiguousarray(found, dtype="<u8").view(dtype)
