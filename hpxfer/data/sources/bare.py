"""uint16, uint32: files of bare token ids, little-endian and without a header, as nanoGPT and OLMo write them.

The file does not say how wide an id is, so the name of the source does. The vocabulary must be given.
"""

from __future__ import annotations

from hpxfer.data.formats import llmc, megatron, npy
from hpxfer.data.sources.dataset import DataFile, Dataset, file_size, read_bytes
from hpxfer.data.sources.files import matching_files
from hpxfer.data.sources.row import DataSource
from hpxfer.data.sources.tokens import load_mapped
from hpxfer.errors import HpxferError
from hpxfer.scaling.shape import MAX_DIM


def _part(path: str, token_bytes: int) -> DataFile:
    num_bytes, head = file_size(path), read_bytes(path, 0, 16)
    for name, is_one in (("llm.c", llmc.is_one), ("numpy's", npy.is_one), ("Megatron's index", megatron.is_index)):
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
