"""npz: arrays that `numpy.savez` or `savez_compressed` wrote into one file. No pickled object is read.

The arrays have the names of one row of NAMES, the test split may be missing. Inputs are [N, ...]: uint8 counts as
pixels, which are normalized, and float16, float32 or float64 is read as it is. Whole targets [N] or [N, 1] are classes,
and real targets are [N] or [N, T].
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass

import numpy as np

from hpxfer.data.samples.facts import Facts
from hpxfer.data.samples.formats.reading import AGAIN, MAX_BYTES, num_classes, require_equal
from hpxfer.data.samples.row import SampleSource
from hpxfer.data.samples.stored import Format, Split, Splits, StoredSamples, stored
from hpxfer.errors import HpxferError, cut
from hpxfer.host.files import folder_at, open_regular, reason
from hpxfer.scaling.shape import MAX_DIM

# Training inputs and targets, test inputs and targets.
NAMES = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("images", "labels", "test_images", "test_labels"),
    ("x", "y", "x_test", "y_test"),
)
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_WHOLE, _REAL = "ui", "f"


@dataclass(frozen=True, kw_only=True)
class _Header:
    """What an array says of itself. `start` is its first byte of data."""

    shape: tuple[int, ...]
    dtype: np.dtype
    is_fortran: bool
    start: int


def _open(path: str) -> StoredSamples | None:
    if folder_at(path) is not None:
        raise HpxferError(f"data.source: npz: must name one file, got the folder {cut(path, 300)}; name a file in it")
    return stored(_FORMAT, [path]) if os.path.lexists(path) else None


class _Archive:
    """The arrays of a file by name."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._file = open_regular(path)
        except OSError as error:
            raise HpxferError(f"{path}: cannot be read: {reason(error)}; correct the path") from None
        try:
            self._zip = zipfile.ZipFile(self._file)
        except Exception as error:  # zipfile raises many kinds for bytes that are no archive
            self._file.close()
            raise self._broken(error) from None
        self.names = {name.removesuffix(".npy") for name in self._zip.namelist() if name.endswith(".npy")}

    def _broken(self, error: Exception) -> HpxferError:
        return HpxferError(f"{self.path}: must be a whole file of `numpy.savez`, got {cut(str(error), 200)}; {AGAIN}")

    def header(self, name: str) -> _Header:
        """Return the header of an array. Raise HpxferError unless its size is that of its data."""
        try:
            info = self._zip.getinfo(f"{name}.npy")
            with self._zip.open(info) as file:
                shape, is_fortran, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
                start = file.tell()
        except Exception as error:  # of zipfile, zlib and numpy's parser, which passes on whatever it meets
            raise self._broken(error) from None
        if dtype.hasobject:
            rule = "must hold numbers, got Python objects, which could run code when they are read"
            raise HpxferError(f"{self.path}: {name}: {rule}; save it again with a type of numbers")
        if dtype.kind not in _WHOLE + _REAL or not shape:
            got = f"{dtype} of {len(shape)} dimensions"
            raise HpxferError(f"{self.path}: {name}: must be an array of numbers, got {got}; save it again")
        expected = start + int(np.prod([*map(int, shape)], dtype=object)) * dtype.itemsize
        if info.file_size != expected or expected > MAX_BYTES:
            rule = f"must have {expected} bytes for the shape {shape}, and at most {MAX_BYTES}"
            raise HpxferError(f"{self.path}: {name}: {rule}, got {info.file_size}; {AGAIN}")
        return _Header(shape=shape, dtype=dtype, is_fortran=is_fortran, start=start)

    def array(self, name: str) -> np.ndarray:
        found = self.header(name)
        try:
            with self._zip.open(f"{name}.npy") as file:
                file.read(found.start)
                content = file.read()
        except Exception as error:
            raise self._broken(error) from None
        if len(content) != int(np.prod(found.shape)) * found.dtype.itemsize:
            raise self._broken(EOFError(f"{len(content)} bytes of {name}"))
        return np.frombuffer(content, found.dtype).reshape(found.shape, order="F" if found.is_fortran else "C")

    def pairs(self) -> list[tuple[str, str]]:
        """Return the names of inputs and targets, of the training split and of the test split if there is one."""
        found = [row for row in NAMES if {*row[:2]} <= self.names]
        if len(found) > 1:
            got = " and also ".join(f"{row[0]} and {row[1]}" for row in found)
            raise HpxferError(f"{self.path}: must hold one pair of training arrays, got {got}; save one pair of them")
        for x, y, *test in found:
            lone = [name for name in test if name in self.names]
            if len(lone) == 1:
                rule = f"the test split must have both {test[0]} and {test[1]}"
                raise HpxferError(f"{self.path}: {rule}, got {lone[0]} alone; save both, or neither")
            return [(x, y), *([(test[0], test[1])] if lone else [])]
        legal = "; ".join(f"{row[0]} and {row[1]}" for row in NAMES)
        got = cut(", ".join(sorted(self.names)), 200) or "none"
        raise HpxferError(f"{self.path}: must hold arrays with the names {legal}, got {got}; save them by these names")

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()
        self._file.close()


def _facts(files: tuple[str, ...]) -> Facts:
    with _Archive(files[0]) as archive:
        pairs = archive.pairs()
        x, y = (archive.header(name) for name in pairs[0])
        _check(archive.path, pairs[0], x, y)
        shape, is_pixels = x.shape[1:] or (1,), x.dtype == np.uint8
        if y.dtype.kind in _REAL:
            return Facts(shape=shape, is_pixels=is_pixels, num_targets=y.shape[1] if len(y.shape) == 2 else 1)
        labels = [_labels(archive, name) for _, name in pairs]
        return Facts(shape=shape, is_pixels=is_pixels, num_classes=num_classes(*labels)[1])


def _splits(files: tuple[str, ...]) -> Splits:
    with _Archive(files[0]) as archive:
        pairs = archive.pairs()
        headers = [tuple(archive.header(name) for name in pair) for pair in pairs]
        for pair, (x, y) in zip(pairs, headers, strict=True):
            _check(archive.path, pair, x, y)
        kinds = {(x.shape[1:], x.dtype == np.uint8, y.dtype.kind in _REAL, y.shape[1:] or (1,)) for x, y in headers}
        if len(kinds) > 1:
            got = " and ".join(f"{x.dtype} {x.shape} with {y.dtype} {y.shape}" for x, y in headers)
            rule = "the test split must have inputs and targets of the same form as the training split"
            raise HpxferError(f"{archive.path}: {rule}, got {got}; save them alike")
        inputs = [_inputs(archive, x) for x, _ in pairs]
        first = 0
        if headers[0][1].dtype.kind in _REAL:
            targets = [_finite(archive, y).reshape(len(archive.array(y)), -1) for _, y in pairs]
        else:
            labels = [_labels(archive, y) for _, y in pairs]
            first, _ = num_classes(*labels)
            targets = [each - first for each in labels]
        train, *test = (
            Split(name=f"{archive.path}: {y}", inputs=each, targets=own, first=first)
            for (_, y), each, own in zip(pairs, inputs, targets, strict=True)
        )
        return Splits(train=train, test=test[0] if test else None)


def _check(path: str, names: tuple[str, str], x: _Header, y: _Header) -> None:
    """Raise HpxferError unless two arrays can be inputs and targets."""
    if (x.dtype != np.uint8 and x.dtype.kind not in _REAL) or 0 in x.shape[1:]:
        rule = "must be pixels of uint8 or real numbers, with no dimension of size 0"
        raise HpxferError(f"{path}: {names[0]}: {rule}, got {x.dtype} {x.shape}; save it as uint8 or float32")
    is_row = len(y.shape) == 1 or (len(y.shape) == 2 and (y.shape[1] == 1 or (y.dtype.kind in _REAL and y.shape[1])))
    if not is_row:
        rule = "must be classes [N] or real targets [N, T]"
        raise HpxferError(f"{path}: {names[1]}: {rule}, got {y.dtype} {y.shape}; save one number per class")
    require_equal(f"{path}: {names[0]}", x.shape[0], names[1], y.shape[0])


def _labels(archive: _Archive, name: str) -> np.ndarray:
    found = archive.array(name).reshape(-1)
    if found.size and not 0 <= int(found.min()) <= int(found.max()) < MAX_DIM:
        got = f"{found.min()} to {found.max()}"
        raise HpxferError(
            f"{archive.path}: {name}: classes must be from 0 to {MAX_DIM - 1}, got {got}; mend the labels"
        )
    return found.astype(np.int64)


def _inputs(archive: _Archive, name: str) -> np.ndarray:
    is_pixels = archive.header(name).dtype == np.uint8
    found = archive.array(name) if is_pixels else _finite(archive, name)
    return np.ascontiguousarray(found).reshape(len(found), -1)


def _finite(archive: _Archive, name: str) -> np.ndarray:
    """Return real numbers as float32. Raise HpxferError for one that is not finite there."""
    with np.errstate(over="ignore"):
        found = archive.array(name).astype(np.float32)
    if not np.isfinite(found).all():
        at = tuple(int(index) for index in np.argwhere(~np.isfinite(found))[0])
        rule = "numbers must be finite in float32"
        raise HpxferError(f"{archive.path}: {name}: {rule}, got {archive.array(name)[at]} at {at}; mend the data")
    return found


_FORMAT = Format(facts=_facts, read=_splits)
NPZ = SampleSource(name="npz", usage="npz:FILE", open=_open)
