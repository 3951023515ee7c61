"""StoredSamples: the samples of files. All of them are held in memory, as bytes or as float32."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.samples.facts import Facts, Rows
from hpxfer.data.windows import shuffled
from hpxfer.errors import HpxferError

# The order from which held-out samples are taken. Files, such as image folders, often hold one class after the other.
# No trial of a sweep uses this seed.
HELD_OUT_SEED = 2**61


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Some samples: inputs [N, D] uint8 or float32, targets int64 [N] or float32 [N, T]. `name` is for messages."""

    name: str
    inputs: NDArray[Any]
    targets: NDArray[Any]
    first: int = 0
    """The label that a file gives class 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Splits:
    train: Split
    test: Split | None = None


@dataclass(frozen=True, kw_only=True)
class Format:
    """How the files of one format are read. Files are in an order that the format knows."""

    facts: Callable[[tuple[str, ...]], Facts]
    """Read little of the files."""
    read: Callable[[tuple[str, ...]], Splits]


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleFiles:
    """The files of a source. They are read when their samples are first needed, and then stay in memory."""

    facts: Facts
    load: Callable[[], Splits]

    @cached_property
    def splits(self) -> Splits:
        return self.load()

    @cached_property
    def digest(self) -> str:
        """The 16-byte blake2b of every sample. Moving, renaming or packing files does not change it.

        It covers, for the training split and then the test split: one line of text with the shape of a sample, the
        types of inputs and targets, and the numbers of samples, classes and real targets; all inputs; all targets.
        """
        state = hashlib.blake2b(digest_size=16)
        for split in filter(None, (self.splits.train, self.splits.test)):
            shape = "x".join(map(str, self.facts.shape))
            counts = f"{len(split.inputs)} {self.facts.num_classes} {self.facts.num_targets}"
            state.update(f"samples {shape} {split.inputs.dtype.name} {split.targets.dtype.name} {counts}\n".encode())
            for array in (split.inputs, split.targets):
                little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
                state.update(little.reshape(-1).view(np.uint8).data)
        return state.hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredSamples:
    """Samples in files, of the classes in `classes`, or of all where that is empty."""

    files: SampleFiles
    classes: tuple[int, ...] = ()

    @property
    def facts(self) -> Facts:
        return replace(self.files.facts, num_classes=len(self.classes)) if self.classes else self.files.facts

    @cached_property
    def splits(self) -> Splits:
        """The samples.

        Raise HpxferError if a class has no training sample, or if all inputs are equal.
        """
        found = self.files.splits
        if self.classes:
            test = None if found.test is None else _of_classes(found.test, self.classes)
            found = Splits(train=_of_classes(found.train, self.classes), test=test)
        elif self.facts.num_classes and found.test is not None:
            _require_known(found.test, found.train)
        if self.facts.num_classes:
            _require_classes(found.train, self.classes or range(self.facts.num_classes))
        _require_varied(found.train)
        return found

    @property
    def num_train(self) -> int:
        return len(self.splits.train.inputs)

    @property
    def num_test(self) -> int:
        return len(self.splits.test.inputs) if self.splits.test else 0

    def only(self, classes: tuple[int, ...]) -> StoredSamples:
        return _restricted(self.files, classes)

    def digest(self) -> str:
        return self.files.digest

    def train(self, seed: int, begin: int, end: int, num_kept: int) -> Rows:
        size = self.num_train - num_kept
        epochs, rows = np.divmod(np.arange(begin, end), size)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            rows[here] = shuffled(rows[here], size, seed, epoch)
        if num_kept:
            rows = shuffled(rows, self.num_train, HELD_OUT_SEED)
        return self.splits.train.inputs[rows], self.splits.train.targets[rows]

    def held_out(self, begin: int, end: int) -> Rows:
        split = self.splits.test or self.splits.train
        rows = shuffled(np.arange(begin, end), len(split.inputs), HELD_OUT_SEED)
        return split.inputs[rows], split.targets[rows]

    @cached_property
    def normalization(self) -> tuple[float, float] | None:
        """The mean and the standard deviation of all pixels of the training split, None for real inputs.

        The sums are whole numbers, and division and root are rounded in one way, so no bit depends on the machine.
        """
        if not self.facts.is_pixels:
            return None
        pixels = self.splits.train.inputs.reshape(-1)
        counts = sum((np.bincount(pixels[k : k + 2**20], minlength=256) for k in range(0, len(pixels), 2**20)), _NONE)
        num, first, second = (int((counts * np.arange(256) ** power).sum()) for power in (0, 1, 2))
        return first / num, math.sqrt(num * second - first * first) / num


_NONE = np.zeros(256, np.int64)


def stored(form: Format, files: Sequence[str]) -> StoredSamples:
    """Return the samples in files, which a process reads once while they do not change. It keeps two sources."""
    try:
        stamps = tuple((found.st_size, found.st_mtime_ns) for found in map(os.stat, files))
    except OSError as error:
        raise HpxferError(f"{files[0]}: cannot be read: {error.strerror}; correct the path") from None
    return StoredSamples(files=_opened(form, tuple(files), stamps))


@lru_cache(maxsize=2)
def _opened(form: Format, files: tuple[str, ...], stamps: tuple[tuple[int, int], ...]) -> SampleFiles:
    return SampleFiles(facts=form.facts(files), load=lambda: form.read(files))


@lru_cache(maxsize=2)
def _restricted(files: SampleFiles, classes: tuple[int, ...]) -> StoredSamples:
    return StoredSamples(files=files, classes=classes)


def _of_classes(split: Split, classes: tuple[int, ...]) -> Split:
    """Return the samples of some classes, numbered anew in this order."""
    order = np.argsort(classes)
    place = order[np.searchsorted(classes, split.targets, sorter=order).clip(max=len(classes) - 1)]
    found = np.where(np.asarray(classes)[place] == split.targets, place, -1)
    return Split(name=split.name, inputs=split.inputs[found >= 0], targets=found[found >= 0])


def _require_known(test: Split, train: Split) -> None:
    """Raise HpxferError for a test label below or above all training labels."""
    low, high = int(train.targets.min()), int(train.targets.max())
    wrong = np.flatnonzero((test.targets < low) | (test.targets > high))
    if wrong.size:
        rule = f"labels must be from {low + train.first} to {high + train.first} as in {train.name}"
        got = f"{int(test.targets[wrong[0]]) + test.first} at position {wrong[0]}"
        raise HpxferError(f"{test.name}: {rule}, got {got}; mend the labels, or name the classes to read in data.only")


def _require_varied(split: Split) -> None:
    """Raise HpxferError if all inputs are equal: they have no standard deviation, and no model can learn from them."""
    if split.inputs.size and split.inputs.min() == split.inputs.max():
        rule = "all inputs of these training samples are equal, and a model learns nothing from them"
        raise HpxferError(f"{split.name}: {rule}, got {split.inputs.flat[0]} everywhere; mend the inputs")


def _require_classes(split: Split, classes: Sequence[int]) -> None:
    """Raise HpxferError unless each class has a training sample. `classes` are their numbers in the source.

    A wrong label may be very large, so nothing here has the size of the largest one.
    """
    seen = set(np.unique(split.targets).tolist())
    if num_empty := len(classes) - len(seen):
        empty = islice((number for place, number in enumerate(classes) if place not in seen), 10)
        some = ", ".join(map(str, empty)) + (f" and {num_empty - 10} more" if num_empty > 10 else "")
        raise HpxferError(
            f"{split.name}: every class from 0 to the highest must have a training sample, got none of class {some}; "
            "name the classes that have samples in data.only, or mend the labels"
        )
