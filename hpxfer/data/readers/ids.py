"""ids: files and folders of token ids, `tokens:` where they say how wide an id is, else `uint16:` and `uint32:`.

    llmc      header of 1024 bytes, then uint16 (version 1) or uint32 (version 7); llm.c, modded-nanogpt, hpxfer
    megatron  NAME.bin beside NAME.idx; Megatron-LM, NeMo
    npy       an array that `numpy.save` wrote
    arrow     a folder that `datasets` saved, with token ids in a column

nanoGPT and OLMo write bare ids, little-endian and without a header, into .bin or .npy. The name of the source says how
wide an id is, and the vocabulary must be given.
"""

from __future__ import annotations

import glob
import io
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.files import file_size, matching_files, read_bytes
from hpxfer.data.manifest import MANIFEST_FILE, Manifest, read_manifest
from hpxfer.data.readers import arrow, llmc, megatron
from hpxfer.data.sources import DataSource
from hpxfer.data.tokens import DataFile, Dataset, counted_file
from hpxfer.errors import HpxferError, cut
from hpxfer.host import folder_at, is_uri
from hpxfer.scaling.shape import MAX_DIM

HEAD_BYTES = 8192
# Files whose text is packed into something else, and all files of text.
PACKED_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".gz", ".zst", ".parquet")
TEXT_SUFFIXES = (".txt", ".md", ".py", ".html", ".xml", *PACKED_SUFFIXES)
# What `hpxfer data prepare` writes beside each shard: where documents start.
DOCUMENTS_SUFFIX = ".documents.npy"
# Ids of 32 bits below a million, more than any vocabulary has, have an upper half of at most 15. So many pairs that
# speak for them are no chance.
_MOST_UPPER, _SURE_PAIRS = 15, 64
_NUMPY = b"\x93NUMPY"
PREPARE = "hpxfer data prepare SOURCE --tokenizer tokenizer.json --out DIR"


class NoFormat(HpxferError):
    """A file that states no format of token ids."""


def _stating(path: str) -> tuple[str, DataFile]:
    """Return (format, part) of a file that states its format. Raise HpxferError if it states none, or is broken."""
    num_bytes, head, folder = file_size(path), read_bytes(path, 0, HEAD_BYTES), os.path.dirname(path) or "."
    if path.endswith(DOCUMENTS_SUFFIX):
        got = f"the positions where documents start, which `hpxfer data prepare` wrote; name the folder {folder}"
        raise HpxferError(f"{path}: must hold token ids, got {got}")
    if arrow.is_one(head):
        raise HpxferError(f"{path}: must be read with the folder that `datasets` saved, {folder}, got a file of Arrow")
    if llmc.is_one(head):
        return llmc.opened(path, head, num_bytes)
    if head.startswith(_NUMPY):
        return _of_numpy(path, head, num_bytes)
    if megatron.is_index(head):
        raise HpxferError(f"{path}: is Megatron's index; name the file {path.removesuffix('.idx')}.bin beside it")
    if megatron.has_index(path):
        return megatron.opened(path, num_bytes)
    name, number = cut(path, 300), int.from_bytes(head[:4], "little", signed=True)
    is_of_text = path.endswith(TEXT_SUFFIXES) or is_text(head)
    got = "text or another file" if is_of_text else f"a file that starts with the number {number}"
    see = f"write token shards first: {PREPARE}" if is_of_text else "bare ids (nanoGPT, OLMo) are uint16: or uint32:"
    raise NoFormat(
        f"{name}: must be a file of token ids that states its format: llm.c's shard with a header of "
        f"{llmc.HEADER_BYTES} bytes, Megatron's .bin beside its .idx, or numpy's .npy, got {got} and has {num_bytes} "
        f"bytes; {see}"
    )


def _of_numpy(path: str, head: bytes, num_bytes: int) -> tuple[str, DataFile]:
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        of_version = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = of_version(stream)
    except Exception:  # whatever Python's tokenizer raises
        raise HpxferError(f"{path}: must be an array of `numpy.save`, got a broken header") from None
    if len(shape) != 1 or dtype.kind not in "ui" or (dtype.byteorder == ">" and dtype.itemsize > 1):
        got = f"an array of {dtype} {shape}"
        raise HpxferError(f"{path}: must be one row of whole numbers, little-endian, got {got}")
    part = counted_file(path, head[: stream.tell()], num_bytes, shape[0], dtype.itemsize)
    return f"npy_{dtype.itemsize * 8}", part


def is_text(head: bytes) -> bool:
    """Return whether the start of a file is text: UTF-8 without control characters."""
    if not head or any(byte < 9 for byte in head):
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4  # a character that the end cuts
    return True


def pairs_of_uint32(content: bytes) -> int:
    """Return how many ids of 32 bits speak for uint32 in bytes that may be ids of uint16, 0 if an id speaks against it.

    Of an id of 32 bits, the upper half is 0 or little more. Ids of 16 bits take all places alike, however small the
    vocabulary is, so only lower halves that are far beyond every upper half count.
    """
    halves = np.frombuffer(content[: len(content) // 4 * 4], "<u2")
    lower, upper = halves[::2], int(halves[1::2].max(initial=0))
    return 0 if upper > _MOST_UPPER else int(np.count_nonzero(lower > (_MOST_UPPER + 1) * upper))


def _bare(path: str, token_bytes: int) -> DataFile:
    """Return a file of bare ids. Raise HpxferError for one that must be something else."""
    num_bytes, head = file_size(path), read_bytes(path, 0, HEAD_BYTES)
    if llmc.is_one(head) or head.startswith(_NUMPY) or megatron.is_index(head) or arrow.is_one(head):
        raise HpxferError(f"{path}: must hold bare ids, got a file with a header, which tokens: reads")
    if num_bytes % token_bytes:
        raise HpxferError(f"{path}: must hold whole ids of {token_bytes} bytes, got {num_bytes} bytes")
    if token_bytes == 2 and num_bytes % 4 == 0 and pairs_of_uint32(head) >= _SURE_PAIRS:
        why = f"every second number of the first {len(head) // 2} is the upper half of an id"
        raise HpxferError(f"{path}: must hold ids of uint16, got ids of uint32: {why}; see uint32:")
    return DataFile(path=path, num_tokens=num_bytes // token_bytes, dtype=f"<u{token_bytes}")


def file_dataset(paths: list[str]) -> Dataset | None:
    """Return the data set of files of one format, or None if there is no file."""
    found = [_stating(path) for path in paths]
    if not found:
        return None
    kind, first = found[0]
    for other, part in found:
        if other != kind:
            rule = "all files of a data set must have one format"
            raise HpxferError(f"{part.path}: {rule}, got {other} after {kind} in {first.path}")
    return Dataset(format=kind, parts=tuple(part for _, part in found), token_bytes=int(first.dtype[-1]))


def _open(path: str) -> Dataset | None:
    if (folder := folder_at(path)) is None:
        return file_dataset(token_files(path))
    if (manifest := read_manifest(folder)) is not None:
        return _prepared(folder, manifest)
    if arrow.is_folder(folder):
        return arrow.open_folder(folder)
    made = f"that `hpxfer data prepare` made, with its {MANIFEST_FILE}, or that `datasets` saved"
    raise HpxferError(
        f"data.source: must name files of token ids, or a folder {made}, got the folder {cut(folder, 300)}; a glob "
        f"names files in it, and for text first: {PREPARE}"
    )


def _prepared(folder: str, manifest: Manifest) -> Dataset | None:
    """Return the training split of a prepared folder. Raise HpxferError for shards that are not as it states."""
    shards = manifest.splits["train"].shards
    paths = [os.path.join(folder, shard.file) for shard in shards]
    if missing := [path for path in paths if not os.path.exists(path)]:
        rule = f"must be in the folder, because its {MANIFEST_FILE} names it"
        raise HpxferError(f"{missing[0]}: {rule}, got no such file, of {len(missing)} that are missing")
    dataset = file_dataset(paths)
    for part, shard in zip(dataset.parts if dataset else (), shards, strict=True):
        if part.num_tokens != shard.tokens:
            rule = f"must have {shard.tokens} tokens, as {MANIFEST_FILE} beside it says"
            raise HpxferError(f"{part.path}: {rule}, got {part.num_tokens}")
    return dataset


def token_files(path: str, key: str = "data.source") -> list[str]:
    """Return the files that a path or glob names. Megatron's tools name a pair of files without its ending."""
    found = matching_files(path, key)
    if not found and not is_uri(path) and path:
        found = [each for each in matching_files(f"{path}.bin", key) if megatron.has_index(each)]
    return found


def _load(dataset: Dataset, tokenizer: str) -> tuple[NDArray[Any], ...]:
    """Return the ids of each part memory-mapped, because they may be larger than the memory."""
    return tuple(array for part in dataset.parts for array in part.mapped())  # type: ignore[attr-defined]


def _source(token_bytes: int) -> DataSource:
    name = f"uint{8 * token_bytes}"

    def opened(path: str) -> Dataset | None:
        parts = tuple(_bare(found, token_bytes) for found in matching_files(path))
        return Dataset(format=name, parts=parts, token_bytes=token_bytes) if parts else None

    most = min(MAX_DIM, 2 ** (8 * token_bytes))
    usage = f"{name}:PATH-or-glob"
    return DataSource(name=name, usage=usage, tokenizers={}, max_vocab_size=most, open=opened, load=_load)


def _stated(path: str) -> dict[str, Any]:
    """Return what a folder that `hpxfer data prepare` made states: its vocabulary, its held-out split and its eos."""
    folder = folder_at(path) if path and "\0" not in path else None
    manifest = None if folder is None else read_manifest(folder)
    if folder is None or manifest is None:
        return {}
    out: dict[str, Any] = {"vocab_size": manifest.padded_vocab_size, "eos_id": manifest.tokenizer.eos_id}
    if "val" in manifest.splits:
        out["validation"] = f"tokens:{glob.escape(os.path.abspath(folder))}/val-*.bin"
    return out


TOKENS = DataSource(
    name="tokens",
    usage="tokens:PATH-or-glob",
    tokenizers={"gpt2": 50304},  # whole tiles of 128
    unpadded={"gpt2": 50257},
    max_vocab_size=MAX_DIM,
    open=_open,
    load=_load,
    stated=_stated,
)
UINT16, UINT32 = _source(2), _source(4)
