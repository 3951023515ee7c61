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
from hpxfer.data.samples import Facts, Split, Splits, StoredSamples, num_classes, require_equal, stored
from hpxfer.data.sources import SampleSource
from hpxfer.errors import HpxferError, cut
from hpxfer.host.files import folder_at

_IMAGES = re.compile(r"(.*-)?train-images[-.]idx3-ubyte(\.gz)?")
_RULE = "must name a folder with train-images-idx3-ubyte or such a file, plain or .gz"


def is_images(name: str) -> bool:
    """Return whether a file of this name holds training images."""
    return _IMAGES.fullmatch(name) is not None


def _open(path: str) -> StoredSamples | None:
    if (folder := folder_at(path)) is not None:
        found = sorted(filter(is_images, os.listdir(folder)))
        plain = [name for name in found if not (name.endswith(".gz") and name.removesuffix(".gz") in found)]
        if len(plain) != 1:
            got = cut(", ".join(plain), 300) or "none"
            raise HpxferError(f"data.source: {_RULE}, got {got} in {cut(folder, 300)}; name one file of images")
        path = os.path.join(folder, plain[0])
    return stored(_facts, _splits, _pairs(path)) if os.path.lexists(path) else None


def _pairs(images: str) -> list[str]:
    """Return the files of images and labels of the training split, and of the test split if there is one."""
    folder, name = os.path.split(images)
    name = name.removesuffix(".gz")
    files = [images, _beside(folder, name)]
    for test in ("t10k", "test") if "train-images" in name else ():
        of_test = name.replace("train-images", f"{test}-images")
        if found := _file(folder, of_test):
            return [*files, found, _beside(folder, of_test)]
        if lone := _file(folder, _labels(of_test)):
            raise HpxferError(f"{lone}: must have its images beside it in {of_test} or {of_test}.gz, got no such file")
    return files


def _file(folder: str, name: str) -> str | None:
    """Return the file of this name, plain or packed, with a hyphen or a dot before `idx`; None if there is none."""
    other = re.sub(r"([-.])idx(?=\d-ubyte$)", lambda found: f"{'-' if found[1] == '.' else '.'}idx", name)
    paths = (os.path.join(folder, f"{each}{packed}") for each in (name, other) for packed in ("", ".gz"))
    return next(filter(os.path.isfile, paths), None)


def _labels(images: str) -> str:
    return images.replace("images", "labels").replace("idx3", "idx1")


def _beside(folder: str, images: str) -> str:
    """Return the file of labels of a file of images."""
    path, name = os.path.join(folder, images), _labels(images)
    if name == images:
        raise HpxferError(f"{path}: must have `images` in its name, so that its labels can be found")
    if (found := _file(folder, name)) is None:
        raise HpxferError(f"{path}: must have its labels beside it in {name} or {name}.gz, got no such file")
    return found


def _shape(path: str) -> tuple[int, ...]:
    """Return the dimensions that a file states. Raise HpxferError for another format."""
    head = unpacked(path, 20)
    if len(head) < 4 or head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 4 or len(head) < 4 + 4 * head[3]:
        raise HpxferError(
            f"{path}: must start as an IDX file of bytes, 00 00 08, its number of dimensions and their sizes, got "
            f"{head[:4].hex(' ') or 'an empty file'}; give it the ending .gz if packed"
        )
    return tuple(np.frombuffer(head, ">u4", count=head[3], offset=4).tolist())


def _read(path: str, num_dimensions: tuple[int, ...], what: str) -> np.ndarray:
    shape = _shape(path)
    if len(shape) not in num_dimensions or 0 in shape[1:]:
        raise HpxferError(f"{path}: must hold {what}, got the dimensions {shape}")
    start = 4 + 4 * len(shape)
    num_bytes = start + math.prod(shape)
    content = unpacked(path, num_bytes + 1)
    if len(content) != num_bytes:
        got = "more" if len(content) > num_bytes else len(content)
        raise HpxferError(f"{path}: must have {num_bytes} bytes for {' x '.join(map(str, shape))} {what}, got {got}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _facts(files: tuple[str, ...]) -> Facts:
    labels = [_read(path, (1,), "labels").astype(np.int64) for path in files[1::2]]
    return Facts(shape=_shape(files[0])[1:], is_pixels=True, num_classes=num_classes(*labels)[1])


def _splits(files: tuple[str, ...]) -> Splits:
    images = [_read(path, (2, 3, 4), "images") for path in files[::2]]
    labels = [_read(path, (1,), "labels").astype(np.int64) for path in files[1::2]]
    for path, found, named, own in zip(files[::2], images, files[1::2], labels, strict=True):
        require_equal(path, len(found), named, len(own))
    if len({found.shape[1:] for found in images}) > 1:
        got = " and ".join("x".join(map(str, found.shape[1:])) for found in images)
        raise HpxferError(f"{files[2]}: must hold images of the size of {files[0]}, got {got}")
    first, _ = num_classes(*labels)
    return [
        Split(name=name, inputs=found.reshape(len(found), -1), targets=own - first, first=first)
        for name, found, own in zip(files[1::2], images, labels, strict=True)
    ]


IDX = SampleSource(name="idx", usage="idx:FOLDER-or-file", open=_open)
