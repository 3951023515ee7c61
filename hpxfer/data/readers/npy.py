"""npy: one array of token ids that `numpy.save` wrote, with numpy's header.

OLMo calls files without that header .npy too. The sources `uint16:` and `uint32:` read those.
"""

from __future__ import annotations

import io
from typing import IO

import numpy as np

from hpxfer.data.tokens import DataFile, counted_file
from hpxfer.errors import HpxferError

MAGIC = b"\x93NUMPY"
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def is_one(head: bytes) -> bool:
    return head.startswith(MAGIC)


def header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Return (shape, type) of the array that a stream starts with. It raises whatever Python's tokenizer raises."""
    shape, _, dtype = _READERS[np.lib.format.read_magic(stream)](stream)
    return shape, dtype


def opened(path: str, head: bytes, num_bytes: int) -> tuple[str, DataFile]:
    """Return (format, part) of an array. Raise HpxferError unless it is one row of whole numbers."""
    stream = io.BytesIO(head)
    try:
        shape, dtype = header(stream)
    except Exception:
        raise HpxferError(f"{path}: must be an array of `numpy.save`, got a broken header") from None
    if len(shape) != 1 or dtype.kind not in "ui" or (dtype.byteorder == ">" and dtype.itemsize > 1):
        got = f"an array of {dtype} of {len(shape)} dimension{'s' * (len(shape) != 1)}"
        raise HpxferError(f"{path}: must be one row of whole numbers, little-endian, got {got}")
    part = counted_file(path, head[: stream.tell()], num_bytes, shape[0], dtype.itemsize)
    return f"npy_{dtype.itemsize * 8}", part
