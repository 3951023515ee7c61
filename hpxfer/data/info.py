"""Info: what a file or folder of data is, whether a sweep can use it, and whether the vocabulary can be right."""

from __future__ import annotations

import glob
import json
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpxfer.data.formats import HEAD_BYTES, PACKED_SUFFIXES, TEXT_SUFFIXES, NoFormat, arrow, is_text
from hpxfer.data.prepared import damage, hashed, missing, unknown
from hpxfer.data.reference import digest
from hpxfer.data.samples import sample_source_of
from hpxfer.data.samples.builtin import MAKERS
from hpxfer.data.samples.reference import guessed, sample_facts
from hpxfer.data.sources import SOURCES, open_dataset, source_of
from hpxfer.data.sources.dataset import Dataset, check_ids, read_bytes, spans
from hpxfer.data.sources.tokens import check_finished, pairs_of_uint32, pattern_in, token_files
from hpxfer.errors import HpxferError, cut
from hpxfer.host.files import folder_at
from hpxfer.scaling.shape import MAX_DIM
from hpxfer.spec.data_section import DataSpec
from hpxfer.spec.manifest import Manifest, read_manifest
from hpxfer.spec.source_kind import SAMPLES, source_kind
from hpxfer.spec.vocabulary import vocabulary
from hpxfer.storage.uri import is_uri

# The largest token id of a data set: whether the vocabulary that a sweep gives, or leaves out, can be right.
#
# A model is planned with one embedding and one logit per id of the vocabulary. With gpt2's 50304 ids for data of 500
# ids, it is a much larger model than the data needs, and nothing fails.

# Planning reads at most so many tokens, 128 MiB of shards: 0.1 s from memory (one core of an AMD EPYC, 2026-11), about
# a second from a slow disk.
MOST_TOKENS = 2**26
PIECE_TOKENS = 2**18
# Data that uses less of its vocabulary was most likely written with another tokenizer: shards of gpt2 ids hold the
# largest id of all, 50256, between their documents.
USED = 0.9


@dataclass(frozen=True, kw_only=True)
class LargestId:
    """The largest id among the tokens that were read."""

    value: int
    num_read: int
    num_tokens: int  # of the whole data set

    def how_read(self) -> str:
        """Return in words how much of the data the id is the largest of."""
        if self.num_read == self.num_tokens:
            return "all its tokens were read"
        return f"{self.num_read} of its {self.num_tokens} tokens were read, spread evenly"


def largest_id(dataset: Dataset, vocab_size: int) -> LargestId:
    """Return the largest id of a data set that holds ids, or of pieces spread evenly if the data set is large.

    Raise HpxferError for an id that is not in the vocabulary.
    """
    value = num_read = 0
    for begin, end in pieces(dataset.num_tokens):
        for index, low, high in spans(dataset.starts, begin, end):
            part = dataset.parts[index]
            ids = part.read(low, high)
            check_ids(ids, vocab_size, part.path, low)
            value, num_read = max(value, int(ids.max())), num_read + len(ids)
    return LargestId(value=value, num_read=num_read, num_tokens=dataset.num_tokens)


def pieces(num_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of tokens to read: all of them, or pieces of which the first and the last are the ends."""
    if num_tokens <= MOST_TOKENS:
        yield from ((begin, min(begin + PIECE_TOKENS, num_tokens)) for begin in range(0, num_tokens, PIECE_TOKENS))
        return
    number = MOST_TOKENS // PIECE_TOKENS
    for index in range(number):
        begin = index * (num_tokens - PIECE_TOKENS) // (number - 1)
        yield begin, begin + PIECE_TOKENS


def vocabulary_cautions(spec: DataSpec) -> tuple[str, ...]:
    """Return a caution if the sweep leaves the vocabulary to the default and the ids of the data do not fit to it.

    Nothing is known of data that is not on this machine, and of text the vocabulary is known. Raise HpxferError for
    an id that is not in the vocabulary.
    """
    source = source_of(spec.source)
    dataset = open_dataset(spec.source)
    if not source.holds_ids or dataset is None or is_uri(spec.source.partition(":")[2]):
        return ()  # of data in storage, the digest checks a sample of the ids
    tokenizer, vocab_size = vocabulary(spec)
    held_out = spec.validation and open_dataset(spec.validation, "data.validation")
    if held_out:
        largest_id(held_out, vocab_size)
    found = largest_id(dataset, vocab_size)
    num_ids = source.unpadded.get(tokenizer, vocab_size)
    is_given = spec.tokenizer is not None or spec.vocab_size is not None
    if is_given or source.max_vocab_size is None or USED * num_ids <= found.value + 1 <= num_ids:
        return ()
    size = f"{vocab_size} ids" if num_ids == vocab_size else f"{num_ids} ids, padded to {vocab_size}"
    return (
        f"data.vocab_size: not given, so the vocabulary of {tokenizer} is assumed, {size}, and the largest id of "
        f"{spec.source} is {found.value} ({found.how_read()}); write vocab_size: {found.value + 1}, or more if the "
        f"tokenizer of the data has more ids; tokenizer: {tokenizer} keeps {vocab_size} without this warning",
    )


_FORMATS = {
    "tokens": "token shards of uint16 (llm.c version 1)",
    "tokens_uint32": "token shards of uint32 (llm.c version 7)",
    "text": "text",
}
# No vocabulary is as large. Bare ids beyond it were written in another type.
_MOST_IDS = 10**6
_LOOKED_AT = 2**22  # bytes of a file without a header
_MORE_IDS = "vocab_size is the largest id and one: write more if the tokenizer of the data has more ids"


class TextFiles(Protocol):
    """Files of text of one kind, as `hpxfer data prepare` reads them."""

    @property
    def kind(self) -> str: ...

    @property
    def files(self) -> tuple[tuple[str, int], ...]:
        """(path, bytes) of each file."""


# (path, field) -> the files of text that it names. It raises HpxferError where `hpxfer data prepare` would.
OpenText = Callable[[str, str], TextFiles]


@dataclass(frozen=True, kw_only=True)
class DataInfo:
    """What is known of some data. `use` is the `data` section of a sweep, empty if no sweep can read it."""

    path: str
    what: str
    facts: dict[str, Any] = field(default_factory=dict)
    use: dict[str, str | int] = field(default_factory=dict)
    fix: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"path": self.path, "what": self.what, "facts": self.facts, "use": self.use, "fix": self.fix}

    def text(self) -> str:
        lines = [f"{self.path}: {self.what}"]
        lines += [f"  {name}: {_in_words(value)}" for name, value in self.facts.items()]
        if self.use:
            lines += ["a sweep can use it:", "  data:"]
            lines += [f"    {key}: {_as_yaml(value)}" for key, value in self.use.items()]
        if self.fix:
            lines.append(self.fix if self.use else f"a sweep cannot use it as it is: {self.fix}")
        return "\n".join(lines)


def info(given: str, open_text: OpenText) -> DataInfo:
    """Return what a file, a folder, a glob, or a source such as `uint16:PATH` is.

    Raise HpxferError if there is nothing, or it is broken.
    """
    kind, _, path = given.partition(":")
    is_source = bool(path) and not os.path.lexists(given)
    if is_source and source_kind(given) == SAMPLES:
        return _of_samples(given)
    if (name := guessed(given)) is not None:
        return _of_samples(name)
    if kind not in SOURCES or not is_source:
        return _of_path(given, open_text)
    if kind == "tokens":
        return _of_path(path, open_text)
    if (problem := source_of(given).problem(path)) is not None:
        of_samples = f", or for samples: {', '.join(MAKERS)}" if kind == "builtin" else ""
        raise HpxferError(f"{given}: {problem}{of_samples}")
    dataset = open_dataset(given)
    if dataset is None:
        raise _nothing(given)
    if source_of(given).holds_ids:
        return _of_tokens(given, given, dataset)
    facts = {"files": len(dataset.parts), "bytes": dataset.num_tokens}
    return DataInfo(path=given, what="text, every byte a token", facts=facts, use={"source": _from_root(given)})


def _of_samples(name: str) -> DataInfo:
    if (problem := sample_source_of(name).problem(name.partition(":")[2])) is not None:
        raise HpxferError(f"{name}: {problem}")
    facts = sample_facts(name)
    if facts is None:
        raise _nothing(name)
    fix = "a sweep of a family that reads samples states inputs, and classes or targets, only where it has no data"
    return DataInfo(path=name, what="samples", facts=facts, use={"source": _from_root(name)}, fix=fix)


def _of_path(path: str, open_text: OpenText) -> DataInfo:
    if (folder := folder_at(path)) is not None:
        return _of_folder(path, folder, open_text)
    files = token_files(path, "PATH")
    if not files:
        raise _nothing(path)
    if files[0].endswith(TEXT_SUFFIXES) or is_text(read_bytes(files[0], 0, HEAD_BYTES)):
        return _of_text(path, files, open_text)
    try:
        dataset = open_dataset(f"tokens:{path}")
    except NoFormat:
        return _of_bare(path, files)
    assert dataset is not None
    return _of_tokens(path, f"tokens:{path}", dataset)


def _nothing(given: str) -> HpxferError:
    return HpxferError(f"{given}: must name data, got nothing of that name; correct the path")


def _of_folder(path: str, folder: str, open_text: OpenText) -> DataInfo:
    if (manifest := read_manifest(folder)) is not None:
        return _of_prepared(folder, manifest)
    if arrow.is_folder(folder):
        try:
            dataset = open_dataset(f"tokens:{path}")
        except arrow.NoIds:
            return DataInfo(path=path, what="a data set of text that `datasets` saved", fix=_prepare(path))
        assert dataset is not None
        return _of_tokens(path, f"tokens:{path}", dataset)
    check_finished(folder)
    pattern = pattern_in(folder)
    try:
        found = open_text(path, "text")
    except HpxferError:
        if pattern is None:
            raise
        raise HpxferError(
            f"{path}: must be a file, a glob, or a folder of text or of a data set, got a folder of other files; name "
            f"them: '{cut(pattern, 300)}'"
        ) from None
    facts: dict[str, Any] = {"files": len(found.files), "bytes": sum(size for _, size in found.files)}
    if pattern is not None:
        facts["files that may hold token ids"] = pattern
    what = f"a folder of {'text files' if found.kind == 'text' else f'text in {found.kind} files'}"
    return DataInfo(path=path, what=what, facts=facts, fix=_prepare(path) if facts["bytes"] else "all files are empty")


def _of_prepared(folder: str, manifest: Manifest) -> DataInfo:
    source, made = manifest.source, manifest.tokenizer
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
    facts["checked"] = hashed(manifest)
    if lacking := missing(folder, manifest):
        facts["missing, not needed by a sweep"] = ", ".join(lacking)
    if others := unknown(folder, manifest):
        facts["not in the manifest, not read"] = ", ".join(others)
    what = "a folder that `hpxfer data prepare` made"
    if broken := damage(folder, manifest):
        facts["damage"] = broken
        fix = "copy the folder again, or prepare the data again"
        return DataInfo(path=folder, what=f"{what}, damaged", facts=facts, fix=fix)
    use: dict[str, str | int] = {"source": _from_root(f"tokens:{folder}")}
    fix = f"the vocabulary is {manifest.padded_vocab_size} ids, whole tiles of 128, and is read from the folder"
    return DataInfo(path=folder, what=what, facts=facts, use=use, fix=fix)


def _of_tokens(path: str, name: str, dataset: Dataset) -> DataInfo:
    found = largest_id(dataset, MAX_DIM)
    facts = {
        "files": len(dataset.parts),
        "tokens": dataset.num_tokens,
        "largest id": found.value,
        "tokens read for it": found.num_read,
        "digest": digest(dataset),
    }
    what = _FORMATS.get(dataset.format, f"token ids ({dataset.format.replace('_', ' of ')} bits)")
    if not source_of(name).tokenizers:
        what = f"bare ids of {dataset.format}, without a header"
    use: dict[str, str | int] = {"source": _from_root(name), "vocab_size": found.value + 1}
    return DataInfo(path=path, what=what, facts=facts, use=use, fix=_MORE_IDS)


def _of_text(path: str, files: list[str], open_text: OpenText) -> DataInfo:
    facts = {"files": len(files), "bytes": sum(os.path.getsize(file) for file in files)}
    plain = not any(file.endswith(PACKED_SUFFIXES) for file in files)
    what = "text" if plain else f"text in {''.join(Path(files[0]).suffixes[-2:])} files"
    if not facts["bytes"]:
        return DataInfo(path=path, what="an empty file of text", facts=facts, fix="name a file that holds text")
    try:
        open_text(path, "text")
        fix = _prepare(path)
    except HpxferError as error:
        fix = f"`hpxfer data prepare` refuses it: {error}"
    if not plain:
        return DataInfo(path=path, what=what, facts=facts, fix=fix)
    fix = f"with `text:` every byte is a token; for ids of a tokenizer: {fix}"
    return DataInfo(path=path, what=what, facts=facts, use={"source": _from_root(f"text:{path}")}, fix=fix)


def _of_bare(path: str, files: list[str]) -> DataInfo:
    """Return what a file without a header can be: the types of which its size is a multiple, and its largest ids."""
    facts: dict[str, Any] = {"files": len(files)}
    content = b"".join(read_bytes(file, 0, _LOOKED_AT // len(files) // 4 * 4) for file in files)
    likely: dict[str, int] = {}
    for name, size in (("uint16", 2), ("uint32", 4)):
        if any(os.path.getsize(file) % size for file in files):
            facts[f"as {name}"] = "not possible, the size is no multiple"
            continue
        ids = np.frombuffer(content[: len(content) // size * size], f"<u{size}")
        largest = int(ids.max(initial=0))
        facts[f"as {name}"] = {"largest id": largest, "ids read": len(ids)}
        if largest < _MOST_IDS and len(ids) and (size == 2 or pairs_of_uint32(content)):
            likely[name] = largest
    if not likely:
        fix = "write it again with a tool that states its format, or name the text that it was made from: "
        return DataInfo(path=path, what="a file of no known format", facts=facts, fix=fix + _prepare("TEXT"))
    name, largest = list(likely.items())[-1]
    # Any bytes are numbers of 16 bits. Few vocabularies use the highest ones.
    sure = "perhaps" if name == "uint16" and largest >= 2**16 - 16 else "most likely"
    what = f"{sure} bare ids of {name}, without a header"
    use: dict[str, str | int] = {"source": _from_root(f"{name}:{path}"), "vocab_size": largest + 1}
    return DataInfo(path=path, what=what, facts=facts, use=use, fix=_MORE_IDS)


def _from_root(name: str) -> str:
    """Return a source whose path starts at the root, so that it holds in a sweep file of any folder."""
    kind, _, path = name.partition(":")
    if source_kind(name) == SAMPLES:
        return f"{kind}:{os.path.abspath(path)}" if sample_source_of(name).is_path else name
    if not source_of(name).is_path or is_uri(path):
        return name
    start = "" if os.path.lexists(path) else glob.escape(os.getcwd())
    return f"{kind}:{os.path.join(start, path) if start else os.path.abspath(path)}"


def _prepare(path: str) -> str:
    return f"hpxfer data prepare {shlex.quote(path)} --tokenizer tokenizer.json --out DIR"


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return "; ".join(value) if isinstance(value, list) else str(value)


def _as_yaml(value: str | int) -> str:
    return json.dumps(value) if isinstance(value, str) and (": " in value or " #" in value) else str(value)
