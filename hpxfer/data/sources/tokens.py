"""tokens: files of token ids that state their format, and folders that `hpxfer data prepare` or `datasets` made."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.data import formats
from hpxfer.data.formats import arrow, llmc, megatron, npy
from hpxfer.data.sources.dataset import DataFile, Dataset, file_size, read_bytes
from hpxfer.data.sources.files import matching_files
from hpxfer.data.sources.row import DataSource
from hpxfer.errors import HpxferError, cut
from hpxfer.host.files import folder_at
from hpxfer.scaling.shape import MAX_DIM
from hpxfer.spec.manifest import MANIFEST_FILE, Manifest, read_manifest
from hpxfer.storage.uri import is_uri

# uint16, uint32: files of bare token ids, little-endian and without a header, as nanoGPT and OLMo write them.
#
# The file does not say how wide an id is, so the name of the source does. The vocabulary must be given.

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


def _open(path: str) -> Dataset | None:
    if (folder := folder_at(path)) is not None:
        if (manifest := read_manifest(folder)) is not None:
            return _prepared(folder, manifest)
        if arrow.is_folder(folder):
            return arrow.open_folder(folder)
        check_finished(folder)
        shards = cut(pattern_in(folder) or os.path.join(folder, "*.bin"), 300)
        raise HpxferError(
            "data.source: must name files of token ids, or a folder that `hpxfer data prepare` or `datasets` made, got "
            f"the folder {cut(folder, 300)}; for token files in it: tokens:{shards}; for text in it, prepare it first: "
            "hpxfer data prepare FOLDER --tokenizer tokenizer.json --out DIR"
        )
    return file_dataset(token_files(path))


def token_files(path: str, key: str = "data.source") -> list[str]:
    """Return the files that a path or glob names. Megatron's tools name a pair of files without its ending."""
    found = matching_files(path, key)
    if not found and not is_uri(path) and path:
        found = [each for each in matching_files(f"{path}.bin", key) if megatron.has_index(each)]
    return found


def check_finished(folder: str) -> None:
    """Raise HpxferError for shards that `hpxfer data prepare` wrote to a folder without its manifest."""
    if any(name.endswith(formats.DOCUMENTS_SUFFIX) for name in _names(folder)):
        raise HpxferError(
            f"{folder}: must have the {MANIFEST_FILE} that `hpxfer data prepare` writes last, got shards without it: "
            "the folder is not finished, or was copied in part; copy it again, or prepare the data again"
        )


def pattern_in(folder: str) -> str | None:
    """Return the glob of a folder's files that may hold token ids, of training where names say so, or None."""
    names = [name for name in _names(folder) if name.endswith((".bin", ".npy")) and not name.startswith(".")]
    if not names:
        return None
    train = [name for name in names if "train" in name]
    ending = os.path.splitext((train or names)[0])[1]
    return os.path.join(folder, f"*train*{ending}" if train else f"*{ending}")


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _prepared(folder: str, manifest: Manifest) -> Dataset | None:
    """Return the training split of a prepared folder. Raise HpxferError for shards that are not as it states."""
    shards = manifest.splits["train"].shards
    paths = [os.path.join(folder, shard.file) for shard in shards]
    if missing := [path for path in paths if not os.path.exists(path)]:
        more = f" and {len(missing) - 1} more missing" if missing[1:] else ""
        raise HpxferError(
            f"{missing[0]}: must be in the folder, because its {MANIFEST_FILE} names it, got no such file{more}; "
            "copy the folder again, or prepare the data again"
        )
    dataset = file_dataset(paths)
    for part, shard in zip(dataset.parts if dataset else (), shards, strict=True):
        if part.num_tokens != shard.tokens:
            raise HpxferError(
                f"{part.path}: must have {shard.tokens} tokens, as {MANIFEST_FILE} beside it says, got "
                f"{part.num_tokens}; copy the folder again, or prepare the data again"
            )
    return dataset


def file_dataset(paths: list[str]) -> Dataset | None:
    """Return the data set of files of one format, or None if there is no file."""
    found = [formats.open_file(path) for path in paths]
    if not found:
        return None
    kind, first = found[0]
    for other, part in found:
        if other != kind:
            raise HpxferError(
                f"{part.path}: all files of a data set must have one format, got {other} after {kind} in {first.path}; "
                "name one kind of files, or prepare the data again"
            )
    return Dataset(format=kind, parts=tuple(part for _, part in found), token_bytes=int(first.dtype[-1]))


def load_mapped(dataset: Dataset, tokenizer: str) -> tuple[NDArray[Any], ...]:
    """Return the ids of each part memory-mapped, because they may be larger than the memory."""
    out: list[NDArray[Any]] = []
    for part in dataset.parts:
        if isinstance(part, arrow.ArrowFile):
            out += part.arrays
        else:
            assert isinstance(part, DataFile)
            out.append(part.mapped())
    return tuple(out)


TOKENS = DataSource(
    name="tokens",
    usage="tokens:PATH-or-glob",
    tokenizers={"gpt2": 50304},  # whole tiles of 128
    unpadded={"gpt2": 50257},
    max_vocab_size=MAX_DIM,
    open=_open,
    load=load_mapped,
)
UINT16 = _source(2)
UINT32 = _source(4)
