"""cifar: the binary versions of CIFAR-10 and CIFAR-100, by the names that their archives give the files.

A record is one byte of the label, or two in CIFAR-100 (coarse, then fine: the fine one is the class), and then 3 x 32 x
32 bytes of the image: red, green and blue, row by row.
"""

from __future__ import annotations

import os
import re

import numpy as np

from hpxfer.data.files import file_size, unpacked
from hpxfer.data.samples import Facts, Split, Splits, StoredSamples, stored
from hpxfer.data.sources import SampleSource
from hpxfer.errors import HpxferError, cut
from hpxfer.host.files import folder_at

_SHAPE, _IMAGE_BYTES = (3, 32, 32), 3 * 32 * 32
_BATCH = re.compile(r"data_batch_([1-9][0-9]?)\.bin")


def is_one(name: str) -> bool:
    """Return whether a file of this name is one of a training split."""
    return name == "train.bin" or _BATCH.fullmatch(name) is not None


def _open(path: str) -> StoredSamples | None:
    if (folder := folder_at(path)) is None:
        if os.path.lexists(path):
            raise HpxferError(f"data.source: cifar: must name the folder of the files, got the file {cut(path, 300)}")
        return None
    names = set(os.listdir(folder))
    batches = [f"data_batch_{number}.bin" for number in range(1, 1 + sum(map(bool, map(_BATCH.fullmatch, names))))]
    if bool(batches) == ("train.bin" in names):
        pickled = {"data_batch_1", "train"} & names
        got = "files of Python's pickle, which are not read" if pickled else "both" if batches else "neither"
        raise HpxferError(
            f"{folder}: must hold data_batch_1.bin and so on (CIFAR-10) or train.bin (CIFAR-100), got {got}; fetch the "
            "binary version, and name the folder cifar-10-batches-bin or cifar-100-binary in it"
        )
    if missing := [name for name in batches if name not in names]:
        raise HpxferError(f"{folder}: must hold {batches[0]} and all that follow, got none of the name {missing[0]}")
    test = "test_batch.bin" if batches else "test.bin"
    files = [*(batches or ["train.bin"]), *([test] if test in names else [])]
    return stored(_facts, _splits, [os.path.join(folder, name) for name in files])


def _label(files: tuple[str, ...]) -> tuple[int, int]:
    """Return (bytes of a label, number of classes)."""
    return (2, 100) if os.path.basename(files[0]) == "train.bin" else (1, 10)


def _facts(files: tuple[str, ...]) -> Facts:
    return Facts(shape=_SHAPE, is_pixels=True, num_classes=_label(files)[1])


def _splits(files: tuple[str, ...]) -> Splits:
    tests = [path for path in files if os.path.basename(path).startswith("test")]
    return [_split(paths, *_label(files)) for paths in (files[: len(files) - len(tests)], tests) if paths]


def _split(paths: tuple[str, ...] | list[str], label_bytes: int, num_classes: int) -> Split:
    found = np.concatenate([_records(path, label_bytes, num_classes) for path in paths])
    labels = found[:, label_bytes - 1].astype(np.int64)
    return Split(name=paths[0], inputs=np.ascontiguousarray(found[:, label_bytes:]), targets=labels)


def _records(path: str, label_bytes: int, num_classes: int) -> np.ndarray:
    """Return the records of a file, uint8 [N, bytes]. Raise HpxferError for part of a record and for a wrong label."""
    size, num_bytes = label_bytes + _IMAGE_BYTES, file_size(path)
    if num_bytes % size or not num_bytes:
        raise HpxferError(f"{path}: must be records of {size} bytes, got {num_bytes} bytes in all; fetch it again")
    records = np.frombuffer(unpacked(path, num_bytes), np.uint8).reshape(-1, size)
    if (wrong := np.flatnonzero(records[:, label_bytes - 1] >= num_classes)).size:
        got = f"{records[wrong[0], label_bytes - 1]} in record {wrong[0]}"
        raise HpxferError(f"{path}: a label must be below {num_classes}, got {got}; fetch it again")
    return records


CIFAR = SampleSource(name="cifar", usage="cifar:FOLDER", open=_open)
