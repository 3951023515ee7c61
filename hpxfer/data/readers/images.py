"""images: folders of image files, one folder per class, read by Pillow (the extra `images`).

The folder holds the folders of the classes, or `train` and perhaps one of `test`, `val` and `valid`, which hold them.
Classes are numbered in the order of their names. All images have one size. If the first is gray, all are read as gray,
else as RGB.

Tiny ImageNet is read as it is shipped: the images of a class may be in its folder `images`. A split whose only folder
is `images` has their classes in a file such as `val_annotations.txt`, and without that file it is no split.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpxfer.data.files import MAX_BYTES
from hpxfer.data.samples import Split, Splits, StoredSamples, stored
from hpxfer.data.sources import SampleSource
from hpxfer.errors import HpxferError, cut
from hpxfer.host import folder_at, open_regular

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
# Pillow has 8 bits per channel in these modes, and cuts larger numbers off when it converts from another one.
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
_KINDS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")


def _open(path: str) -> StoredSamples | None:
    if (folder := folder_at(path)) is None:
        if os.path.lexists(path):
            raise HpxferError(f"data.source: images: must name a folder, got the file {cut(path, 300)}")
        return None
    folders = [folder]
    if os.path.isdir(train := os.path.join(folder, "train")):
        tests = [name for name in ("test", "val", "valid") if _has_classes(os.path.join(folder, name))]
        if len(tests) > 1:
            raise HpxferError(f"{folder}: must hold one test split, got {' and '.join(tests)}")
        folders = [train, *(os.path.join(folder, name) for name in tests)]
    found = [(each, *image) for each in folders for image in _images(each)]
    if not any(split == folders[0] for split, *_ in found):
        rule = f"must hold one folder of images per class, ending in {', '.join(ENDINGS)}"
        raise HpxferError(f"{folders[0]}: {rule}, got no image")
    splits, files, classes = zip(*found, strict=True)
    return stored(_Reader(splits=splits, classes=classes), files)


def _folders(folder: str) -> list[str]:
    """Return the names of the folders in a folder, sorted."""
    if not os.path.isdir(folder):
        return []
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _annotations(split: str) -> str:
    """Return the path of the file that has the classes of the images of a split."""
    return os.path.join(split, f"{os.path.basename(split)}_annotations.txt")


def _has_classes(split: str) -> bool:
    """Return whether a folder is a split whose classes are known."""
    return os.path.isdir(split) and (_folders(split) != ["images"] or os.path.isfile(_annotations(split)))


def _images(split: str) -> list[tuple[str, str]]:
    """Return the images of a split, each with its class, in order."""
    if _folders(split) == ["images"] and os.path.isfile(notes := _annotations(split)):
        with open_regular(notes) as file:
            lines = file.read().decode("utf-8", "replace").splitlines()
        named = dict(line.split("\t")[:2] for line in lines if "\t" in line)
        files = _files(os.path.join(split, "images"))
        if unnamed := [path for path in files if os.path.basename(path) not in named]:
            rule = "must hold a line FILE, tab, CLASS per image"
            raise HpxferError(f"{notes}: {rule}, got none of {os.path.basename(unnamed[0])}")
        return [(path, named[os.path.basename(path)]) for path in files]
    nested = {name: os.path.join(split, name, "images") for name in _folders(split)}
    of_class = {name: each if os.path.isdir(each) else os.path.dirname(each) for name, each in nested.items()}
    return [(path, name) for name, folder in of_class.items() for path in _files(folder)]


def _files(folder: str) -> list[str]:
    """Return the paths of the images in a folder, sorted."""
    names = (name for name in sorted(os.listdir(folder)) if name.lower().endswith(ENDINGS))
    return [os.path.join(folder, name) for name in names if not name.startswith(".")]


@dataclass(frozen=True)
class _Reader:
    """Reads images, of each of which the split and the class are known."""

    splits: tuple[str, ...]
    classes: tuple[str, ...]

    def __call__(self, files: tuple[str, ...]) -> Splits:
        first = _pixels(files[0])
        if first.size * len(files) > MAX_BYTES:
            raise HpxferError(f"{files[0]}: {len(files)} such images must fit into {MAX_BYTES} bytes")
        numbers = {name: number for number, name in enumerate(sorted(set(self.classes)))}
        splits: dict[str, list[tuple[np.ndarray, int]]] = {}
        for split, path, name in zip(self.splits, files, self.classes, strict=True):
            splits.setdefault(split, []).append((_pixels(path, files[0], first), numbers[name]))
        return [
            Split(name=name, inputs=np.stack([x for x, _ in found]), targets=np.array([y for _, y in found], np.int64))
            for name, found in splits.items()
        ]


def _pixels(path: str, first: str = "", pixels: np.ndarray | None = None) -> np.ndarray:
    """Return an image, uint8 [height, width] or [height, width, 3], of the size and kind of the first one."""
    try:
        with open_regular(path) as file, _pillow().open(file, formats=_KINDS) as image:
            size, mode = (image.height, image.width), image.mode
            is_gray = mode in ("1", "L", "LA") if pixels is None else pixels.ndim == 2
            found = np.asarray(image.convert("L" if is_gray else "RGB"), np.uint8) if mode in _MODES else None
    except HpxferError:
        raise
    except Exception as error:  # of Pillow's decoders, which raise many kinds for broken files
        raise HpxferError(f"{path}: must be an image, got {cut(str(error), 200)}") from None
    if pixels is not None and size != pixels.shape[:2]:
        rule = f"must have the size of {first}, {pixels.shape[1]} x {pixels.shape[0]} pixels"
        raise HpxferError(f"{path}: {rule}, got {size[1]} x {size[0]}")
    if found is None:
        raise HpxferError(f"{path}: must have 8 bits per channel, got the mode {mode}")
    return found


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise HpxferError("data.source: images: needs Pillow; pip install 'hpxfer[images]'") from None
    return Image


IMAGES = SampleSource(name="images", usage="images:FOLDER", open=_open)
