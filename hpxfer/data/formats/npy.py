"""npy: one array of token ids that `numpy.save` wrote, with numpy's header.

OLMo calls files without that header .npy too. The sources `uint16:` and `uint32:` read those.
"""

from __future__ import annotations

import io

import numpy as np

from hpxfer.data.sources.dataset import DataFile
from hpxfer.errors import HpxferError

MAGIC = b"\x93NUMPY"
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def is_one(head: bytes) -> bool:
    return head.startswith(MAGIC)


def opened(path: str, head: bytes, num_bytes: int) -> tuple[str, DataFile]:
    """Return (format, part) of an array. Raise HpxferError unless it is one row of whole numbers."""
    stream = io.BytesIO(head)
    try:
        shape, _, dtype = _READERS[np.lib.format.read_magic(stream)](stream)
    except Exception:  # of numpy's parser, which passes on whatever Python's tokenizer raises
        raise HpxferError(f"{path}: must be an array of `numpy.save`, got a broken header; write it again") from None
    if len(shape) != 1 or dtype.kind not in "ui" or (dtype.byteorder == ">" and dtype.itemsize > 1):
        got = f"an array of {dtype} of {len(shape)} dimension{'s' * (len(shape) != 1)}"
        raise HpxferError(f"{path}: must be one row of whole numbers, little-endian, got {got}; write it again")
    start, expected = stream.tell(), stream.tell() + shape[0] * dtype.itemsize
    if num_bytes != expected:
        raise HpxferError(
            f"{path}: the header counts {shape[0]} tokens, which make a file of {expected} bytes, got {num_bytes}; "
            "write it again"
        )
    unsigned = f"<u{dtype.itemsize}"  # a negative id becomes one beyond every vocabulary
    part = DataFile(path=path, num_tokens=shape[0], dtype=unsigned, header=head[:start])
    return f"npy_{dtype.itemsize * 8}", part
