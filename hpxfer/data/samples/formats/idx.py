"""idx: the format of MNIST, Fashion-MNIST and EMNIST: images of idx3-ubyte and labels of idx1-ubyte, plain or .gz.

A file starts with two zero bytes, the type (8: unsigned byte), the number of dimensions, and each dimension as a
big-endian int32. In a folder the training images are `train-images-idx3-ubyte` or `PREFIX-train-images-idx3-ubyte`.
The names of the other files follow: `labels` and `idx1` instead of `images` and `idx3`, and `t10k` or `test` instead of
`train`. A dot may stand before `idx`, in any of them. A file whose name has `train-images` is read as a folder with
that set alone. Any other file of images has no test split.
"""

from __future__ import annotations

import os
import re

import numpy as np

from hpxfer.data.samples.facts import Facts
from hpxfer.data.samples.formats.reading import AGAIN, either, num_classes, opened, read, read_exactly, require_equal
from hpxfer.data.samples.row import SampleSource
from hpxfer.data.samples.stored import Format, Split, Splits, StoredSamples, stored
from hpxfer.errors import HpxferError, cut
from hpxfer.host.files import folder_at

_IMAGES = re.compile(r"(.*-)?train-images[-.]idx3-ubyte(\.gz)?")
_UNSIGNED_BYTE = 8
_MAX_DIMENSIONS = 4
_RULE = "must name a folder with train-images-idx3-ubyte or such a file, plain or .gz"


def is_images(name: str) -> bool:
    """Return whether a file of this name holds training images."""
    return _IMAGES.fullmatch(name) is not None


def _open(path: str) -> StoredSamples | None:
    if (folder := folder_at(path)) is not None:
        found = sorted(filter(is_images, os.listdir(folder)))
        plain = [name for name in found if name.removesuffix(".gz") == name or name.removesuffix(".gz") not in found]
        if len(plain) != 1:
            got = cut(", ".join(plain), 300) or "none"
            raise HpxferError(f"data.source: {_RULE}, got {got} in {cut(folder, 300)}; name one file of images")
        path = os.path.join(folder, plain[0])
    if not os.path.lexists(path):
        return None
    return stored(_FORMAT, _pairs(path))


def _pairs(images: str) -> tuple[str, ...]:
    """Return the files of images and labels of the training split, and of the test split if there is one."""
    folder, name = os.path.split(images)
    name = name.removesuffix(".gz")
    files = [images, _labels(folder, name)]
    if "train-images" in name:
        for test in ("t10k", "test"):
            of_test = name.replace("train-images", f"{test}-images")
            if found := _file(folder, of_test):
                return (*files, found, _labels(folder, of_test))
            if lone := _file(folder, _labels_name(of_test)):
                raise HpxferError(
                    f"{lone}: must have its images beside it in {of_test} or {of_test}.gz, got no such file; fetch "
                    "both files of the test split, or remove this one to hold out training samples"
                )
    return tuple(files)


def _file(folder: str, name: str) -> str | None:
    """Return the file of this name, plain or packed, with a hyphen or a dot before `idx`; None if there is none."""
    other = re.sub(r"([-.])idx(?=\d-ubyte$)", lambda found: f"{'-' if found[1] == '.' else '.'}idx", name)
    return either(os.path.join(folder, name)) or either(os.path.join(folder, other))


def _labels_name(images: str) -> str:
    return images.replace("images", "labels").replace("idx3", "idx1")


def _labels(folder: str, images: str) -> str:
    name = _labels_name(images)
    if name == images:
        raise HpxferError(
            f"{os.path.join(folder, images)}: must have `images` in its name, so that its labels can be found, got "
            f"{cut(images, 300)}; keep the usual names, such as train-images-idx3-ubyte"
        )
    found = _file(folder, name)
    if found is None:
        raise HpxferError(
            f"{os.path.join(folder, images)}: must have its labels beside it in {name} or {name}.gz, got no such file; "
            "fetch both files, and keep their usual names"
        )
    return found


def _shape(path: str) -> tuple[int, ...]:
    """Return the dimensions that a file states. Raise HpxferError for another format."""
    with opened(path) as file:
        head = read(file, path, 4)
        known = len(head) == 4 and head[:3] == bytes((0, 0, _UNSIGNED_BYTE)) and 1 <= head[3] <= _MAX_DIMENSIONS
        sizes = read(file, path, 4 * head[3]) if known else b""
    if not known or len(sizes) < 4 * head[3]:
        raise HpxferError(
            f"{path}: must start as an IDX file of bytes, 00 00 08 and its number of dimensions, got "
            f"{head.hex(' ') or 'an empty file'}{' and no more' * known}; {AGAIN}, or give it the ending .gz if packed"
        )
    return tuple(int(size) for size in np.frombuffer(sizes, ">u4"))


def _read(path: str, num_dimensions: tuple[int, ...], what: str) -> np.ndarray:
    shape = _shape(path)
    if len(shape) not in num_dimensions or 0 in shape[1:]:
        raise HpxferError(f"{path}: must hold {what}, got the dimensions {shape}; name the file of {what}")
    num_bytes = int(np.prod([*map(int, shape)], dtype=object))
    content = read_exactly(path, 4 + 4 * len(shape), num_bytes, f"{' x '.join(map(str, shape))} {what}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _facts(files: tuple[str, ...]) -> Facts:
    shape = _shape(files[0])
    labels = [_read(path, (1,), "labels").astype(np.int64) for path in files[1::2]]
    return Facts(shape=shape[1:], is_pixels=True, num_classes=num_classes(*labels)[1])


def _splits(files: tuple[str, ...]) -> Splits:
    images = [_read(path, (2, 3, 4), "images") for path in files[::2]]
    labels = [_read(path, (1,), "labels").astype(np.int64) for path in files[1::2]]
    for path, found, named, own in zip(files[::2], images, files[1::2], labels, strict=True):
        require_equal(path, len(found), named, len(own))
    if len({found.shape[1:] for found in images}) > 1:
        got = " and ".join("x".join(map(str, found.shape[1:])) for found in images)
        raise HpxferError(f"{files[2]}: must hold images of the size of {files[0]}, got {got}; name files of one set")
    first, _ = num_classes(*labels)
    train, *test = (
        Split(name=name, inputs=found.reshape(len(found), -1), targets=own - first, first=first)
        for name, found, own in zip(files[1::2], images, labels, strict=True)
    )
    return Splits(train=train, test=test[0] if test else None)


_FORMAT = Format(facts=_facts, read=_splits)
IDX = SampleSource(name="idx", usage="idx:FOLDER-or-file", open=_open)
