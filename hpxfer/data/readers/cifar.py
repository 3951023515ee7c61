"""cifar: the binary versions of CIFAR-10 and CIFAR-100, by the names that their archives give the files.

A record is one byte of the label, or two in CIFAR-100 (coarse, then fine: the fine one is the class), and then 3 x 32 x
32 bytes of the image: red, green and blue, row by row.
"""

from __future__ import annotations

import math
import os
import re

import numpy as np

from hpxfer.data.files import file_size, unpacked
from hpxfer.data.samples import Split, Splits, StoredSamples, stored
from hpxfer.data.sources import SampleSource
from hpxfer.errors import HpxferError, cut
from hpxfer.host import folder_at

_BATCH = re.compile(r"data_batch_([1-9][0-9]?)\.bin")
_IMAGE = 3, 32, 32


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
    missing = [name for name in batches if name not in names]
    if bool(batches) == ("train.bin" in names) or missing:
        pickled = " (files of Python's pickle are not read)" * bool({"data_batch_1", "train"} & names)
        got = f"none of the name {missing[0]}" if missing else "both" if batches else f"neither{pickled}"
        raise HpxferError(
            f"{folder}: must hold data_batch_1.bin and all that follow (CIFAR-10) or train.bin (CIFAR-100), got {got}"
        )
    test = "test_batch.bin" if batches else "test.bin"
    files = [*(batches or ["train.bin"]), *([test] if test in names else [])]
    return stored(_read, [os.path.join(folder, name) for name in files], num_classes=10 if batches else 100)


def _read(files: tuple[str, ...]) -> Splits:
    label_bytes, num_classes = (2, 100) if os.path.basename(files[0]) == "train.bin" else (1, 10)
    size = label_bytes + math.prod(_IMAGE)
    splits: dict[bool, tuple[str, list[np.ndarray]]] = {}
    for path in files:
        num_bytes = file_size(path)
        if num_bytes % size or not num_bytes:
            raise HpxferError(f"{path}: must be records of {size} bytes, got {num_bytes} bytes in all")
        records = np.frombuffer(unpacked(path, num_bytes), np.uint8).reshape(-1, size)
        if (wrong := np.flatnonzero(records[:, label_bytes - 1] >= num_classes)).size:
            got = f"{records[wrong[0], label_bytes - 1]} in record {wrong[0]}"
            raise HpxferError(f"{path}: a label must be below {num_classes}, got {got}")
        splits.setdefault(os.path.basename(path).startswith("test"), (path, []))[1].append(records)
    return [
        Split(
            name=name,
            inputs=np.concatenate([each[:, label_bytes:] for each in found]).reshape(-1, *_IMAGE),
            targets=np.concatenate([each[:, label_bytes - 1] for each in found]).astype(np.int64),
        )
        for name, found in splits.values()
    ]


CIFAR = SampleSource(name="cifar", usage="cifar:FOLDER", open=_open)
