"""Token shards: the .bin files that llm.c and modded-nanogpt write, e.g. for FineWeb.

A shard is a header of 256 little-endian int32 (magic number, version, number of tokens, zeros), then the tokens as
little-endian uint16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.errors import HpxferError

MAGIC = 20240520
VERSION = 1
HEADER_BYTES = 256 * 4
TOKEN_BYTES = 2


def check_header(header: bytes, file_bytes: int, path: str) -> int:
    """Return the number of tokens in a shard; raise HpxferError unless `header` and the file's size belong to one."""
    if len(header) < HEADER_BYTES:
        raise HpxferError(
            f"{path}: a token shard must start with a header of {HEADER_BYTES} bytes, got a file of {file_bytes}; "
            f"fetch or write it again"
        )
    magic, version, num_tokens = (int(one) for one in np.frombuffer(header, "<i4", count=3))
    if magic != MAGIC:
        raise HpxferError(
            f"{path}: a token shard must start with the magic number {MAGIC}, got {magic}; "
            f"for plain text, write text: instead of tokens:"
        )
    if version != VERSION:
        raise HpxferError(
            f"{path}: must be a token shard of version {VERSION} (uint16 tokens), got version {version}; "
            f"write it again in that version"
        )
    if file_bytes != HEADER_BYTES + TOKEN_BYTES * num_tokens:
        raise HpxferError(
            f"{path}: the header counts {num_tokens} tokens, which make a file of "
            f"{HEADER_BYTES + TOKEN_BYTES * num_tokens} bytes, got {file_bytes}; fetch or write it again"
        )
    return num_tokens


def check_ids(ids: NDArray[Any], vocab_size: int, path: str, position: int) -> None:
    """Raise HpxferError unless all `ids`, which start at token `position` of the file, are in the vocabulary."""
    if ids.max(initial=0) < vocab_size:
        return
    at = int(np.argmax(ids >= vocab_size))
    raise HpxferError(
        f"{path}: token {position + at}: the id must be below the vocabulary of {vocab_size}, got {int(ids[at])}; "
        f"give data.vocab_size the size of the vocabulary that these shards were written with"
    )
