"""builtin:shapes: gray images of 16 x 16 pixels, 100 classes, drawn on the spot. An image is a function of its number.

A class is a line of four strokes. Its template is drawn once, at four times the resolution. An image shows the template
through a quadratic map (shift, rotation, scale, shear and bend), at a contrast of its own, with noise in each pixel.

Every step is integer arithmetic, or a product of float64 matrices of integers whose sums stay below 2^53, which is
exact in any order. So all machines draw the same bits. Tests pin them: change VERSION with anything that moves them.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.windows import word_parts, words

VERSION = 1
SIDE, CLASSES = 16, 100
# What pixels are normalized by: about the mean and standard deviation of 50,000 images. They are fixed by the version.
MEAN, STD = 80.0, 59.0
_FINE = 4  # points of a template per pixel
_MARGIN = 24  # empty points around a template, so that what is out of sight is dark
_EDGE = SIDE * _FINE + 2 * _MARGIN
_STROKES, _RADIUS = 4, 3  # lines of a class, half their thickness in points
_UNIT = 8  # bits behind the point of a coordinate
# The largest coefficients of the map, in 2^-8 points: shift; per half pixel from the center; per its square.
_SHIFT, _LINEAR, _BEND = 10 << _UNIT, 320, 16
_GROUND, _NOISE = 56, 40  # the gray of the ground, and the strength of the noise
_WORDS = 4 + SIDE * SIDE // 2  # class, contrast and map; noise of 4 bytes per pixel


def draw(stream: str, begin: int, end: int, classes: tuple[int, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images `begin` to `end` of a stream, uint8 [N, 256], and the place of their classes in `classes`, [N]."""
    found = words(f"hpxfer shapes {VERSION} {stream}", begin, end, _WORDS)
    chosen = ((found[:, 0] >> np.uint64(32)) * np.uint64(len(classes)) >> np.uint64(32)).astype(np.int64)
    contrast = 128 + ((found[:, 0] & np.uint64(0xFFFF)) * np.uint64(128) >> np.uint64(16)).astype(np.int32)
    rows, columns = _coordinates(found[:, 1:4])
    at = np.array(classes)[chosen][:, None] * (_EDGE * _EDGE) + rows * _EDGE + columns
    ink = _templates()[at].astype(np.int32) * contrast[:, None] >> 8
    # The sum of four bytes has mean 510 and a standard deviation of 147.8.
    four = word_parts(found[:, 4:], "<u1").reshape(end - begin, SIDE * SIDE, 4).sum(axis=2, dtype=np.int32)
    noise = (four - 510) * _NOISE >> 8
    return np.clip(ink + noise + _GROUND, 0, 255).astype(np.uint8), chosen


def _coordinates(found: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and columns of a template that the pixels of images show, [N, 256] each, for words [N, 3]."""
    # Twelve coefficients in -256 to 255 from 16 bits each, the difference of two bytes: small ones are likelier.
    pairs = word_parts(found, "<u1").reshape(len(found), 12, 2).astype(np.float64)
    random = pairs[:, :, 0] - pairs[:, :, 1]
    basis, start = _basis()
    out = []
    for axis in (0, 1):
        moved = (random[:, 6 * axis : 6 * axis + 6] @ basis).astype(np.int64) >> 8
        place = (moved + start[axis] >> _UNIT) + _MARGIN + SIDE * _FINE // 2
        out.append(np.clip(place, 0, _EDGE - 1))
    return out[0], out[1]


@lru_cache(maxsize=1)
def _basis() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return what each coefficient does to each pixel, [6, 256], and where pixels lie without them, [2, 256]."""
    half = 2 * np.arange(SIDE) - SIDE + 1  # half pixels from the center
    y, x = (grid.ravel() for grid in np.meshgrid(half, half, indexing="ij"))
    one = np.ones_like(x)
    basis = np.stack(
        [_SHIFT * one, _LINEAR * x, _LINEAR * y, _BEND * x * y, _BEND * (x * x - 85), _BEND * (y * y - 85)]
    )
    return basis.astype(np.float64), np.stack([y, x]).astype(np.int64) * (_FINE << _UNIT) // 2


@lru_cache(maxsize=1)
def _templates() -> NDArray[np.uint8]:
    """Return the templates of all classes, uint8 [CLASSES * _EDGE * _EDGE]."""
    random = words(f"hpxfer shapes {VERSION} templates", 0, CLASSES, _STROKES + 1)
    spread = np.uint64(44)
    corners = np.stack([((random >> np.uint64(s)) % spread).astype(np.int64) for s in (8, 40)], axis=2)
    corners += _MARGIN + (SIDE * _FINE - 44) // 2
    rows, columns = np.indices((_EDGE, _EDGE))
    ink = np.zeros((CLASSES, _EDGE, _EDGE), bool)
    for stroke in range(_STROKES):
        for label in range(CLASSES):
            ink[label] |= _near(rows, columns, corners[label, stroke], corners[label, stroke + 1])
    padded = np.pad(ink, ((0, 0), (2, 2), (2, 2))).astype(np.int32)
    of_rows = np.stack([padded[:, k : k + _EDGE] for k in range(5)]).sum(axis=0)
    blurred = np.stack([of_rows[:, :, k : k + _EDGE] for k in range(5)]).sum(axis=0)
    return np.asarray(blurred * 255 // 25, np.uint8).ravel()


def _near(
    rows: NDArray[np.int64], columns: NDArray[np.int64], a: NDArray[np.int64], b: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which points lie within _RADIUS of the line from a to b."""
    along = b - a
    length = int(along @ along)
    y, x = rows - a[0], columns - a[1]
    t = y * along[0] + x * along[1]
    beside = y * along[1] - x * along[0]
    inside = (t >= 0) & (t <= length) & (beside * beside <= _RADIUS**2 * length)
    ends = [(rows - p[0]) ** 2 + (columns - p[1]) ** 2 <= _RADIUS**2 for p in (a, b)]
    return np.asarray(inside | ends[0] | ends[1])
