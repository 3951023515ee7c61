"""megatron: NAME.bin with the bare ids of all sequences, beside NAME.idx with their type and lengths (Megatron-LM).

The index is, little-endian: `MMIDIDX`, two zero bytes, uint64 version 1, uint8 type, uint64 number of sequences, uint64
number of document indices, int32 length of each sequence, int64 byte offset of each sequence, int64 document indices.
"""

from __future__ import annotations

import os
import struct

import numpy as np

from hpxfer.data.files import file_size, read_bytes
from hpxfer.data.tokens import DataFile, counted_file
from hpxfer.errors import HpxferError

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 8: 2}  # of an id of each type of whole numbers


def is_index(head: bytes) -> bool:
    return head.startswith(_MAGIC)


def has_index(path: str) -> bool:
    return path.endswith(".bin") and os.path.isfile(f"{path.removesuffix('.bin')}.idx")


def opened(path: str, num_bytes: int) -> tuple[str, DataFile]:
    """Return (format, part) of the ids beside an index. Raise HpxferError unless the two fit to each other."""
    index = f"{path.removesuffix('.bin')}.idx"
    head = read_bytes(index, 0, _HEAD.size)
    if not is_index(head) or len(head) < _HEAD.size:
        raise HpxferError(f"{index}: must be Megatron's index of {path}, got another file")
    _, version, code, num_sequences, _ = _HEAD.unpack(head)
    if version != 1 or code not in _BYTES:
        rule = "must be of version 1 and hold whole numbers"
        raise HpxferError(f"{index}: {rule}, got version {version} and Megatron's type {code}")
    if file_size(index) < _HEAD.size + 12 * num_sequences:
        raise HpxferError(f"{index}: must list {num_sequences} sequences, got a shorter file")
    listed = read_bytes(index, _HEAD.size, 12 * num_sequences)
    lengths = np.frombuffer(listed, "<i4", count=num_sequences).astype(np.int64) * _BYTES[code]
    offsets = np.frombuffer(listed, "<i8", offset=4 * num_sequences)
    if (lengths < 0).any() or not np.array_equal(offsets, np.cumsum(lengths) - lengths):
        raise HpxferError(f"{index}: the sequences must lie in {path} one after the other, got another order")
    num_tokens = int(lengths.sum()) // _BYTES[code]
    return f"megatron_{8 * _BYTES[code]}", counted_file(path, b"", num_bytes, num_tokens, _BYTES[code])
