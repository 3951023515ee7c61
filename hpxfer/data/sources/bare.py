"""uint16, uint32: files of bare token ids, little-endian and without a header, as nanoGPT and OLMo write them.

The file does not say how wide an id is, so the name of the source does. The vocabulary must be given.
"""

from __future__ import annotations

import numpy as np

from hpxfer.data.formats import arrow, llmc, megatron, npy
from hpxfer.data.sources.dataset import DataFile, Dataset, file_size, read_bytes
from hpxfer.data.sources.files import matching_files
from hpxfer.data.sources.row import DataSource
from hpxfer.data.sources.tokens import load_mapped
from hpxfer.errors import HpxferError
from hpxfer.scaling.shape import MAX_DIM

# So many bytes at the start of each file are read before it is taken for ids of uint16. Ids of 32 bits below a million,
# more than any vocabulary has, have an upper half of at most 15. So many pairs that speak for them are no chance.
_HEAD_BYTES = 8192
_MOST_UPPER = 15
_SURE_PAIRS = 64
_HEADERS = (
    ("llm.c", llmc.is_one),
    ("numpy's", npy.is_one),
    ("Megatron's index", megatron.is_index),
    ("Arrow", arrow.is_one),
)


def pairs_of_uint32(content: bytes) -> int:
    """Return how many ids of 32 bits speak for uint32 in bytes that may be ids of uint16, 0 if an id speaks against it.

    Of an id of 32 bits, the upper half is 0 or little more. Ids of 16 bits take all places alike, however small the
    vocabulary is, so only lower halves that are far beyond every upper half count.
    """
    halves = np.frombuffer(content[: len(content) // 4 * 4], "<u2")
    lower, upper = halves[::2], int(halves[1::2].max(initial=0))
    return 0 if upper > _MOST_UPPER else int(np.count_nonzero(lower > (_MOST_UPPER + 1) * upper))


def _part(path: str, token_bytes: int) -> DataFile:
    num_bytes, head = file_size(path), read_bytes(path, 0, _HEAD_BYTES)
    for name, is_one in _HEADERS:
        if is_one(head):
            raise HpxferError(
                f"{path}: must hold bare ids, got a file with the header of {name}; write tokens: instead of "
                f"uint{8 * token_bytes}:"
            )
    if num_bytes % token_bytes:
        raise HpxferError(
            f"{path}: must hold whole ids of {token_bytes} bytes, got {num_bytes} bytes; copy it again if it was cut "
            f"off, or name another type than uint{8 * token_bytes}"
        )
    if token_bytes == 2 and num_bytes % 4 == 0 and pairs_of_uint32(head) >= _SURE_PAIRS:
        raise HpxferError(
            f"{path}: must hold ids of uint16, got ids of uint32: read as uint16, every second one of the first "
            f"{len(head) // 2} is the upper half of an id; write uint32: instead of uint16:"
        )
    return DataFile(path=path, num_tokens=num_bytes // token_bytes, dtype=f"<u{token_bytes}")


def _source(token_bytes: int) -> DataSource:
    name = f"uint{8 * token_bytes}"

    def opened(path: str) -> Dataset | None:
        parts = tuple(_part(found, token_bytes) for found in matching_files(path))
        return Dataset(format=name, parts=parts, token_bytes=token_bytes) if parts else None

    return DataSource(
        name=name,
        usage=f"{name}:PATH-or-glob",
        tokenizers={},
        max_vocab_size=min(MAX_DIM, 2 ** (8 * token_bytes)),
        open=opened,
        load=load_mapped,
    )


UINT16 = _source(2)
UINT32 = _source(4)
