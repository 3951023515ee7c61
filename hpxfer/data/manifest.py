"""Manifest: what `hpxfer data prepare` states about the folder that it made, in `manifest.json`, and what is checked.

The file is written last. So a folder without it is not complete, and a folder with it is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError

from hpxfer.data.files import file_size, read_bytes
from hpxfer.data.readers import llmc
from hpxfer.data.tokens import Dataset
from hpxfer.errors import HpxferError, shown
from hpxfer.host import folder_at, is_uri, read_text
from hpxfer.scaling.shape import MAX_TOKENS
from hpxfer.spec import Count, CountOrNone, Section, Seq

MANIFEST_FILE = "manifest.json"
PROGRESS_FILE = "preparing.json"  # lies in a folder while it is being prepared
MANIFEST_VERSION: Final = 1
# Rows of the readout are computed in tiles of 128, so a vocabulary is rounded up to whole ones.
TILE = 128
# `hpxfer data info` hashes so many bytes of shards, which takes about two seconds. It says when it hashes none.
_MOST_HASHED = 2**30
_PIECE_BYTES = 2**24

NumTokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
SplitName = Literal["train", "val"]


def _plain_name(name: str) -> str:
    if not name or name.startswith(".") or os.path.basename(name) != name or "\\" in name or "\0" in name:
        raise ValueError("the name of a file in this folder")
    return name


FileName = Annotated[str, AfterValidator(_plain_name)]


class ShardEntry(Section):
    """One token shard."""

    file: FileName
    tokens: NumTokens
    documents: FileName  # holds the position of each document's first token, an int64 array as numpy saves it
    num_documents: NumTokens  # that start in this shard
    digest: str  # 16-byte blake2b of the shard's bytes


class SplitEntry(Section):
    """The shards of one split, in order."""

    tokens: NumTokens
    num_documents: NumTokens
    digest: str  # of the split as a data set, by which trials know their data
    shards: Seq[ShardEntry]


class SourceEntry(Section):
    """What was prepared, as it was given."""

    given: str  # SOURCE, as the command was given it
    kind: str  # jsonl, parquet, text or datasets
    field: str | None  # the field or column with the text, or null for plain text
    num_files: CountOrNone
    num_bytes: NumTokens
    license: str | None  # as the command or the data set states it


class TokenizerEntry(Section):
    """The tokenizer. Its files lie in the folder `tokenizer`."""

    given: str
    digest: str  # 16-byte blake2b of tokenizer.json
    vocab_size: Count  # one more than its largest id
    eos: str | None  # the token that ends every document, or null
    eos_id: CountOrNone | None


class Manifest(Section):
    """The contents of `manifest.json`."""

    hpxfer_data: Literal[1]  # the version of this file's format
    source: SourceEntry
    tokenizer: TokenizerEntry
    token_bytes: Literal[2, 4]
    empty_documents: NumTokens  # documents of no tokens, which were left out
    splits: dict[SplitName, SplitEntry]
    request: dict[str, str | int | None]
    """What the bytes of the shards depend on. A run with another request does not touch the folder."""
    versions: dict[str, str]  # of the packages that prepared the data

    @property
    def padded_vocab_size(self) -> int:
        """The size of the vocabulary in whole tiles, which models trained on this data have."""
        return -(-self.tokenizer.vocab_size // TILE) * TILE


def read_manifest(folder: str | Path) -> Manifest | None:
    """Return the manifest of a prepared folder, or None if there is none. Raise HpxferError if it is unfinished."""
    path = Path(folder, MANIFEST_FILE)
    if not path.is_file():
        if Path(folder, PROGRESS_FILE).is_file():
            rule = "must be completely prepared, got a folder in which `hpxfer data prepare` has not ended"
            raise HpxferError(f"{folder}: {rule}; run the same command again, and it goes on")
        return None
    try:
        data: Any = json.loads(read_text(path))
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise HpxferError(f"{path}: must be a manifest of `hpxfer data prepare`, got no JSON") from None
    if not isinstance(data, dict) or "hpxfer_data" not in data:
        return None  # of another tool
    try:
        return Manifest.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise HpxferError(f"{path}: {where}: must be {first['msg']}, got {shown(first['input'])}") from None


def manifest_of(name: str) -> tuple[str, Manifest] | None:
    """Return (folder, manifest) of a source that is a prepared folder, or files in one. None: it is other data."""
    kind, _, rest = name.partition(":")
    if kind != "tokens" or is_uri(rest):
        return None
    if (folder := folder_at(rest)) is not None:
        manifest = read_manifest(folder)
        return None if manifest is None else (folder, manifest)
    folder = folder_at(os.path.dirname(rest) or ".")
    with suppress(HpxferError):  # the files are read for themselves, whatever lies beside them
        if folder is not None and (manifest := read_manifest(folder)) is not None:
            return folder, manifest
    return None


def check_tokenizers(source: str, others: Iterable[tuple[str, str]]) -> None:
    """Raise HpxferError if data was prepared with several tokenizers: an id would mean several texts.

    `others` are (key, source) beside data.source.
    """
    if (found := manifest_of(source)) is None:
        return
    folder, first = found[0], found[1].tokenizer
    for key, name in others:
        if (other := manifest_of(name)) is not None and (tokenizer := other[1].tokenizer).digest != first.digest:
            raise HpxferError(
                f"{key}: must be prepared with the tokenizer of data.source, got {tokenizer.given} "
                f"({tokenizer.digest}) for {other[0]}, and {first.given} ({first.digest}) for {folder}"
            )


def check_digest(key: str, name: str, dataset: Dataset, found: str) -> None:
    """Raise HpxferError if the data is a split of a prepared folder, and its digest is not the manifest's."""
    if (known := manifest_of(name)) is None:
        return
    names = [os.path.basename(part.path) for part in dataset.parts]
    for split in known[1].splits.values():
        if names == [shard.file for shard in split.shards] and split.digest != found:
            rule = f"must be as they were prepared, with the digest {split.digest} of {MANIFEST_FILE}"
            raise HpxferError(f"{key}: the shards in {known[0]} {rule}, got {found}; see hpxfer data info")


def inspected(folder: str, manifest: Manifest) -> tuple[dict[str, str], list[str]]:
    """Return what `hpxfer data info` says of a folder's files, and the damage: missing ones, other sizes or bytes."""
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    hashes = manifest.token_bytes * sum(shard.tokens for shard in shards) <= _MOST_HASHED
    damage = []
    for shard in shards:
        path = os.path.join(folder, shard.file)
        expected = llmc.HEADER_BYTES + manifest.token_bytes * shard.tokens
        if not os.path.isfile(path):
            damage.append(f"{shard.file} is missing")
        elif (size := file_size(path)) != expected:
            damage.append(f"{shard.file} must have {expected} bytes, got {size}")
        elif hashes and _hash(path, size) != shard.digest:
            damage.append(f"{shard.file} was changed: its bytes have another digest than {MANIFEST_FILE} states")
    beside = [*(shard.documents for shard in shards), "tokenizer/tokenizer.json"]
    unknown = {name for name in os.listdir(folder) if name.endswith(".bin")} - {shard.file for shard in shards}
    no_digests = f"sizes of all shards, and no digests, because they have more than {_MOST_HASHED / 2**30:g} GiB"
    facts = {
        "checked": "sizes and digests of all shards" if hashes else no_digests,
        "missing, not needed by a sweep": ", ".join(
            name for name in beside if not os.path.isfile(os.path.join(folder, name))
        ),
        "not in the manifest, not read": ", ".join(sorted(unknown)),
    }
    return {key: value for key, value in facts.items() if value}, damage


def _hash(path: str, num_bytes: int) -> str:
    state = hashlib.blake2b(digest_size=16)
    for offset in range(0, num_bytes, _PIECE_BYTES):
        state.update(read_bytes(path, offset, _PIECE_BYTES))
    return state.hexdigest()
