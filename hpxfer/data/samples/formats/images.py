"""images: folders of image files, one folder per class, read by Pillow (the extra `images`).

The folder holds the folders of the classes, or `train` and perhaps one of `test`, `val` and `valid`, which hold them.
Classes are numbered in the order of their names. All images have one size. If the first is gray, all are read as gray,
else as RGB.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from hpxfer.data.samples.facts import Facts
from hpxfer.data.samples.formats.reading import MAX_BYTES
from hpxfer.data.samples.row import SampleSource
from hpxfer.data.samples.stored import Format, Split, Splits, StoredSamples, stored
from hpxfer.errors import HpxferError, cut
from hpxfer.host.files import folder_at, open_regular, reason

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_TEST = ("test", "val", "valid")
# Pillow has 8 bits per channel in these modes, and cuts larger numbers off when it converts from another one.
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
_KINDS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")


def _open(path: str) -> StoredSamples | None:
    if (folder := folder_at(path)) is None:
        if os.path.lexists(path):
            raise HpxferError(
                f"data.source: images: must name a folder, got the file {cut(path, 300)}; name its folder"
            )
        return None
    return stored(_FORMAT, [path for files in _found(folder).values() for path in files] or _none(folder))


def _none(folder: str) -> NoReturn:
    raise HpxferError(
        f"{folder}: must hold one folder of images per class, ending in {', '.join(ENDINGS)}, got no image; name the"
        " folder above those of the classes"
    )


def _found(folder: str) -> dict[str, list[str]]:
    """Return the images of the training split and of the test split, in order. Each path ends in CLASS/FILE."""
    if not os.path.isdir(os.path.join(folder, "train")):
        return {"train": _images(folder)}
    tests = [name for name in _TEST if os.path.isdir(os.path.join(folder, name))]
    if len(tests) > 1:
        raise HpxferError(f"{folder}: must hold one test split, got {' and '.join(tests)}; leave one of them")
    found = {name: _images(os.path.join(folder, name)) for name in ("train", *tests)}
    return found if found["train"] else _none(os.path.join(folder, "train"))


def _images(folder: str) -> list[str]:
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    return [
        os.path.join(folder, name, file)
        for name in classes
        for file in sorted(os.listdir(os.path.join(folder, name)))
        if file.lower().endswith(ENDINGS) and not file.startswith(".")
    ]


def _class(path: str) -> str:
    return os.path.basename(os.path.dirname(path))


def _facts(files: tuple[str, ...]) -> Facts:
    pixels = _pixels(files[0], None)
    return Facts(shape=pixels.shape, is_pixels=True, num_classes=len(set(map(_class, files))))


def _splits(files: tuple[str, ...]) -> Splits:
    first = _pixels(files[0], None)
    if first.size * len(files) > MAX_BYTES:
        raise HpxferError(
            f"{files[0]}: {len(files)} such images must fit into {MAX_BYTES} bytes; name fewer or smaller"
        )
    numbers = {name: number for number, name in enumerate(sorted(set(map(_class, files))))}
    folders = list(dict.fromkeys(os.path.dirname(os.path.dirname(path)) for path in files))
    train, *test = (_split(folder, files, first, numbers) for folder in folders)
    return Splits(train=train, test=test[0] if test else None)


def _split(folder: str, files: tuple[str, ...], first: np.ndarray, numbers: dict[str, int]) -> Split:
    own = [path for path in files if os.path.dirname(os.path.dirname(path)) == folder]
    inputs = np.stack([_pixels(path, (files[0], first)).ravel() for path in own])
    return Split(name=folder, inputs=inputs, targets=np.array([numbers[_class(path)] for path in own], np.int64))


def _pixels(path: str, first: tuple[str, np.ndarray] | None) -> np.ndarray:
    """Return an image, uint8 [height, width] or [height, width, 3], of the size and kind of the first one."""
    try:
        with open_regular(path) as file, _pillow().open(file, formats=_KINDS) as image:
            if first is not None and (image.height, image.width) != first[1].shape[:2]:
                size = f"{first[1].shape[1]} x {first[1].shape[0]}"
                rule = f"must have the size of {first[0]}, {size} pixels"
                raise HpxferError(f"{path}: {rule}, got {image.width} x {image.height}; give all images one size")
            if image.mode not in _MODES:
                raise HpxferError(f"{path}: must have 8 bits per channel, got the mode {image.mode}; save it again so")
            is_gray = image.mode in ("1", "L", "LA") if first is None else first[1].ndim == 2
            return np.asarray(image.convert("L" if is_gray else "RGB"), np.uint8)
    except HpxferError:
        raise
    except OSError as error:
        why = reason(error) if error.strerror else str(error)
        raise HpxferError(f"{path}: must be an image, got {cut(why, 200)}; remove it or save it again") from None
    except Exception as error:  # of Pillow's decoders, which raise many kinds for broken files
        raise HpxferError(f"{path}: must be an image, got {cut(str(error), 200)}; remove it or save it again") from None


@lru_cache(maxsize=1)
def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise HpxferError("data.source: images: needs Pillow; pip install 'hpxfer[images]'") from None
    return Image


_FORMAT = Format(facts=_facts, read=_splits)
IMAGES = SampleSource(name="images", usage="images:FOLDER", open=_open)
