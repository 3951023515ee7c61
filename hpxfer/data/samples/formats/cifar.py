"""cifar: the binary versions of CIFAR-10 and CIFAR-100, by the names that their archives give the files.

A record is one byte of the label, or two in CIFAR-100 (coarse, then fine: the fine one is the class), and then 3 x 32 x
32 bytes of the image: red, green and blue, row by row.
"""

from __future__ import annotations

import os
import re

import numpy as np

from hpxfer.data.samples.facts import Facts
from hpxfer.data.samples.formats.reading import AGAIN, read_exactly
from hpxfer.data.samples.row import SampleSource
from hpxfer.data.samples.stored import Format, Split, Splits, StoredSamples, stored
from hpxfer.errors import HpxferError, cut
from hpxfer.host.files import folder_at

_IMAGE = (3, 32, 32)
_BATCH = re.compile(r"data_batch_([1-9][0-9]?)\.bin")
_CLASSES_OF_BYTES = {1: 10, 2: 100}


def is_one(name: str) -> bool:
    """Return whether a file of this name is one of a training split."""
    return name == "train.bin" or _BATCH.fullmatch(name) is not None


def _open(path: str) -> StoredSamples | None:
    if (folder := folder_at(path)) is None:
        if os.path.lexists(path):
            raise HpxferError(f"data.source: cifar: must name the folder of the files, got the file {cut(path, 300)}")
        return None
    names = set(os.listdir(folder))
    numbers = sorted(int(found[1]) for found in map(_BATCH.fullmatch, names) if found)
    if numbers and "train.bin" not in names:
        if numbers != list(range(1, len(numbers) + 1)):
            raise HpxferError(
                f"{folder}: must hold data_batch_1.bin and all others up to data_batch_{numbers[-1]}.bin, got "
                f"{len(numbers)} of them; copy the missing ones"
            )
        train, test = [f"data_batch_{number}.bin" for number in numbers], "test_batch.bin"
    elif "train.bin" in names and not numbers:
        train, test = ["train.bin"], "test.bin"
    else:
        pickled = {"data_batch_1", "train"} & names
        got = "files of Python's pickle, which are not read" if pickled else "both" if numbers else "neither"
        raise HpxferError(
            f"{folder}: must hold data_batch_1.bin and so on (CIFAR-10) or train.bin (CIFAR-100), got {got}; fetch the "
            "binary version, and name the folder cifar-10-batches-bin or cifar-100-binary in it"
        )
    return stored(_FORMAT, [os.path.join(folder, name) for name in (*train, *([test] if test in names else []))])


def _label_bytes(files: tuple[str, ...]) -> int:
    return 2 if os.path.basename(files[0]) == "train.bin" else 1


def _facts(files: tuple[str, ...]) -> Facts:
    return Facts(shape=_IMAGE, is_pixels=True, num_classes=_CLASSES_OF_BYTES[_label_bytes(files)])


def _splits(files: tuple[str, ...]) -> Splits:
    label_bytes = _label_bytes(files)
    is_test = [os.path.basename(path).startswith("test") for path in files]
    found = [_records(path, label_bytes) for path in files]
    train = [each for each, of_test in zip(found, is_test, strict=True) if not of_test]
    test = [each for each, of_test in zip(found, is_test, strict=True) if of_test]
    return Splits(
        train=_split(files[0], train, label_bytes), test=_split(files[-1], test, label_bytes) if test else None
    )


def _records(path: str, label_bytes: int) -> np.ndarray:
    """Return the records of a file, uint8 [N, bytes]. Raise HpxferError for part of a record and for a wrong label."""
    size = label_bytes + int(np.prod(_IMAGE))
    num_bytes = os.path.getsize(path)
    if num_bytes % size or not num_bytes:
        raise HpxferError(f"{path}: must be records of {size} bytes, got {num_bytes} bytes in all; {AGAIN}")
    records = np.frombuffer(read_exactly(path, 0, num_bytes, "records"), np.uint8).reshape(-1, size)
    classes = _CLASSES_OF_BYTES[label_bytes]
    if (wrong := np.flatnonzero(records[:, label_bytes - 1] >= classes)).size:
        got = f"{records[wrong[0], label_bytes - 1]} in record {wrong[0]}"
        raise HpxferError(f"{path}: a label must be below {classes}, got {got}; {AGAIN}")
    return records


def _split(name: str, records: list[np.ndarray], label_bytes: int) -> Split:
    labels = np.concatenate([found[:, label_bytes - 1] for found in records]).astype(np.int64)
    return Split(name=name, inputs=np.concatenate([found[:, label_bytes:] for found in records]), targets=labels)


_FORMAT = Format(facts=_facts, read=_splits)
CIFAR = SampleSource(name="cifar", usage="cifar:FOLDER", open=_open)
