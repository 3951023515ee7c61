"""Tokenize: the tokenizer, and from the texts of a segment to token ids.

Every document's ids are followed by the end-of-document token. No other special token is added, because windows of
training data start anywhere. A long text is cut after a line, and its parts are encoded one by one. Only a token that
would cross the cut comes out otherwise.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpxfer.data import TokenizerEntry
from hpxfer.errors import HpxferError, cut, first_line, shown
from hpxfer.host import read_bytes
from hpxfer.prepare.blocks import Segment

# A tokenizer takes about 100 bytes of memory per character of a text.
MOST_CHARS = 2**20
FILE = "tokenizer.json"
MORE_FILES = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
# What tokenizers call the token that ends a document, the most common names first.
EOS_NAMES = (
    *("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>", "[EOS]", "<EOS>"),
    *("<\uff5cend\u2581of\u2581sentence\uff5c>", "<|endofdocument|>", "[SEP]"),
)
NO_EOS = "none"
NO_LIMIT = 2**64


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer and the files that make it."""

    entry: TokenizerEntry
    files: dict[str, bytes]  # name -> content, of FILE and MORE_FILES

    @property
    def token_bytes(self) -> Literal[2, 4]:
        return 2 if self.entry.vocab_size <= 2**16 else 4


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every process needs to know."""

    tokenizer_file: str
    tokenizer_digest: str
    eos_id: int | None
    token_bytes: int
    held_out_share: float  # of the documents, which are offered to validation by a hash of their tokens


@dataclass(frozen=True, kw_only=True)
class Tokenized:
    """The ids of a segment. `lengths` are those of its documents, or of its part of one, with the last token."""

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    offered: NDArray[np.bool_]  # the documents that validation may choose from
    num_empty: int
    goes_on: bool  # the first length belongs to the document before
    num_bytes: int


def load_tokenizer(given: str, eos: str | None) -> Tokenizer:
    """Return the tokenizer in a file, in a folder, or of a name on the hub.

    `eos` names the token that ends a document, or NO_EOS. By default it is the one that the tokenizer's config states,
    or a common name that its vocabulary has. Raises HpxferError if there is no such tokenizer, or no such token.
    """
    try:
        import tokenizers
    except ImportError:
        raise HpxferError("hpxfer data prepare needs the package tokenizers: pip install 'hpxfer[hf]'") from None
    files = _files(given)
    try:
        found: Any = tokenizers.Tokenizer.from_str(files[FILE].decode("utf-8"))
    except Exception as error:  # tokenizers raises bare Exceptions
        why = cut(first_line(error), 200)
        raise HpxferError(
            f"{given}: must be a tokenizer.json of the package tokenizers, got another file: {why}"
        ) from None
    vocabulary: dict[str, int] = found.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise HpxferError(f"{given}: must have a vocabulary, got none; train the tokenizer first")
    name = None if eos == NO_EOS else _eos(given, eos, files, vocabulary)
    entry = TokenizerEntry(
        given=given,
        digest=hashlib.blake2b(files[FILE], digest_size=16).hexdigest(),
        vocab_size=max(vocabulary.values()) + 1,
        eos=name,
        eos_id=None if name is None else vocabulary[name],
    )
    return Tokenizer(entry=entry, files=files)


def _files(given: str) -> dict[str, bytes]:
    """Return the content of the files of a tokenizer, by name."""
    path = Path(given)
    if path.is_dir() and not (path := path / FILE).is_file():
        raise HpxferError(f"--tokenizer: the folder must hold a {FILE}, got {given} without one")
    names = (FILE, *MORE_FILES)
    if path.is_file():
        paths: list[Path | None] = [path, *map(path.with_name, MORE_FILES)]
    elif path.suffix == ".json" or given.startswith((".", "/", "~")):
        rule = "must be a tokenizer.json, its folder, or a name on the hub"
        raise HpxferError(f"--tokenizer: {rule}, got {given}, which is not there")
    else:
        paths = [_from_hub(given, name) for name in names]
    try:
        found = zip(names, paths, strict=True)
        return {name: read_bytes(each, 2**28) for name, each in found if each is not None and each.is_file()}
    except OSError as error:
        raise HpxferError(f"{given}: cannot be read: {error.strerror}") from None


def _from_hub(given: str, name: str) -> Path | None:
    """Return a file of a tokenizer on the hub, None if it has none of this name."""
    import huggingface_hub

    try:
        if not isinstance(huggingface_hub.try_to_load_from_cache(given, name), str):
            # A download would try for a minute where there is no network. This fails at once.
            huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(given, name))
        return Path(huggingface_hub.hf_hub_download(given, name))
    except Exception as error:  # of the hub or the network
        if name != FILE:
            return None
        why = cut(first_line(error), 300)
        raise HpxferError(
            f"--tokenizer: {shown(given)} is no file here, and cannot be fetched from the hub: {why}"
        ) from None


def _eos(given: str, eos: str | None, files: dict[str, bytes], vocabulary: dict[str, int]) -> str:
    """Return the token that ends a document."""
    if eos is not None:
        if eos not in vocabulary:
            raise HpxferError(f"--eos: must be a token of {given}, got {shown(eos)}; or none, to join documents")
        return eos
    try:
        stated = json.loads(files.get("tokenizer_config.json", b"{}")).get("eos_token")
    except (ValueError, AttributeError):
        stated = None
    stated = stated.get("content") if isinstance(stated, dict) else stated
    for name in (stated, *EOS_NAMES):
        if isinstance(name, str) and name in vocabulary:
            return name
    raise HpxferError(
        f"--eos: {given} names no token that ends a document, and has none of the common ones; name it, e.g. --eos "
        "'<|endoftext|>', or write --eos none, to join documents without one"
    )


def tokenized(segment: Segment, job: Job) -> Tokenized:
    """Return the ids of a segment."""
    texts, is_text = segment.texts, segment.kind == "text"
    # A file of text is one document, of which a segment may hold a part.
    closes, is_whole = not is_text or segment.is_last, not is_text or (segment.is_first and segment.is_last)
    end = [job.eos_id] if closes and job.eos_id is not None else []
    parts, offered = [], []
    below = int(job.held_out_share * NO_LIMIT)
    for ids in _encoded(job, texts):
        if ids or (closes and not is_whole and not segment.is_first):
            parts.append(np.array(ids + end, f"<u{job.token_bytes}"))
            offered.append(is_whole and below > 0 and key_of(parts[-1]) < below)
    return Tokenized(
        ids=np.concatenate(parts) if parts else np.empty(0, f"<u{job.token_bytes}"),
        lengths=np.array([len(part) for part in parts], np.int64),
        offered=np.array(offered, bool),
        num_empty=len(texts) - len(parts) if is_whole else 0,
        goes_on=is_text and not segment.is_first,
        num_bytes=segment.num_bytes,
    )


def key_of(ids: NDArray[Any]) -> int:
    """Return the hash of a document, below 2^64."""
    return int.from_bytes(hashlib.blake2b(ids.tobytes(), digest_size=8).digest(), "little")


def _encoded(job: Job, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the ids of each text. Half a surrogate pair is no character, and becomes `?`."""
    tokenizer = _loaded(job.tokenizer_file, job.tokenizer_digest)
    parts_of = [list(_cut_up(text.encode("utf-8", "replace").decode("utf-8"))) for text in texts]
    flat = iter(tokenizer.encode_batch_fast([part for parts in parts_of for part in parts], add_special_tokens=False))
    for parts in parts_of:
        yield [id_ for _ in parts for id_ in next(flat).ids]


def _cut_up(text: str) -> Iterator[str]:
    """Yield a text in parts of at most MOST_CHARS, cut after a line if there is one."""
    while len(text) > MOST_CHARS:
        at = text.rfind("\n", 0, MOST_CHARS) + 1 or MOST_CHARS
        yield text[:at]
        text = text[at:]
    yield text


@lru_cache(maxsize=1)
def _loaded(file: str, _digest: str) -> Any:
    # The digest is a part of the cache's key: the same path may hold another tokenizer later.
    # One thread a process: the processes share the machine already.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import tokenizers

    found: Any = tokenizers.Tokenizer.from_file(file)
    found.no_truncation()
    found.no_padding()
    return found
