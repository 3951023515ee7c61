"""npz: arrays that `numpy.savez` or `savez_compressed` wrote into one file. No pickled object is read.

The arrays have the names of one row of NAMES, the test split may be missing. Inputs are [N, ...]: uint8 counts as
pixels, which are normalized, and float16, float32 or float64 is read as it is. Whole targets [N] or [N, 1] are classes,
and real targets are [N] or [N, T].
"""

from __future__ import annotations

import math
import os
import zipfile
from typing import Any

import numpy as np

from hpxfer.data.files import MAX_BYTES
from hpxfer.data.readers.npy import header
from hpxfer.data.samples import Facts, Split, Splits, StoredSamples, num_classes, require_equal, stored
from hpxfer.data.sources import SampleSource
from hpxfer.errors import HpxferError, cut
from hpxfer.host.files import folder_at, open_regular
from hpxfer.scaling.shape import MAX_DIM

# Training inputs and targets, test inputs and targets.
NAMES = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("images", "labels", "test_images", "test_labels"),
    ("x", "y", "x_test", "y_test"),
)


def _open(path: str) -> StoredSamples | None:
    if folder_at(path) is not None:
        raise HpxferError(f"data.source: npz: must name one file, got the folder {cut(path, 300)}")
    return stored(_facts, _splits, [path]) if os.path.lexists(path) else None


def _read(path: str, *, inputs: bool) -> list[tuple[str, np.ndarray]]:
    """Return (name, array) of inputs and targets, of the training split and of the test split if there is one.

    Without `inputs`, only the shape and the type of inputs are read.
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as found:
            names = _names(path, {name.removesuffix(".npy") for name in found.namelist() if name.endswith(".npy")})
            return [(name, _array(found, f"{name}.npy", inputs or number % 2 > 0)) for number, name in enumerate(names)]
    except HpxferError:
        raise
    except Exception as error:  # of zipfile, zlib and numpy, which passes on whatever it meets
        raise HpxferError(f"{path}: must be a whole file of `numpy.savez`, got {cut(str(error), 200)}") from None


def _array(found: zipfile.ZipFile, name: str, is_read: bool) -> np.ndarray:
    with found.open(name) as stream:
        shape, dtype = header(stream)
        expected = stream.tell() + math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise ValueError(f"{name} of Python objects, which could run code when they are read")
    if (size := found.getinfo(name).file_size) != expected or size > MAX_BYTES:
        raise EOFError(f"{size} bytes of {name}, which must have {expected} for the shape {shape}, at most {MAX_BYTES}")
    if not is_read:
        return np.broadcast_to(np.zeros((), dtype), shape)
    with found.open(name) as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def _names(path: str, names: set[str]) -> list[str]:
    found = [row for row in NAMES if {*row[:2]} <= names]
    if len(found) != 1:
        legal = "; ".join(f"{row[0]} and {row[1]}" for row in NAMES)
        raise HpxferError(
            f"{path}: must hold one pair of training arrays with the names {legal}, got "
            f"{cut(', '.join(sorted(names)), 200) or 'none'}"
        )
    if len(lone := [name for name in found[0][2:] if name in names]) == 1:
        rule = f"the test split must have both {found[0][2]} and {found[0][3]}"
        raise HpxferError(f"{path}: {rule}, got {lone[0]} alone")
    return [*found[0][:2], *lone]


def _form(path: str, x_name: str, x: np.ndarray, y_name: str, y: np.ndarray) -> tuple[Any, ...]:
    """Return (shape of a sample, whether it is pixels, number of real targets). Raise HpxferError for other arrays."""
    if not x.ndim or (x.dtype != np.uint8 and x.dtype.kind != "f") or 0 in x.shape[1:]:
        rule = "must be pixels of uint8 or real numbers, with no dimension of size 0"
        raise HpxferError(f"{path}: {x_name}: {rule}, got {x.dtype} {x.shape}")
    columns = y.shape[1] if y.ndim == 2 else 1
    if y.dtype.kind not in "uif" or y.ndim not in (1, 2) or not columns or (y.dtype.kind != "f" and columns > 1):
        raise HpxferError(f"{path}: {y_name}: must be classes [N] or real targets [N, T], got {y.dtype} {y.shape}")
    require_equal(f"{path}: {x_name}", len(x), y_name, len(y))
    return x.shape[1:] or (1,), x.dtype == np.uint8, columns if y.dtype.kind == "f" else 0


def _facts(files: tuple[str, ...]) -> Facts:
    (x_name, x), (y_name, y), *test = _read(files[0], inputs=False)
    shape, is_pixels, num_targets = _form(files[0], x_name, x, y_name, y)
    labels = [] if num_targets else [_labels(files[0], name, each) for name, each in ((y_name, y), *test[1:])]
    classes = num_classes(*labels)[1] if labels else 0
    return Facts(shape=shape, is_pixels=is_pixels, num_classes=classes, num_targets=num_targets)


def _splits(files: tuple[str, ...]) -> Splits:
    path, found = files[0], _read(files[0], inputs=True)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    forms = [_form(path, *x, *y) for x, y in pairs]
    if forms[0] != forms[-1]:
        got = " and ".join(f"{x.dtype} {x.shape} with {y.dtype} {y.shape}" for (_, x), (_, y) in pairs)
        rule = "the test split must have inputs and targets of the same form as the training split"
        raise HpxferError(f"{path}: {rule}, got {got}")
    first = 0 if forms[0][2] else num_classes(*(_labels(path, *y) for _, y in pairs))[0]
    return [
        Split(
            name=f"{path}: {y[0]}",
            inputs=_rows(path, *x),
            targets=_rows(path, *y) if forms[0][2] else _labels(path, *y) - first,
            first=first,
        )
        for x, y in pairs
    ]


def _labels(path: str, name: str, found: np.ndarray) -> np.ndarray:
    if found.size and not 0 <= int(found.min()) <= int(found.max()) < MAX_DIM:
        got = f"{found.min()} to {found.max()}"
        raise HpxferError(f"{path}: {name}: classes must be from 0 to {MAX_DIM - 1}, got {got}")
    return found.reshape(-1).astype(np.int64)


def _rows(path: str, name: str, found: np.ndarray) -> np.ndarray:
    """Return pixels, or real numbers as float32, [N, D]. Raise HpxferError for one that is not finite there."""
    if found.dtype == np.uint8:
        return np.ascontiguousarray(found).reshape(len(found), -1)
    with np.errstate(over="ignore"):
        real = found.astype(np.float32)
    if (wrong := np.argwhere(~np.isfinite(real))).size:
        at = tuple(wrong[0].tolist())
        raise HpxferError(f"{path}: {name}: numbers must be finite in float32, got {found[at]} at {at}")
    return np.ascontiguousarray(real).reshape(len(real), -1)


NPZ = SampleSource(name="npz", usage="npz:FILE", open=_open)
