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
from hpxfer.scaling.shape import MAX_DIM

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
        return math.prod(self.shape)

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

    @property
    def normalization(self) -> tuple[float, float] | None:
        """The mean and the standard deviation that normalize pixels. None: inputs are read as they are."""

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


def scaled(inputs: NDArray[Any], normalization: tuple[float, float] | None) -> NDArray[np.float32]:
    """Return inputs as a model reads them: a pixel becomes (pixel - mean) / std."""
    return inputs if normalization is None else _pixel_table(*normalization)[inputs]


@lru_cache(maxsize=8)
def _pixel_table(mean: float, std: float) -> NDArray[np.float32]:
    """Return what each of the 256 values of a pixel becomes. It is computed in float64 and rounded once."""
    return ((np.arange(256) - mean) / std).astype(np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Some samples: inputs [N, ...] uint8 or float32, targets int64 [N] or float32 [N, T]. `name` is for messages."""

    name: str
    inputs: NDArray[Any]
    targets: NDArray[Any]

    @property
    def form(self) -> str:
        of_target = f"{self.targets.shape[1]} real targets" if self.targets.ndim > 1 else "classes"
        return f"samples of {self.inputs.dtype} {'x'.join(map(str, self.inputs.shape[1:]))} with {of_target}"


# The training split, and the test split if there is one.
Splits = Sequence[Split]


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredSamples:
    """Samples in files. They are read when they are first needed, and then stay in memory."""

    read: Callable[[], Splits]
    """() -> the splits with the labels as they stand in the files. A label from 1 up without a gap is one from 0."""
    num_classes: int | None = None
    """The classes of the format. None: as many as there are."""
    classes: tuple[int, ...] = ()
    """Those that are chosen, all where it is empty."""

    @cached_property
    def whole(self) -> Splits:
        """The samples of all classes. Raise HpxferError unless all splits have one form, and a sample each."""
        found = self.read()
        for split in found:
            if len(split.inputs) != len(split.targets) or not len(split.inputs):
                rule = f"must hold a target for each of {len(split.inputs)} inputs, at least one"
                raise HpxferError(f"{split.name}: {rule}, got {len(split.targets)}")
            if split.form != found[0].form:
                raise HpxferError(f"{split.name}: must hold {found[0].form} as {found[0].name}, got {split.form}")
            if split.targets.ndim == 1 and not 0 <= split.targets.min() <= split.targets.max() < MAX_DIM:
                got = f"{split.targets.min()} to {split.targets.max()}"
                raise HpxferError(f"{split.name}: classes must be from 0 to {MAX_DIM - 1}, got {got}")
        if found[0].targets.ndim > 1 or self.num_classes is not None:
            return found
        seen = np.unique(np.concatenate([split.targets for split in found]))
        first = int(seen[0] == 1 and seen[-1] == len(seen))  # label 1 is class 0, as in the letters of EMNIST
        return [replace(split, targets=split.targets - first) for split in found]

    @cached_property
    def whole_facts(self) -> Facts:
        inputs, targets = self.whole[0].inputs, self.whole[0].targets
        found = Facts(shape=inputs.shape[1:], is_pixels=inputs.dtype == np.uint8)
        if targets.ndim > 1:
            return replace(found, num_targets=targets.shape[1])
        return replace(found, num_classes=self.num_classes or 1 + max(int(each.targets.max()) for each in self.whole))

    @cached_property
    def _digest(self) -> str:
        """The 16-byte blake2b of every sample. Moving, renaming or packing files does not change it.

        It covers, for the training split and then the test split: one line of text with the shape of a sample, the
        types of inputs and targets, and the numbers of samples, classes and real targets; all inputs; all targets.
        """
        state, facts = hashlib.blake2b(digest_size=16), self.whole_facts
        for split in self.whole:
            shape = "x".join(map(str, facts.shape))
            counts = f"{len(split.inputs)} {facts.num_classes} {facts.num_targets}"
            state.update(f"samples {shape} {split.inputs.dtype.name} {split.targets.dtype.name} {counts}\n".encode())
            for array in (split.inputs, split.targets):
                little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
                state.update(little.reshape(-1).view(np.uint8).data)
        return state.hexdigest()

    def digest(self) -> str:
        return self._digest

    @property
    def facts(self) -> Facts:
        return replace(self.whole_facts, num_classes=len(self.classes)) if self.classes else self.whole_facts

    def only(self, classes: tuple[int, ...]) -> StoredSamples:
        return _restricted(self, classes)

    @cached_property
    def splits(self) -> Splits:
        """The samples, inputs [N, D]. Raise HpxferError if a class has no training sample, or all inputs are equal."""
        found = [replace(each, inputs=each.inputs.reshape(len(each.inputs), -1)) for each in self.whole]
        if self.classes:
            found = [_of_classes(split, self.classes) for split in found]
        train = found[0]
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


def stored(
    read: Callable[[tuple[str, ...]], Splits], files: Sequence[str], num_classes: int | None = None
) -> StoredSamples:
    """Return the samples in files, which a process reads once while they do not change. It keeps two sources."""
    try:
        stamps = tuple((found.st_size, found.st_mtime_ns) for found in map(os.stat, files))
    except OSError as error:
        raise HpxferError(f"{files[0]}: cannot be read: {error.strerror}") from None
    return _opened(read, tuple(files), num_classes, stamps)


@lru_cache(maxsize=2)
def _opened(read: Any, files: tuple[str, ...], num_classes: int | None, stamps: Any) -> StoredSamples:
    return StoredSamples(read=lambda: read(files), num_classes=num_classes)


@lru_cache(maxsize=2)
def _restricted(samples: StoredSamples, classes: tuple[int, ...]) -> StoredSamples:
    return StoredSamples(
        read=lambda: samples.whole, num_classes=samples.whole_facts.num_classes or None, classes=classes
    )


def _of_classes(split: Split, classes: tuple[int, ...]) -> Split:
    """Return the samples of some classes, numbered anew in this order."""
    order = np.argsort(classes)
    place = order[np.searchsorted(classes, split.targets, sorter=order).clip(max=len(classes) - 1)]
    found = np.where(np.asarray(classes)[place] == split.targets, place, -1)
    return Split(name=split.name, inputs=split.inputs[found >= 0], targets=found[found >= 0])


def _require_classes(split: Split, classes: Sequence[int]) -> None:
    """Raise HpxferError unless each class has a training sample. `classes` are their numbers in the source.

    A wrong label may be very large, so nothing here has the size of the largest one.
    """
    seen = set(np.unique(split.targets).tolist())
    if num_empty := len(classes) - len(seen):
        empty = islice((number for place, number in enumerate(classes) if place not in seen), 10)
        some = ", ".join(map(str, empty)) + (f" and {num_empty - 10} more" if num_empty > 10 else "")
        rule = "every class from 0 to the highest must have a training sample"
        raise HpxferError(f"{split.name}: {rule}, got none of class {some}; see data.only")
