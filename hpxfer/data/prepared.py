"""Prepared: what the manifest of a folder that `hpxfer data prepare` made says of data that a sweep names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress

from hpxfer.data.formats import llmc
from hpxfer.data.sources.dataset import Dataset, file_size, read_bytes
from hpxfer.errors import HpxferError
from hpxfer.host.files import folder_at
from hpxfer.spec.data_section import DataSpec, PointData
from hpxfer.spec.manifest import MANIFEST_FILE, Manifest, ShardEntry, SplitEntry, read_manifest
from hpxfer.storage.uri import is_uri

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
    found = manifest_of(spec.source)
    if found is None:
        return
    folder, first = found
    others = [("data.validation", spec.validation or ""), *((f"{key}.source", own.source) for key, own in points)]
    for key, name in others:
        other = manifest_of(name)
        if other is not None and other[1].tokenizer.digest != first.tokenizer.digest:
            raise HpxferError(
                f"{key}: must be prepared with the tokenizer of data.source, got {other[1].tokenizer.given} "
                f"({other[1].tokenizer.digest}) for {other[0]}, and {first.tokenizer.given} "
                f"({first.tokenizer.digest}) for {folder}; prepare both with one tokenizer"
            )


def check_digest(key: str, name: str, dataset: Dataset, found: str) -> None:
    """Raise HpxferError if the data is a split of a prepared folder, and its digest is not the manifest's."""
    known = manifest_of(name)
    split = None if known is None else _split(known[1], dataset)
    if known is not None and split is not None and split.digest != found:
        raise HpxferError(
            f"{key}: the shards in {known[0]} must be as they were prepared, with the digest {split.digest} of "
            f"{MANIFEST_FILE}, got {found}; `hpxfer data info {known[0]}` says which one was changed; prepare the data "
            "again"
        )


def _split(manifest: Manifest, dataset: Dataset) -> SplitEntry | None:
    names = [os.path.basename(part.path) for part in dataset.parts]
    splits = manifest.splits.values()
    return next((split for split in splits if names == [shard.file for shard in split.shards]), None)


def damage(folder: str, manifest: Manifest) -> list[str]:
    """Return what is wrong with the shards of a folder: missing ones, other sizes, other bytes (see `hashed`)."""
    found = []
    for shard in _shards(manifest):
        path = os.path.join(folder, shard.file)
        expected = llmc.HEADER_BYTES + manifest.token_bytes * shard.tokens
        if not os.path.isfile(path):
            found.append(f"{shard.file} is missing")
        elif (size := file_size(path)) != expected:
            found.append(f"{shard.file} must have {expected} bytes, got {size}")
        elif _num_bytes(manifest) <= _MOST_HASHED and _hash(path) != shard.digest:
            found.append(f"{shard.file} was changed: its bytes have another digest than {MANIFEST_FILE} states")
    return found


def hashed(manifest: Manifest) -> str:
    """Return in words what `damage` compares with the manifest."""
    if _num_bytes(manifest) <= _MOST_HASHED:
        return "sizes and digests of all shards"
    return f"sizes of all shards, and no digests, because they have more than {_MOST_HASHED / 2**30:g} GiB"


def missing(folder: str, manifest: Manifest) -> list[str]:
    """Return the other files of a folder that are missing, which a sweep does not read."""
    names = [*(shard.documents for shard in _shards(manifest)), "tokenizer/tokenizer.json"]
    return [name for name in names if not os.path.isfile(os.path.join(folder, name))]


def unknown(folder: str, manifest: Manifest) -> list[str]:
    """Return the shards in a folder that its manifest does not name, which a sweep reads only as files of a glob."""
    known = {shard.file for shard in _shards(manifest)}
    return sorted(name for name in os.listdir(folder) if name.endswith(".bin") and name not in known)


def _shards(manifest: Manifest) -> list[ShardEntry]:
    return [shard for split in manifest.splits.values() for shard in split.shards]


def _num_bytes(manifest: Manifest) -> int:
    return manifest.token_bytes * sum(split.tokens for split in manifest.splits.values())


def _hash(path: str) -> str:
    state = hashlib.blake2b(digest_size=16)
    for offset in range(0, file_size(path), _PIECE_BYTES):
        state.update(read_bytes(path, offset, _PIECE_BYTES))
    return state.hexdigest()
