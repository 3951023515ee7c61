"""Prepared: what the manifest of a folder that `hpxfer data prepare` made says of data that a sweep names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress

from hpxfer.data.files import file_size, read_bytes
from hpxfer.data.manifest import MANIFEST_FILE, Manifest, read_manifest
from hpxfer.data.readers import llmc
from hpxfer.data.remote import is_uri
from hpxfer.data.tokens import Dataset
from hpxfer.errors import HpxferError
from hpxfer.host.files import folder_at
from hpxfer.spec.data_section import DataSpec, PointData

# `hpxfer data info` hashes so many bytes of shards, which takes about two seconds. It says when it hashes none.
_MOST_HASHED = 2**30
_PIECE_BYTES = 2**24


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


def check_tokenizers(spec: DataSpec, points: Iterable[tuple[str, PointData]] = ()) -> None:
    """Raise HpxferError if the data of a sweep was prepared with several tokenizers: an id would mean several texts."""
    if (found := manifest_of(spec.source)) is None:
        return
    folder, first = found[0], found[1].tokenizer
    others = [("data.validation", spec.validation or ""), *((f"{key}.source", own.source) for key, own in points)]
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
            raise HpxferError(
                f"{key}: the shards in {known[0]} must be as they were prepared, with the digest {split.digest} of "
                f"{MANIFEST_FILE}, got {found}; `hpxfer data info {known[0]}` says which one was changed"
            )


def inspected(folder: str, manifest: Manifest) -> tuple[dict[str, str], list[str]]:
    """Return what `hpxfer data info` says of the files of a folder, and what is wrong with its shards.

    That is: missing ones, other sizes, other bytes.
    """
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
        elif hashes and _hash(path) != shard.digest:
            damage.append(f"{shard.file} was changed: its bytes have another digest than {MANIFEST_FILE} states")
    no_digests = f"sizes of all shards, and no digests, because they have more than {_MOST_HASHED / 2**30:g} GiB"
    beside = [*(shard.documents for shard in shards), "tokenizer/tokenizer.json"]
    known = {shard.file for shard in shards}
    facts = {
        "checked": "sizes and digests of all shards" if hashes else no_digests,
        "missing, not needed by a sweep": ", ".join(
            name for name in beside if not os.path.isfile(os.path.join(folder, name))
        ),
        "not in the manifest, not read": ", ".join(
            sorted(name for name in os.listdir(folder) if name.endswith(".bin") and name not in known)
        ),
    }
    return {key: value for key, value in facts.items() if value}, damage


def _hash(path: str) -> str:
    state = hashlib.blake2b(digest_size=16)
    for offset in range(0, file_size(path), _PIECE_BYTES):
        state.update(read_bytes(path, offset, _PIECE_BYTES))
    return state.hexdigest()
