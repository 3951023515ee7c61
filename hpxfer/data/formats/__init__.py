"""Formats of files of token ids that say themselves how wide an id is: one file per format.

    llmc      header of 1024 bytes, then uint16 (version 1) or uint32 (version 7); llm.c, modded-nanogpt, hpxfer
    megatron  NAME.bin beside NAME.idx; Megatron-LM, NeMo
    npy       an array that `numpy.save` wrote
    arrow     a folder that `datasets` saved, with token ids in a column

Files without a header (nanoGPT, OLMo) are read by the sources `uint16:` and `uint32:`.
"""

from __future__ import annotations

import os

from hpxfer.data.formats import arrow, llmc, megatron, npy
from hpxfer.data.sources.dataset import DataFile, file_size, read_bytes
from hpxfer.errors import HpxferError, cut

HEAD_BYTES = 1024
# Files whose text is packed into something else, and all files of text.
PACKED_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".gz", ".zst", ".parquet")
TEXT_SUFFIXES = (".txt", ".md", ".py", ".html", ".xml", *PACKED_SUFFIXES)


# What `hpxfer data prepare` writes beside each shard: where documents start.
DOCUMENTS_SUFFIX = ".documents.npy"


class NoFormat(HpxferError):
    """A file that states no format of token ids."""


def open_file(path: str) -> tuple[str, DataFile]:
    """Return (format, part) of a file that states its format. Raise HpxferError if it states none, or is broken."""
    num_bytes, head = file_size(path), read_bytes(path, 0, HEAD_BYTES)
    if path.endswith(DOCUMENTS_SUFFIX):
        raise HpxferError(
            f"{path}: must hold token ids, got the positions where documents start, which `hpxfer data prepare` wrote; "
            f"name the folder {os.path.dirname(path) or '.'}"
        )
    if arrow.is_one(head):
        folder = os.path.dirname(path) or "."
        fix = "" if arrow.is_folder(folder) else " that `datasets` saved with save_to_disk, which this one is not"
        raise HpxferError(f"{path}: must be read with its folder, got a file of Arrow; name the folder {folder}{fix}")
    if llmc.is_one(head):
        return llmc.opened(path, head, num_bytes)
    if npy.is_one(head):
        return npy.opened(path, head, num_bytes)
    if megatron.is_index(head):
        raise HpxferError(f"{path}: is Megatron's index; name the file {path.removesuffix('.idx')}.bin beside it")
    if megatron.has_index(path):
        return megatron.opened(path, num_bytes)
    raise NoFormat(_without_format(path, num_bytes, head))


def _without_format(path: str, num_bytes: int, head: bytes) -> str:
    """Return the message for a file that states no format: what is known, and what the file may be."""
    name = cut(path, 300)
    start = f"{name}: must be a file of token ids that states its format: llm.c's shard with a header of "
    rule = f"{start}{HEAD_BYTES} bytes, Megatron's .bin beside its .idx, or numpy's .npy"
    if path.endswith(TEXT_SUFFIXES) or is_text(head):
        fix = f"write token shards first: hpxfer data prepare {name} --tokenizer tokenizer.json --out DIR"
        return f"{rule}, got text or another file of {num_bytes} bytes; {fix}"
    magic = int.from_bytes(head[:4], "little", signed=True)
    got = f"got a file of {num_bytes} bytes that starts with the number {magic}"
    fix = "if it holds bare ids (nanoGPT, OLMo), write uint16: or uint32: instead of tokens:, and give data.vocab_size"
    return f"{rule}, {got}; {fix}; `hpxfer data info {name}` says more"


def is_text(head: bytes) -> bool:
    """Return whether the start of a file is text: UTF-8 without control characters."""
    if not head or any(byte < 9 for byte in head):
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4  # a character that the end cuts
    return True
