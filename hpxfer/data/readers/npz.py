"""npz: arrays that `numpy.savez` or `savez_compressed` wrote into one file. No pickled object is read.

The arrays have the names of one row of NAMES, the test split may be missing. Inputs are [N, ...]: uint8 counts as
pixels, which are normalized, and float16, float32 or float64 is read as it is. Whole targets [N] or [N, 1] are classes,
and real targets are [N] or [N, T].
"""

from __future__ import annotations

import os

import numpy as np
from numpy.lib.npyio import NpzFile

from hpxfer.data.files import MAX_BYTES
from hpxfer.data.samples import Split, Splits, StoredSamples, stored
from hpxfer.data.sources import SampleSource
from hpxfer.errors import HpxferError, cut
from hpxfer.host import folder_at, open_regular

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
    return stored(_read, [path]) if os.path.lexists(path) else None


def _read(files: tuple[str, ...]) -> Splits:
    (path,) = files
    try:
        with open_regular(path) as file, NpzFile(file, allow_pickle=False) as found:
            archive = found.zip
            assert archive is not None, "a file that is open"
            if (size := sum(each.file_size for each in archive.infolist())) > MAX_BYTES:
                raise ValueError(f"{size} bytes, and at most {MAX_BYTES} are held in memory")
            arrays = [(name, np.asarray(found[name])) for name in _names(path, set(found.files))]
    except HpxferError:
        raise
    except Exception as error:  # of zipfile, zlib and numpy, which passes on whatever it meets
        raise HpxferError(f"{path}: must be a whole file of `numpy.savez`, got {cut(str(error), 200)}") from None
    return [_split(path, *x, *y) for x, y in zip(arrays[::2], arrays[1::2], strict=True)]


def _names(path: str, names: set[str]) -> list[str]:
    found = [row for row in NAMES if {*row[:2]} <= names]
    if len(found) != 1:
        rule = f"one pair of training arrays with the names {'; '.join(f'{row[0]} and {row[1]}' for row in NAMES)}"
        raise HpxferError(f"{path}: must hold {rule}, got {cut(', '.join(sorted(names)), 200) or 'none'}")
    test = [name for name in found[0][2:] if name in names]
    if len(test) == 1:
        rule = f"the test split must have both {found[0][2]} and {found[0][3]}"
        raise HpxferError(f"{path}: {rule}, got {test[0]} alone")
    return [*found[0][:2], *test]


def _split(path: str, x_name: str, x: np.ndarray, y_name: str, y: np.ndarray) -> Split:
    if not x.ndim or (x.dtype != np.uint8 and x.dtype.kind != "f") or 0 in x.shape[1:]:
        rule = "must be pixels of uint8 or real numbers, with no dimension of size 0"
        raise HpxferError(f"{path}: {x_name}: {rule}, got {x.dtype} {x.shape}")
    columns = y.shape[1] if y.ndim == 2 else 1
    if y.dtype.kind not in "uif" or y.ndim not in (1, 2) or not columns or (y.dtype.kind != "f" and columns > 1):
        raise HpxferError(f"{path}: {y_name}: must be classes [N] or real targets [N, T], got {y.dtype} {y.shape}")
    inputs = x if x.dtype == np.uint8 else _real(path, x_name, x)
    is_real = y.dtype.kind == "f"
    targets = _real(path, y_name, y).reshape(-1, columns) if is_real else y.reshape(-1).astype(np.int64)
    return Split(name=f"{path}: {y_name}", inputs=inputs if x.ndim > 1 else inputs.reshape(-1, 1), targets=targets)


def _real(path: str, name: str, found: np.ndarray) -> np.ndarray:
    """Return numbers as float32. Raise HpxferError for one that is not finite there."""
    with np.errstate(over="ignore"):
        real = found.astype(np.float32)
    if (wrong := np.argwhere(~np.isfinite(real))).size:
        at = tuple(wrong[0].tolist())
        raise HpxferError(f"{path}: {name}: numbers must be finite in float32, got {found[at]} at {at}")
    return real


NPZ = SampleSource(name="npz", usage="npz:FILE", open=_open)
