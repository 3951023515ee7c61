"""llmc: the .bin shards that llm.c and modded-nanogpt write, e.g. for FineWeb.

A shard is a header of 256 little-endian int32 (magic number, version, number of tokens, zeros), then the tokens as
little-endian uint16 (magic number 20240520, version 1) or uint32 (20240801, version 7).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpxfer.data.tokens import DataFile, counted_file
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
        return np.array([self.magic, self.number, num_tokens], "<i4").tobytes().ljust(HEADER_BYTES, b"\0")


UINT16 = Version(magic=20240520, number=1, token_bytes=2, format="tokens")
UINT32 = Version(magic=20240801, number=7, token_bytes=4, format="tokens_uint32")
_BY_MAGIC = {version.magic: version for version in (UINT16, UINT32)}


def is_one(head: bytes) -> bool:
    return int.from_bytes(head[:4], "little") in _BY_MAGIC


def opened(path: str, head: bytes, num_bytes: int) -> tuple[str, DataFile]:
    """Return (format, part) of a shard. Raise HpxferError unless its header and its size fit to each other."""
    head = head[:HEADER_BYTES]
    if len(head) < HEADER_BYTES:
        rule = f"a token shard must start with a header of {HEADER_BYTES} bytes"
        raise HpxferError(f"{path}: {rule}, got a file of {num_bytes}")
    magic, number, num_tokens = np.frombuffer(head, "<i4", count=3).tolist()
    version = _BY_MAGIC[magic]
    if number != version.number:
        rule = f"must be a token shard of version {version.number} (uint{8 * version.token_bytes} tokens)"
        raise HpxferError(f"{path}: {rule}, got version {number}")
    return version.format, counted_file(path, head, num_bytes, num_tokens, version.token_bytes)
