"""idx: the format of MNIST, Fashion-MNIST and EMNIST: images of idx3-ubyte and labels of idx1-ubyte, plain or .gz.

A file starts with two zero bytes, the type (8: unsigned byte), the number of dimensions, and each dimension as a
big-endian int32. In a folder the training images are `train-images-idx3-ubyte` or `PREFIX-train-images-idx3-ubyte`.
The names of the other files follow: `labels` and `idx1` instead of `images` and `idx3`, and `t10k` or `test` instead of
`train`. A dot may stand before `idx`, in any of them. A file whose name has `train-images` is read as a folder with
that set alone. Any other file of images has no test split.
"""

from __future__ import annotations

import math
import os
import re

import numpy as np

from hpxfer.data.files import unpacked
from hpxfer.data.samples import Split, Splits, StoredSamples, stored
from hpxfer.data.sources import SampleSource
from hpxfer.errors import HpxferError, cut
from hpxfer.host import folder_at

_IMAGES = re.compile(r"(.*-)?train-images[-.]idx3-ubyte(\.gz)?")


def is_images(name: str) -> bool:
    """Return whether a file of this name holds training images."""
    return _IMAGES.fullmatch(name) is not None


def _open(path: str) -> StoredSamples | None:
    if (folder := folder_at(path)) is not None:
        found = sorted(filter(is_images, os.listdir(folder)))
        plain = [name for name in found if not (name.endswith(".gz") and name.removesuffix(".gz") in found)]
        if len(plain) != 1:
            rule = "must name a folder with one train-images-idx3-ubyte, or such a file, plain or .gz"
            got = cut(", ".join(plain), 300) or "none"
            raise HpxferError(f"data.source: {rule}, got {got} in {cut(folder, 300)}")
        path = os.path.join(folder, plain[0])
    return stored(_read, _pairs(path)) if os.path.lexists(path) else None


def _pairs(images: str) -> list[str]:
    """Return the files of images and labels of the training split, and of the test split if there is one."""
    folder, name = os.path.split(images)
    name = name.removesuffix(".gz")
    if _labels(name) == name:
        raise HpxferError(f"{images}: must have `images` in its name, so that its labels can be found")
    files = [images, _beside(folder, _labels(name), images)]
    for test in ("t10k", "test") if "train-images" in name else ():
        of_test = name.replace("train-images", f"{test}-images")
        if found := _file(folder, of_test):
            return [*files, found, _beside(folder, _labels(of_test), found)]
        if lone := _file(folder, _labels(of_test)):
            _beside(folder, of_test, lone)
    return files


def _labels(images: str) -> str:
    return images.replace("images", "labels").replace("idx3", "idx1")


def _file(folder: str, name: str) -> str | None:
    """Return the file of this name, plain or packed, with a hyphen or a dot before `idx`; None if there is none."""
    other = re.sub(r"([-.])idx(?=\d-ubyte$)", lambda found: f"{'-' if found[1] == '.' else '.'}idx", name)
    paths = (os.path.join(folder, f"{each}{packed}") for each in (name, other) for packed in ("", ".gz"))
    return next(filter(os.path.isfile, paths), None)


def _beside(folder: str, name: str, file: str) -> str:
    if (found := _file(folder, name)) is None:
        raise HpxferError(f"{file}: must have {name} or {name}.gz beside it, got no such file")
    return found


def _array(path: str, num_dimensions: tuple[int, ...], what: str) -> np.ndarray:
    """Return the array of a file. Raise HpxferError for another format, other dimensions, and another size."""
    head = unpacked(path, 20)
    if len(head) < 4 or head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 4 or len(head) < 4 + 4 * head[3]:
        rule = "must start as an IDX file of bytes, 00 00 08, its number of dimensions and their sizes"
        got = head[:4].hex(" ") or "an empty file"
        raise HpxferError(f"{path}: {rule}, got {got} (a packed file ends in .gz)")
    shape = tuple(np.frombuffer(head, ">u4", count=head[3], offset=4).tolist())
    if len(shape) not in num_dimensions or 0 in shape[1:]:
        raise HpxferError(f"{path}: must hold {what}, got the dimensions {shape}")
    start = 4 + 4 * len(shape)
    num_bytes = start + math.prod(shape)
    content = unpacked(path, num_bytes + 1)
    if len(content) != num_bytes:
        got = "more" if len(content) > num_bytes else str(len(content))
        raise HpxferError(f"{path}: must have {num_bytes} bytes for {' x '.join(map(str, shape))} {what}, got {got}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read(files: tuple[str, ...]) -> Splits:
    return [
        Split(
            name=labels,
            inputs=_array(images, (2, 3, 4), "images"),
            targets=_array(labels, (1,), "labels").astype(np.int64),
        )
        for images, labels in zip(files[::2], files[1::2], strict=True)
    ]


IDX = SampleSource(name="idx", usage="idx:FOLDER-or-file", open=_open)
