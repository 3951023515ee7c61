"""Files of samples, written byte by byte: IDX, CIFAR, and numbers that tell samples apart."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

HEIGHT, WIDTH = 3, 5


def numbered(count: int, size: int = HEIGHT * WIDTH, start: int = 0) -> np.ndarray:
    """Return `count` rows of bytes that begin with their number, uint8 [count, size]."""
    rows = np.random.default_rng(start).integers(0, 256, (count, size), dtype=np.uint8)
    rows[:, 0], rows[:, 1] = (np.arange(start, start + count) >> 8), np.arange(start, start + count) & 255
    return rows


def numbers_of(rows: np.ndarray) -> np.ndarray:
    """Return the numbers that `numbered` wrote."""
    return rows[..., 0].astype(int) * 256 + rows[..., 1]


def idx_bytes(shape: Sequence[int], content: bytes, kind: int = 8) -> bytes:
    return struct.pack(">BBBB", 0, 0, kind, len(shape)) + struct.pack(f">{len(shape)}I", *shape) + content


def write_idx(
    folder: Path, split: str, images: np.ndarray, labels: Sequence[int], *, packed: bool = False, dot: str = "-"
) -> None:
    """Write a pair of files, e.g. of the split `train` or `emnist-letters-train`."""
    contents = {
        f"{split}-images{dot}idx3-ubyte": idx_bytes((len(images), HEIGHT, WIDTH), images.tobytes()),
        f"{split}-labels{dot}idx1-ubyte": idx_bytes((len(labels),), bytes(labels)),
    }
    for name, content in contents.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


def mnist(folder: Path, *, train: int = 40, test: int = 12, classes: int = 4) -> str:
    """Write a small set of both splits and return its source. Test images are numbered from 1000 on."""
    write_idx(folder, "train", numbered(train), [k % classes for k in range(train)])
    if test:
        write_idx(folder, "t10k", numbered(test, start=1000), [k % classes for k in range(test)])
    return f"idx:{folder}"


def cifar_records(images: np.ndarray, *labels: Sequence[int]) -> bytes:
    return b"".join(bytes(label) + image.tobytes() for image, *label in zip(images, *labels, strict=True))
