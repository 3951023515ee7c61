"""images: folders of image files, one folder per class, read by Pillow (the extra `images`).

The folder holds the folders of the classes, or `train` and perhaps one of `test`, `val` and `valid`, which hold them.
Classes are numbered in the order of their names. All images have one size. If the first is gray, all are read as gray,
else as RGB.
"""

from __future__ import annotations

import os
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
        tests = [name for name in ("test", "val", "valid") if os.path.isdir(os.path.join(folder, name))]
        if len(tests) > 1:
            raise HpxferError(f"{folder}: must hold one test split, got {' and '.join(tests)}")
        folders = [train, *(os.path.join(folder, name) for name in tests)]
    files = [_images(each) for each in folders]
    if not files[0]:
        rule = f"must hold one folder of images per class, ending in {', '.join(ENDINGS)}"
        raise HpxferError(f"{folders[0]}: {rule}, got no image")
    return stored(_read, [path for each in files for path in each])


def _images(folder: str) -> list[str]:
    """Return the images of a split, in order. Each path ends in CLASS/FILE."""
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    return [
        os.path.join(folder, name, file)
        for name in classes
        for file in sorted(os.listdir(os.path.join(folder, name)))
        if file.lower().endswith(ENDINGS) and not file.startswith(".")
    ]


def _read(files: tuple[str, ...]) -> Splits:
    first = _pixels(files[0])
    if first.size * len(files) > MAX_BYTES:
        raise HpxferError(f"{files[0]}: {len(files)} such images must fit into {MAX_BYTES} bytes")
    classes = [os.path.basename(os.path.dirname(path)) for path in files]
    numbers = {name: number for number, name in enumerate(sorted(set(classes)))}
    splits: dict[str, list[tuple[np.ndarray, int]]] = {}
    for path, name in zip(files, classes, strict=True):
        split = splits.setdefault(os.path.dirname(os.path.dirname(path)), [])
        split.append((_pixels(path, files[0], first), numbers[name]))
    return [
        Split(name=folder, inputs=np.stack([x for x, _ in found]), targets=np.array([y for _, y in found], np.int64))
        for folder, found in splits.items()
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
