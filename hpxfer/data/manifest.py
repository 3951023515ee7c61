"""Manifest: what `hpxfer data prepare` states about the folder that it made, in `manifest.json`.

The file is written last. So a folder without it is not complete, and a folder with it is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError

from hpxfer.errors import HpxferError, shown
from hpxfer.host.files import read_text
from hpxfer.scaling.shape import MAX_TOKENS
from hpxfer.spec.fields import Count, CountOrNone, Section, Seq

MANIFEST_FILE = "manifest.json"
# Lies in a folder while it is being prepared.
PROGRESS_FILE = "preparing.json"
MANIFEST_VERSION: Final = 1
# Rows of the readout are computed in tiles of 128, so a vocabulary is rounded up to whole ones.
TILE = 128

NumTokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Split = Literal["train", "val"]


def _plain_name(name: str) -> str:
    if not name or name.startswith(".") or os.path.basename(name) != name or "\\" in name or "\0" in name:
        raise ValueError("the name of a file in this folder")
    return name


FileName = Annotated[str, AfterValidator(_plain_name)]


class ShardEntry(Section):
    """One token shard."""

    file: FileName
    """The name of the shard's file."""
    tokens: NumTokens
    """Its number of tokens."""
    documents: FileName
    """The file with the position of each document's first token, an int64 array as numpy saves it."""
    num_documents: NumTokens
    """The documents that start in this shard."""
    digest: str
    """The hash of the shard's bytes, 16-byte blake2b."""


class SplitEntry(Section):
    """The shards of one split."""

    tokens: NumTokens
    """The tokens of all shards."""
    num_documents: NumTokens
    """The documents that start in the split."""
    digest: str
    """The digest of the split as a data set, by which trials know their data."""
    shards: Seq[ShardEntry]
    """The shards, in order."""


class SourceEntry(Section):
    """What was prepared, as it was given."""

    given: str
    """SOURCE, as the command was given it."""
    kind: str
    """What kind of files it is: jsonl, parquet, text or datasets."""
    field: str | None
    """The field or column with the text, or null for plain text."""
    num_files: CountOrNone
    """The files that were read."""
    num_bytes: NumTokens
    """Their bytes."""
    license: str | None
    """The license of the data, as the command or the data set states it."""


class TokenizerEntry(Section):
    """The tokenizer. Its files lie in the folder `tokenizer`."""

    given: str
    """The tokenizer, as the command was given it."""
    digest: str
    """The hash of tokenizer.json, 16-byte blake2b."""
    vocab_size: Count
    """One more than its largest id."""
    eos: str | None
    """The token that ends every document, or null."""
    eos_id: CountOrNone | None
    """Its id."""


class Manifest(Section):
    """The contents of `manifest.json`."""

    hpxfer_data: Literal[1]
    """The version of this file's format."""
    source: SourceEntry
    """What was prepared."""
    tokenizer: TokenizerEntry
    """What made the ids."""
    token_bytes: Literal[2, 4]
    """The bytes of an id."""
    empty_documents: NumTokens
    """Documents of no tokens, which were left out."""
    splits: dict[Split, SplitEntry]
    """The shards: `train`, and `val` where tokens were held out."""
    request: dict[str, str | int | None]
    """What the bytes of the shards depend on. A run with another request does not touch the folder."""
    versions: dict[str, str]
    """The versions of the packages that prepared the data."""

    @property
    def padded_vocab_size(self) -> int:
        """The size of the vocabulary in whole tiles, which models trained on this data have."""
        return -(-self.tokenizer.vocab_size // TILE) * TILE


def read_manifest(folder: str | Path) -> Manifest | None:
    """Return the manifest of a prepared folder, or None if there is none. Raise HpxferError if it is unfinished."""
    path = Path(folder, MANIFEST_FILE)
    if not path.is_file():
        if Path(folder, PROGRESS_FILE).is_file():
            raise HpxferError(
                f"{folder}: must be completely prepared, got a folder in which `hpxfer data prepare` has not ended; "
                "run the same command again, and it goes on"
            )
        return None
    try:
        data: Any = json.loads(read_text(path))
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise HpxferError(f"{path}: must be a manifest of `hpxfer data prepare`, got no JSON; prepare again") from None
    if not isinstance(data, dict) or "hpxfer_data" not in data:
        return None  # of another tool
    version = data["hpxfer_data"]
    if version != MANIFEST_VERSION:
        raise HpxferError(
            f"{path}: hpxfer_data: must be {MANIFEST_VERSION}, got {shown(version)}; prepare the data again"
        )
    try:
        return Manifest.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        got = shown(first["input"])
        raise HpxferError(f"{path}: {where}: must be {first['msg']}, got {got}; prepare the data again") from None
