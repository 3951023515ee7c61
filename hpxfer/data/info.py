"""Info: what a file or folder of data is, whether a sweep can use it, and how."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpxfer.data.digest import digest
from hpxfer.data.formats import HEAD_BYTES, PACKED_SUFFIXES, TEXT_SUFFIXES, NoFormat, arrow, is_text
from hpxfer.data.largest_id import largest_id
from hpxfer.data.sources import open_dataset
from hpxfer.data.sources.dataset import Dataset, read_bytes
from hpxfer.data.sources.files import matching_files
from hpxfer.errors import HpxferError, cut
from hpxfer.host.files import folder_at
from hpxfer.scaling.shape import MAX_DIM
from hpxfer.spec.manifest import Manifest, read_manifest

_FORMATS = {
    "tokens": "token shards of uint16 (llm.c version 1)",
    "tokens_uint32": "token shards of uint32 (llm.c version 7)",
    "text": "text",
}
# No vocabulary is as large. Bare ids beyond it were written in another type.
_MOST_IDS = 10**6
_LOOKED_AT = 2**22  # bytes of a file without a header


@dataclass(frozen=True, kw_only=True)
class DataInfo:
    """What is known of some data. `use` is the `data` section of a sweep, empty if no sweep can read it."""

    path: str
    what: str
    facts: dict[str, Any] = field(default_factory=dict)
    use: dict[str, Any] = field(default_factory=dict)
    fix: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"path": self.path, "what": self.what, "facts": self.facts, "use": self.use, "fix": self.fix}

    def text(self) -> str:
        lines = [f"{self.path}: {self.what}"]
        lines += [f"  {name}: {value}" for name, value in self.facts.items()]
        if self.use:
            lines += ["a sweep can use it:", "  data:", *(f"    {key}: {value}" for key, value in self.use.items())]
        if self.fix:
            lines.append(self.fix if self.use else f"a sweep cannot use it as it is: {self.fix}")
        return "\n".join(lines)


def info(path: str) -> DataInfo:
    """Return what the file, folder or glob at `path` is. Raise HpxferError if there is nothing, or it is broken."""
    if (folder := folder_at(path)) is not None:
        return _of_folder(path, folder)
    files = matching_files(path, "PATH")
    if not files:
        raise HpxferError(f"{path}: must name data, got nothing of that name; correct the path")
    if files[0].endswith(TEXT_SUFFIXES) or is_text(read_bytes(files[0], 0, HEAD_BYTES)):
        return _of_text(path, files)
    try:
        dataset = open_dataset(f"tokens:{path}")
    except NoFormat:
        return _of_bare(path, files)
    assert dataset is not None
    return _of_tokens(path, dataset)


def _of_folder(path: str, folder: str) -> DataInfo:
    if (manifest := read_manifest(folder)) is not None:
        return _of_prepared(folder, manifest)
    if not arrow.is_folder(folder):
        files = sorted(str(file) for file in Path(folder).rglob("*") if file.name.endswith(TEXT_SUFFIXES))
        if files:
            return DataInfo(path=path, what=f"a folder of text, {len(files)} files", fix=_prepare(path))
        raise HpxferError(
            f"{path}: must be a file, a glob, or a folder of text or of a data set, got another folder; name the "
            f"files, e.g. '{cut(os.path.join(folder, '*'), 300)}'"
        )
    try:
        dataset = open_dataset(f"tokens:{path}")
    except arrow.NoIds:
        return DataInfo(path=path, what="a data set of text that `datasets` saved", fix=_prepare(path))
    assert dataset is not None
    return _of_tokens(path, dataset)


def _of_prepared(folder: str, manifest: Manifest) -> DataInfo:
    source, made = manifest.source, manifest.tokenizer
    facts: dict[str, Any] = {
        name: f"{split.tokens} tokens, {split.num_documents} documents, {len(split.shards)} shards, digest "
        f"{split.digest}"
        for name, split in manifest.splits.items()
    }
    facts["tokenizer"] = f"{made.given}, {made.vocab_size} ids, documents end with {made.eos or 'nothing'}"
    facts["source"] = f"{source.given}, {source.num_files} files, {source.num_bytes} bytes"
    facts["license"] = source.license or "not stated"
    if manifest.empty_documents:
        facts["left out"] = f"{manifest.empty_documents} documents of no tokens"
    use = {"source": f"tokens:{folder}"}
    fix = f"the vocabulary is {manifest.padded_vocab_size} ids, whole tiles of 128, and is read from the folder"
    return DataInfo(path=folder, what="a folder that `hpxfer data prepare` made", facts=facts, use=use, fix=fix)


def _of_tokens(path: str, dataset: Dataset) -> DataInfo:
    found = largest_id(dataset, MAX_DIM)
    facts = {
        "files": len(dataset.parts),
        "tokens": dataset.num_tokens,
        "largest id": f"{found.value} ({found.how_read()})",
        "digest": digest(dataset),
    }
    use = {"source": f"tokens:{path}", "vocab_size": f"{found.value + 1}  # or more, as its tokenizer has"}
    what = _FORMATS.get(dataset.format, f"token ids ({dataset.format.replace('_', ' of ')} bits)")
    return DataInfo(path=path, what=what, facts=facts, use=use)


def _of_text(path: str, files: list[str]) -> DataInfo:
    num_bytes = sum(os.path.getsize(file) for file in files)
    facts = {"files": len(files), "bytes": num_bytes}
    plain = not any(file.endswith(PACKED_SUFFIXES) for file in files)
    use = {"source": f"text:{path}"} if plain else {}
    what = "text" if plain else f"text in {''.join(Path(files[0]).suffixes[-2:])} files"
    more = f"with `text:` every byte is a token; for ids of a tokenizer: {_prepare(path)}"
    return DataInfo(path=path, what=what, facts=facts, use=use, fix=more if plain else _prepare(path))


def _of_bare(path: str, files: list[str]) -> DataInfo:
    """Return what a file without a header can be: the types of which its size is a multiple, and its largest ids."""
    facts: dict[str, Any] = {"files": len(files)}
    likely: list[tuple[str, int]] = []
    for name, size in (("uint16", 2), ("uint32", 4)):
        if any(os.path.getsize(file) % size for file in files):
            facts[f"as {name}"] = "not possible, the size is no multiple"
            continue
        ids = np.frombuffer(
            b"".join(read_bytes(file, 0, _LOOKED_AT // len(files) // 4 * 4) for file in files), f"<u{size}"
        )
        largest = int(ids.max(initial=0))
        facts[f"as {name}"] = f"largest id {largest} of the first {len(ids)}"
        if largest < _MOST_IDS and len(ids):
            likely.append((name, largest))
    if not likely:
        return DataInfo(
            path=path,
            what="a file of no known format",
            facts=facts,
            fix="write it again with a tool that "
            "states its format, or name the text that it was made from: " + _prepare("TEXT"),
        )
    name, largest = likely[-1]
    # Any bytes are numbers of 16 bits. Few vocabularies use the highest ones.
    sure = "perhaps" if name == "uint16" and largest >= 2**16 - 16 else "most likely"
    use = {"source": f"{name}:{path}", "vocab_size": f"{largest + 1}  # or more, as its tokenizer has"}
    return DataInfo(path=path, what=f"{sure} bare ids of {name}, without a header", facts=facts, use=use)


def _prepare(path: str) -> str:
    return f"hpxfer data prepare {shlex.quote(path)} --tokenizer tokenizer.json --out DIR"
