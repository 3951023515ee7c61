"""llmc: the .bin shards that llm.c and modded-nanogpt write, e.g. for FineWeb.

A shard is a header of 256 little-endian int32 (magic number, version, number of tokens, zeros), then the tokens as
little-endian uint16 (magic number 20240520, version 1) or uint32 (20240801, version 7).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpxfer.data.sources.dataset import DataFile
from hpxfer.errors import HpxferError

HEADER_BYTES = 256 * 4
MOST_TOKENS = 2**31 - 1  # the header counts in int32


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version of the format."""

    magic: int
    number: int
    token_bytes: int
    format: str  # part of the digest, so never change it

    @property
    def dtype(self) -> str:
        return f"<u{self.token_bytes}"

    def header(self, num_tokens: int) -> bytes:
        """Return the header of a shard."""
        out = np.zeros(HEADER_BYTES // 4, "<i4")
        out[:3] = self.magic, self.number, num_tokens
        return out.tobytes()


UINT16 = Version(magic=20240520, number=1, token_bytes=2, format="tokens")
UINT32 = Version(magic=20240801, number=7, token_bytes=4, format="tokens_uint32")
_BY_MAGIC = {version.magic: version for version in (UINT16, UINT32)}


def is_one(head: bytes) -> bool:
    return len(head) >= 4 and int(np.frombuffer(head, "<i4", count=1)[0]) in _BY_MAGIC


def opened(path: str, head: bytes, num_bytes: int) -> tuple[str, DataFile]:
    """Return (format, part) of a shard. Raise HpxferError unless its header and its size fit to each other."""
    if len(head) < HEADER_BYTES:
        raise HpxferError(
            f"{path}: a token shard must start with a header of {HEADER_BYTES} bytes, got a file of {num_bytes}; "
            f"fetch or write it again"
        )
    magic, number, num_tokens = (int(value) for value in np.frombuffer(head, "<i4", count=3))
    version = _BY_MAGIC[magic]
    if number != version.number:
        raise HpxferError(
            f"{path}: must be a token shard of version {version.number} (uint{8 * version.token_bytes} tokens), got "
            f"version {number}; write it again in that version"
        )
    expected = HEADER_BYTES + version.token_bytes * num_tokens
    if num_bytes != expected:
        raise HpxferError(
            f"{path}: the header counts {num_tokens} tokens, which make a file of {expected} bytes, got {num_bytes}; "
            f"fetch or write it again"
        )
    header = head[:HEADER_BYTES]
    return version.format, DataFile(path=path, num_tokens=num_tokens, dtype=version.dtype, header=header)
