"""makers: samples without end, each a function of its stream and its number.

Each seed reads a stream of its own, and validation another one. What was made stays in a bounded cache of the process,
so the stacks that a worker trains one after the other share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hpxfer.data.made import shapes, teacher
from hpxfer.data.samples import Facts, Rows
from hpxfer.data.sources import SampleSource
from hpxfer.errors import nearest, shown

# Samples are made and cached in blocks of about this size: 256 MiB in all, which is a million images of builtin:shapes.
BLOCK_BYTES, MAX_BLOCKS = 2**18, 2**10


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
        return replace(self, classes=classes)

    def digest(self) -> str:
        return hashlib.blake2b(f"builtin {self.maker.name}".encode(), digest_size=16).hexdigest()

    def train(self, seed: int, begin: int, end: int, num_kept: int) -> Rows:
        return self._rows("train" if self.maker.cycle else f"train {seed}", begin, end)

    def held_out(self, begin: int, end: int) -> Rows:
        return self._rows("validation", begin, end)

    def _rows(self, stream: str, begin: int, end: int) -> Rows:
        classes = self.classes or tuple(range(self.facts.num_classes))
        if self.maker.cycle:
            rows = np.arange(begin, end) % self.maker.cycle
            x, y = _block(self.maker, classes, stream, 0, self.maker.cycle)
            return x[rows], y[rows]
        size = max(1, BLOCK_BYTES // (self.facts.num_inputs * (1 if self.facts.is_pixels else 4)))
        first, last = begin // size, -(-end // size)
        blocks = [_block(self.maker, classes, stream, number, size) for number in range(first, last)]
        here = slice(begin - first * size, end - first * size)
        return np.concatenate([x for x, _ in blocks])[here], np.concatenate([y for _, y in blocks])[here]


@lru_cache(maxsize=MAX_BLOCKS)
def _block(maker: Maker, classes: tuple[int, ...], stream: str, number: int, size: int) -> Rows:
    """Return a block of a stream, read-only because everyone who reads it shares it."""
    found = maker.draw(stream, number * size, (number + 1) * size, classes)
    for array in found:
        array.flags.writeable = False
    return found


MAKERS = {
    "shapes": Maker(
        name=f"shapes {shapes.VERSION}",
        facts=Facts(shape=(shapes.SIDE, shapes.SIDE), is_pixels=True, num_classes=shapes.CLASSES),
        draw=shapes.draw,
        normalization=(shapes.MEAN, shapes.STD),
    ),
    "teacher/polynomial": Maker(
        name=f"teacher/polynomial {teacher.VERSION}",
        facts=Facts(shape=(teacher.POLYNOMIAL_INPUTS,), is_pixels=False, num_targets=1),
        draw=teacher.polynomial,
    ),
    "teacher/network": Maker(
        name=f"teacher/network {teacher.VERSION}",
        facts=Facts(shape=(teacher.NETWORK_INPUTS,), is_pixels=False, num_classes=teacher.CLASSES),
        draw=teacher.network,
    ),
    "teacher/few": Maker(
        name=f"teacher/few {teacher.VERSION}",
        facts=Facts(shape=(teacher.FEW_INPUTS,), is_pixels=False, num_targets=1),
        draw=teacher.few,
        cycle=teacher.FEW,
    ),
}


def _problem(name: str) -> str | None:
    return None if name in MAKERS else f"unknown built-in samples {shown(name)}; {nearest(name, MAKERS)}"


BUILTIN = SampleSource(
    name="builtin",
    usage=" or ".join(f"builtin:{name}" for name in MAKERS),
    is_path=False,
    problem=_problem,
    open=lambda name: EndlessSamples(maker=MAKERS[name]),
    mismatch_fix="install the version of hpxfer that the sweep was made with",
)
