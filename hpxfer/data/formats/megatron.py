"""megatron: NAME.bin with the bare ids of all sequences, beside NAME.idx with their type and lengths (Megatron-LM).

The index is, little-endian: `MMIDIDX`, two zero bytes, uint64 version 1, uint8 type, uint64 number of sequences, uint64
number of document indices, int32 length of each sequence, int64 byte offset of each sequence, int64 document indices.
"""

from __future__ import annotations

import os

import numpy as np

from hpxfer.data.sources.dataset import DataFile, file_size, read_bytes
from hpxfer.errors import HpxferError

MAGIC = b"MMIDIDX\x00\x00"
HEAD_BYTES = 9 + 8 + 1 + 8 + 8
TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


def is_index(head: bytes) -> bool:
    return head.startswith(MAGIC)


def index_of(path: str) -> str:
    return f"{path.removesuffix('.bin')}.idx"


def has_index(path: str) -> bool:
    return path.endswith(".bin") and os.path.isfile(index_of(path))


def opened(path: str, num_bytes: int) -> tuple[str, DataFile]:
    """Return (format, part) of the ids beside an index. Raise HpxferError unless the two fit to each other."""
    index = index_of(path)
    head = read_bytes(index, 0, HEAD_BYTES)
    if not is_index(head) or len(head) < HEAD_BYTES:
        raise HpxferError(f"{index}: must be Megatron's index of {path}, got another file; write both again")
    version, code = int.from_bytes(head[9:17], "little"), head[17]
    num_sequences = int.from_bytes(head[18:26], "little")
    if version != 1:
        raise HpxferError(f"{index}: must be of version 1, got {version}; write it again with Megatron-LM")
    if code not in TYPES:
        raise HpxferError(f"{index}: must hold whole numbers, got Megatron's type {code}; write it again")
    dtype = np.dtype(TYPES[code])
    if file_size(index) < HEAD_BYTES + 12 * num_sequences:
        raise HpxferError(f"{index}: must list {num_sequences} sequences, got a shorter file; copy it again")
    lengths = np.frombuffer(read_bytes(index, HEAD_BYTES, 4 * num_sequences), "<i4").astype(np.int64)
    offsets = np.frombuffer(read_bytes(index, HEAD_BYTES + 4 * num_sequences, 8 * num_sequences), "<i8")
    ends = np.cumsum(lengths) * dtype.itemsize
    if (lengths < 0).any() or not np.array_equal(offsets, ends - lengths * dtype.itemsize):
        raise HpxferError(
            f"{index}: the sequences must lie in {path} one after the other, got another order; merge the files with "
            "Megatron's tools/merge_datasets.py"
        )
    num_tokens = int(lengths.sum())
    if num_bytes != num_tokens * dtype.itemsize:
        expected = num_tokens * dtype.itemsize
        raise HpxferError(
            f"{path}: the index counts {num_tokens} tokens, which make a file of {expected} bytes, got {num_bytes}; "
            "copy both files again"
        )
    return f"megatron_{dtype.itemsize * 8}", DataFile(path=path, num_tokens=num_tokens, dtype=f"<u{dtype.itemsize}")
