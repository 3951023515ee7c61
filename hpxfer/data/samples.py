"""Samples: images and vectors with a class or real targets each, and those of files, which are held in memory.

A sample has `num_inputs` features and a target. The target is a class, from 0 on, or a row of real numbers.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.windows import by_epoch, shuffled
from hpxfer.errors import HpxferError

# (inputs [N, num_inputs] uint8 or float32, targets int64 [N] or float32 [N, num_targets])
Rows = tuple[NDArray[Any], NDArray[Any]]

# The order from which held-out samples are taken. Files, such as image folders, often hold one class after the other.
# No trial of a sweep uses this seed.
HELD_OUT_SEED = 2**61


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What holds for every sample of a source."""

    shape: tuple[int, ...]
    """The dimensions of one sample, e.g. (28, 28)."""
    is_pixels: bool
    """Whether inputs are bytes, which are normalized. Otherwise they are real numbers, which are read as they are."""
    num_classes: int = 0
    """0 where targets are real."""
    num_targets: int = 0
    """Real targets of a sample. 0 where the target is a class."""

    @property
    def num_inputs(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def targets(self) -> str:
        """The targets in words."""
        return f"{self.num_classes} classes" if self.num_classes else f"{self.num_targets} real targets"


class Samples(Protocol):
    """The samples of a source, or those of its classes that a sweep wants."""

    @property
    def facts(self) -> Facts: ...

    @property
    def num_train(self) -> int | None:
        """The samples of the training split. None: they never end."""

    @property
    def num_test(self) -> int | None:
        """The samples of the test split: 0 without one. None: they never end."""

    def only(self, classes: tuple[int, ...]) -> Samples:
        """Return the samples of these classes, which are numbered anew in this order. With none, all samples."""

    def digest(self) -> str:
        """Return the identity of the whole source, 32 hex digits."""

    def train(self, seed: int, begin: int, end: int, num_kept: int) -> Rows:
        """Return what a seed reads from its sample `begin` to its sample `end`, epoch after epoch.

        `num_kept` samples of the split are kept for validation and never read.
        """

    def held_out(self, begin: int, end: int) -> Rows:
        """Return samples `begin` to `end` of the test split, in an order of the source's own.

        Of a source without a test split they are of the training split, and the last ones are those that are kept.
        """

    @property
    def normalization(self) -> tuple[float, float] | None:
        """The mean and the standard deviation that normalize pixels. None: inputs are read as they are."""


def scaled(inputs: NDArray[Any], normalization: tuple[float, float] | None) -> NDArray[np.float32]:
    """Return inputs as a model reads them: a pixel becomes (pixel - mean) / std."""
    return inputs if normalization is None else _pixel_table(*normalization)[inputs]


@lru_cache(maxsize=8)
def _pixel_table(mean: float, std: float) -> NDArray[np.float32]:
    """Return what each of the 256 values of a pixel becomes. It is computed in float64 and rounded once."""
    return ((np.arange(256) - mean) / std).astype(np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Some samples: inputs [N, D] uint8 or float32, targets int64 [N] or float32 [N, T]. `name` is for messages."""

    name: str
    inputs: NDArray[Any]
    targets: NDArray[Any]
    first: int = 0
    """The label that a file gives class 0."""


# The training split, and the test split if there is one.
Splits = Sequence[Split]


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
        for split in self.splits:
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
        """The samples. Raise HpxferError if a class has no training sample, or if all inputs are equal."""
        train, *test = found = self.files.splits
        if self.classes:
            train, *test = found = [_of_classes(split, self.classes) for split in found]
        elif self.facts.num_classes and test:
            _require_known(test[0], train)
        if self.facts.num_classes:
            _require_classes(train, self.classes or range(self.facts.num_classes))
        if train.inputs.size and train.inputs.min() == train.inputs.max():
            rule = "all inputs of these training samples are equal, and a model learns nothing from them"
            raise HpxferError(f"{train.name}: {rule}, got {train.inputs.flat[0]} everywhere")
        return found

    @property
    def num_train(self) -> int:
        return len(self.splits[0].inputs)

    @property
    def num_test(self) -> int:
        return sum(len(split.inputs) for split in self.splits[1:])

    def only(self, classes: tuple[int, ...]) -> StoredSamples:
        return _restricted(self.files, classes)

    def digest(self) -> str:
        return self.files.digest

    def train(self, seed: int, begin: int, end: int, num_kept: int) -> Rows:
        rows = by_epoch(begin, end, self.num_train - num_kept, seed)
        if num_kept:
            rows = shuffled(rows, self.num_train, HELD_OUT_SEED)
        return self.splits[0].inputs[rows], self.splits[0].targets[rows]

    def held_out(self, begin: int, end: int) -> Rows:
        split = self.splits[-1]
        rows = shuffled(np.arange(begin, end), len(split.inputs), HELD_OUT_SEED)
        return split.inputs[rows], split.targets[rows]

    @cached_property
    def normalization(self) -> tuple[float, float] | None:
        """The mean and the standard deviation of all pixels of the training split, None for real inputs.

        The sums are whole numbers, and division and root are rounded in one way, so no bit depends on the machine.
        """
        if not self.facts.is_pixels:
            return None
        pixels = self.splits[0].inputs.reshape(-1)
        counts = np.zeros(256, np.int64)
        for start in range(0, len(pixels), 2**20):
            counts += np.bincount(pixels[start : start + 2**20], minlength=256)
        num, first, second = (int((counts * np.arange(256) ** power).sum()) for power in (0, 1, 2))
        return first / num, math.sqrt(num * second - first * first) / num


Files = tuple[str, ...]


def stored(facts: Callable[[Files], Facts], read: Callable[[Files], Splits], files: Sequence[str]) -> StoredSamples:
    """Return the samples in files, which a process reads once while they do not change. It keeps two sources.

    `facts` reads little of the files, `read` all of them.
    """
    try:
        stamps = tuple((found.st_size, found.st_mtime_ns) for found in map(os.stat, files))
    except OSError as error:
        raise HpxferError(f"{files[0]}: cannot be read: {error.strerror}; correct the path") from None
    return StoredSamples(files=_opened(facts, read, tuple(files), stamps))


@lru_cache(maxsize=2)
def _opened(facts: Any, read: Any, files: Files, stamps: tuple[tuple[int, int], ...]) -> SampleFiles:
    return SampleFiles(facts=facts(files), load=lambda: read(files))


@lru_cache(maxsize=2)
def _restricted(files: SampleFiles, classes: tuple[int, ...]) -> StoredSamples:
    return StoredSamples(files=files, classes=classes)


def num_classes(*labels: NDArray[np.int64]) -> tuple[int, int]:
    """Return (first, number of classes) of the labels of all splits: first is 1 if labels go from 1 up without a gap.

    Then label 1 is class 0, as in the letters of EMNIST.
    """
    seen = np.unique(np.concatenate(labels))
    first = int(len(seen) > 0 and seen[0] == 1 and seen[-1] == len(seen))
    return first, int(seen[-1]) + 1 - first if len(seen) else 0


def require_equal(path: str, num_inputs: int, labels: str, num_labels: int) -> None:
    """Raise HpxferError unless there are as many labels as samples, and at least one."""
    if num_inputs != num_labels:
        raise HpxferError(
            f"{path}: must hold as many samples as {labels} has labels, got {num_inputs} and {num_labels}"
        )
    if not num_inputs:
        raise HpxferError(f"{path}: must hold at least one sample, got none")


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
