"""Info: what a file or folder of data is, and what a sweep writes to use it."""

from __future__ import annotations

import glob
import json
import os
import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpxfer.data import (
    MAKERS,
    SOURCES,
    Dataset,
    Manifest,
    Samples,
    inspected,
    largest_id,
    open_dataset,
    opened,
    read_bytes,
    read_manifest,
    row_of,
    source_of,
)
from hpxfer.data.readers import arrow, cifar, ids, idx
from hpxfer.errors import HpxferError
from hpxfer.host import folder_at, is_uri
from hpxfer.prepare.source import open_source
from hpxfer.scaling.shape import MAX_DIM
from hpxfer.spec import SAMPLES, source_kind

# No vocabulary is as large. Bare ids beyond it were written in another type.
_MOST_IDS = 10**6
_LOOKED_AT = 2**22  # bytes of a file without a header
_COUNTED = 10_000  # samples of a source without end, of which the classes are counted
_MOST_COUNTS = 20  # counts that are listed one by one
_FORMATS = {
    "tokens": "token shards of uint16 (llm.c version 1)",
    "tokens_uint32": "token shards of uint32 (llm.c version 7)",
}
_MORE_IDS = "vocab_size is the largest id and one: write more if the tokenizer of the data has more ids"
_STATED = "a sweep of a family that reads samples states inputs, and classes or targets, only where it has no data"


@dataclass(frozen=True, kw_only=True)
class DataInfo:
    """What is known of some data. `use` is the `data` section of a sweep, empty if no sweep can read it."""

    path: str
    what: str
    facts: dict[str, Any] = field(default_factory=dict)
    use: dict[str, str | int] = field(default_factory=dict)
    fix: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        def words(value: Any) -> str:
            if isinstance(value, dict):
                return ", ".join(f"{name} {one}" for name, one in value.items())
            return "; ".join(value) if isinstance(value, list) else str(value)

        def yaml(value: str | int) -> str:
            return json.dumps(value) if isinstance(value, str) and (": " in value or " #" in value) else str(value)

        lines = [f"{self.path}: {self.what}", *(f"  {name}: {words(value)}" for name, value in self.facts.items())]
        if self.use:
            lines += ["a sweep can use it:", "  data:"]
            lines += [f"    {key}: {yaml(value)}" for key, value in self.use.items()]
        if self.fix:
            lines.append(self.fix if self.use else f"a sweep cannot use it as it is: {self.fix}")
        return "\n".join(lines)


def info(given: str) -> DataInfo:
    """Return what a file, a folder, a glob, or a source such as `uint16:PATH` is.

    Raise HpxferError if there is nothing, or it is broken.
    """
    kind, _, path = given.partition(":")
    is_source = bool(path) and not os.path.lexists(given)
    name = given if is_source and source_kind(given) == SAMPLES else _guessed(given)
    if name is None and (not is_source or kind not in SOURCES or kind == "tokens"):
        return _of_path(path if is_source and kind == "tokens" else given)
    name = name or given
    if (problem := row_of(name).problem(name.partition(":")[2])) is not None:
        raise HpxferError(f"{name}: {problem}" + f", or for samples: {', '.join(MAKERS)}" * (kind == "builtin"))
    found = opened(name)
    if found is None:
        raise _nothing(given)
    if not isinstance(found, Dataset):
        return DataInfo(path=name, what="samples", facts=_sample_facts(found), use=_use(name), fix=_STATED)
    if source_of(name).holds_ids:
        return _of_tokens(name, name, found)
    facts = {"files": len(found.parts), "bytes": found.num_tokens}
    return DataInfo(path=name, what="text, every byte a token", facts=facts, use=_use(name))


def _nothing(given: str) -> HpxferError:
    return HpxferError(f"{given}: must name data, got nothing of that name")


def _guessed(path: str) -> str | None:
    """Return the source of samples that a path most likely is, by the names of files alone, or None."""
    if (folder := folder_at(path)) is not None:
        names = os.listdir(folder)
        kinds = {"idx": any(map(idx.is_images, names)), "cifar": any(map(cifar.is_one, names))}
    else:
        is_file = os.path.isfile(path)
        kinds = {"npz": is_file and path.endswith(".npz"), "idx": is_file and "idx3-ubyte" in os.path.basename(path)}
    return next((f"{kind}:{path}" for kind, is_one in kinds.items() if is_one), None)


def _of_path(path: str) -> DataInfo:
    files: list[str] = []
    if (folder := folder_at(path)) is not None:
        if (manifest := read_manifest(folder)) is not None:
            return _of_prepared(folder, manifest)
        if not arrow.is_folder(folder):
            return _of_folder(path)
    else:
        files = ids.token_files(path, "PATH")
        if not files:
            raise _nothing(path)
        if files[0].endswith(ids.TEXT_SUFFIXES) or ids.is_text(read_bytes(files[0], 0, 1024)):
            return _of_text(path, files)
    try:
        dataset = open_dataset(f"tokens:{path}")
    except arrow.NoIds:
        return DataInfo(path=path, what="a data set of text that `datasets` saved", fix=_prepare(path))
    except ids.NoFormat:
        return _of_bare(path, files)
    assert dataset is not None
    return _of_tokens(path, f"tokens:{path}", dataset)


def _of_folder(path: str) -> DataInfo:
    try:
        found = open_source(path, "text")
    except HpxferError as error:
        raise HpxferError(f"{error}; files of token ids are named by a glob") from None
    facts: dict[str, Any] = {"files": len(found.files), "bytes": found.num_bytes}
    what = f"a folder of {'text files' if found.kind == 'text' else f'text in {found.kind} files'}"
    return DataInfo(path=path, what=what, facts=facts, fix=_prepare(path) if facts["bytes"] else "all files are empty")


def _of_prepared(folder: str, manifest: Manifest) -> DataInfo:
    source, made, what = manifest.source, manifest.tokenizer, "a folder that `hpxfer data prepare` made"
    facts: dict[str, Any] = {
        name: {
            "tokens": split.tokens,
            "documents": split.num_documents,
            "shards": len(split.shards),
            "digest": split.digest,
        }
        for name, split in manifest.splits.items()
    }
    facts["tokenizer"] = {"given": made.given, "ids": made.vocab_size, "end of a document": made.eos or "none"}
    facts["source"] = {"given": source.given, "files": source.num_files, "bytes": source.num_bytes}
    facts["license"] = source.license or "not stated"
    if manifest.empty_documents:
        facts["documents of no tokens, left out"] = manifest.empty_documents
    of_files, damage = inspected(folder, manifest)
    facts |= of_files
    if damage:
        fix = "copy the folder again, or prepare the data again"
        return DataInfo(path=folder, what=f"{what}, damaged", facts=facts | {"damage": damage}, fix=fix)
    fix = f"the vocabulary is {manifest.padded_vocab_size} ids, whole tiles of 128, and is read from the folder"
    return DataInfo(path=folder, what=what, facts=facts, use=_use(f"tokens:{folder}"), fix=fix)


def _of_tokens(path: str, name: str, dataset: Dataset) -> DataInfo:
    largest, num_read = largest_id(dataset, MAX_DIM)
    facts = {
        "files": len(dataset.parts),
        "tokens": dataset.num_tokens,
        "largest id": largest,
        "tokens read for it": num_read,
        "digest": dataset.digest(),
    }
    what = _FORMATS.get(dataset.format, f"token ids ({dataset.format.replace('_', ' of ')} bits)")
    if not source_of(name).tokenizers:
        what = f"bare ids of {dataset.format}, without a header"
    return DataInfo(path=path, what=what, facts=facts, use=_use(name, largest), fix=_MORE_IDS)


def _of_text(path: str, files: list[str]) -> DataInfo:
    facts = {"files": len(files), "bytes": sum(os.path.getsize(file) for file in files)}
    if not facts["bytes"]:
        return DataInfo(path=path, what="an empty file of text", facts=facts, fix="name a file that holds text")
    try:
        open_source(path, "text")
        fix = _prepare(path)
    except HpxferError as error:
        fix = f"`hpxfer data prepare` refuses it: {error}"
    if any(file.endswith(ids.PACKED_SUFFIXES) for file in files):
        what = f"text in {''.join(Path(files[0]).suffixes[-2:])} files"
        return DataInfo(path=path, what=what, facts=facts, fix=fix)
    fix = f"with `text:` every byte is a token; for ids of a tokenizer: {fix}"
    return DataInfo(path=path, what="text", facts=facts, use=_use(f"text:{path}"), fix=fix)


def _of_bare(path: str, files: list[str]) -> DataInfo:
    """Return what a file without a header can be: the types of which its size is a multiple, and its largest ids."""
    facts: dict[str, Any] = {"files": len(files)}
    content = b"".join(read_bytes(file, 0, _LOOKED_AT // len(files) // 4 * 4) for file in files)
    likely: dict[str, int] = {}
    for name, size in (("uint16", 2), ("uint32", 4)):
        if any(os.path.getsize(file) % size for file in files):
            facts[f"as {name}"] = "not possible, the size is no multiple"
            continue
        found = np.frombuffer(content[: len(content) // size * size], f"<u{size}")
        largest = int(found.max(initial=0))
        facts[f"as {name}"] = {"largest id": largest, "ids read": len(found)}
        if largest < _MOST_IDS and len(found) and (size == 2 or ids.pairs_of_uint32(content)):
            likely[name] = largest
    if not likely:
        fix = f"name the text that it was made from: {_prepare('TEXT')}"
        return DataInfo(path=path, what="a file of no known format", facts=facts, fix=fix)
    name, largest = list(likely.items())[-1]
    # Any bytes are numbers of 16 bits. Few vocabularies use the highest ones.
    sure = "perhaps" if name == "uint16" and largest >= 2**16 - 16 else "most likely"
    what = f"{sure} bare ids of {name}, without a header"
    return DataInfo(path=path, what=what, facts=facts, use=_use(f"{name}:{path}", largest), fix=_MORE_IDS)


def _sample_facts(samples: Samples) -> dict[str, Any]:
    """Return what is known of samples, in words and numbers. All samples are read."""
    facts, normalization = samples.facts, samples.normalization
    num_train, num_test = samples.num_train, samples.num_test
    out: dict[str, Any] = {
        "training samples": "without end" if num_train is None else num_train,
        "test samples": "without end" if num_test is None else num_test,
        "inputs": f"{facts.num_inputs} ({' x '.join(map(str, facts.shape))})",
        "normalization": "none, real inputs are read as they are",
    }
    if num_test == 0:
        out["test samples"] = "none, so some training samples are held out"
    if normalization is not None:
        out["normalization"] = "(pixel - {:.6g}) / {:.6g}".format(*normalization)
    if facts.num_classes:
        num = _COUNTED if num_train is None else num_train
        counts = np.bincount(samples.train(0, 0, num, 0)[1], minlength=facts.num_classes).tolist()
        several = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(min(counts))
        text = ", ".join(map(str, counts)) if len(counts) <= _MOST_COUNTS else several
        out["classes"] = facts.num_classes
        out["training samples per class"] = text + (f" in the first {num} of seed 0" if num_train is None else "")
    else:
        out["targets"] = f"{facts.num_targets} real"
    return out | {"digest": samples.digest()}


def _use(name: str, largest: int | None = None) -> dict[str, str | int]:
    """Return the section `data` for a source, whose path starts at the root: it holds in a sweep file of any folder."""
    kind, _, path = name.partition(":")
    if row_of(name).is_path and not is_uri(path):
        is_literal = source_kind(name) == SAMPLES or os.path.lexists(path)
        name = f"{kind}:{os.path.abspath(path) if is_literal else os.path.join(glob.escape(os.getcwd()), path)}"
    return {"source": name} | ({} if largest is None else {"vocab_size": largest + 1})


def _prepare(path: str) -> str:
    return f"hpxfer data prepare {shlex.quote(path)} --tokenizer tokenizer.json --out DIR"
