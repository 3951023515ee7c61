"""tokens: the .bin shards of token ids that llm.c and modded-nanogpt write, e.g. for FineWeb.

A shard is a header of 256 little-endian int32 (magic number, version, number of tokens, zeros), then the tokens as
little-endian uint16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.sources.dataset import DataFile, Dataset, file_size, read_bytes
from hpxfer.data.sources.files import matching_files
from hpxfer.data.sources.row import DataSource
from hpxfer.errors import HpxferError

MAGIC = 20240520
VERSION = 1
HEADER_BYTES = 256 * 4
TOKEN_BYTES = 2
FORMAT = "tokens"


def check_header(header: bytes, file_bytes: int, path: str) -> int:
    """Return the number of tokens in a shard. Raise HpxferError unless `header` and the file's size are a shard's."""
    if len(header) < HEADER_BYTES:
        raise HpxferError(
            f"{path}: a token shard must start with a header of {HEADER_BYTES} bytes, got a file of {file_bytes}; "
            f"fetch or write it again"
        )
    magic, version, num_tokens = (int(number) for number in np.frombuffer(header, "<i4", count=3))
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


def _shard(path: str) -> DataFile:
    num_bytes = file_size(path)
    header = read_bytes(path, 0, HEADER_BYTES)
    return DataFile(path=path, num_tokens=check_header(header, num_bytes, path), dtype="<u2", header=header)


def _open(path: str) -> Dataset | None:
    parts = tuple(map(_shard, matching_files(path)))
    return Dataset(format=FORMAT, parts=parts, token_bytes=TOKEN_BYTES) if parts else None


def _load(dataset: Dataset, tokenizer: str) -> tuple[NDArray[Any], ...]:
    """Return each shard memory-mapped, because shards may be larger than the memory."""
    return tuple(_shard(part.path).mapped() for part in dataset.parts)


TOKENS = DataSource(
    name="tokens",
    usage="tokens:GLOB",
    tokenizers={"gpt2": 50304},  # whole tiles of 128
    unpadded={"gpt2": 50257},
    max_vocab_size=2**16,
    open=_open,
    load=_load,
)
