"""Tokenize: from the texts of a segment to token ids, and which documents are held out.

Every document's ids are followed by the end-of-document token. No other special token is added, because windows of
training data start anywhere. A long text is cut after a line, and its parts are encoded one by one. Only a token that
would cross the cut comes out otherwise.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpxfer.errors import HpxferError, cut, first_line, shown
from hpxfer.host.files import read_bytes
from hpxfer.prepare.blocks import Segment

# Held out: the documents of the validation split, chosen by a hash of their tokens while they stream by.
#
# Validation takes the documents with the smallest hashes, as many as it has room for. So it is spread over the whole
# source, and copies of a document are all on its side or all on the other. Which documents those are is known at the
# end alone: until then each document that may be among them waits, and one that no longer may goes back to training.

Ids = NDArray[np.unsignedinteger]
NO_LIMIT = 2**64


def key_of(ids: Ids) -> int:
    """Return the hash of a document, below 2^64."""
    return int.from_bytes(hashlib.blake2b(ids.tobytes(), digest_size=8).digest(), "little")


class HeldOut:
    """The documents that may be held out. Validation needs `wanted` tokens. Only keys below `limit` may still join."""

    def __init__(self, wanted: int, limit: int = NO_LIMIT) -> None:
        self.wanted, self.limit = wanted, limit if wanted else 0
        self.size = 0
        self._documents: dict[int, Ids] = {}  # by the order in which they came
        self._groups: dict[int, list[int]] = {}  # key -> documents of the same tokens
        self._keys: list[int] = []  # a heap of the keys, the largest first

    def takes(self, ids: Ids, key: int) -> bool:
        """Whether a document may be one of validation's."""
        return key < self.limit and len(ids) <= self.wanted

    def add(self, ids: Ids, key: int) -> Iterator[Ids]:
        """Add a document, and yield those that go back to training."""
        number = next(reversed(self._documents), -1) + 1
        self._documents[number] = ids
        if key not in self._groups:
            heapq.heappush(self._keys, -key)
        self._groups.setdefault(key, []).append(number)
        self.size += len(ids)
        while self.size - self._num_last() >= self.wanted:
            yield from self._leave()

    def surplus(self) -> Iterator[Ids]:
        """Yield the documents that go back to training at the end, so that no more is held out than is wanted."""
        while self.size > self.wanted:
            yield from self._leave()

    def documents(self) -> list[Ids]:
        """Return what is held out, in the order of the source."""
        return list(self._documents.values())

    def _num_last(self) -> int:
        """Return the tokens of the documents with the largest key."""
        return sum(len(self._documents[number]) for number in self._groups[-self._keys[0]])

    def _leave(self) -> Iterator[Ids]:
        """Yield the documents with the largest key, which are no longer held out."""
        key = -heapq.heappop(self._keys)
        self.limit = key
        for number in self._groups.pop(key):
            ids = self._documents.pop(number)
            self.size -= len(ids)
            yield ids


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


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer and the files that make it."""

    given: str
    files: dict[str, bytes]  # name -> content, of FILE and MORE_FILES
    vocab_size: int  # one more than the largest id
    eos: str | None
    eos_id: int | None

    @property
    def digest(self) -> str:
        return hashlib.blake2b(self.files[FILE], digest_size=16).hexdigest()

    @property
    def token_bytes(self) -> Literal[2, 4]:
        return 2 if self.vocab_size <= 2**16 else 4


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
        raise HpxferError(
            f"{given}: must be a tokenizer.json of the package tokenizers, got another file: "
            f"{cut(first_line(error), 200)}"
        ) from None
    vocabulary: dict[str, int] = found.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise HpxferError(f"{given}: must have a vocabulary, got none; train the tokenizer first")
    name = _eos(given, eos, files, vocabulary)
    return Tokenizer(
        given=given,
        files=files,
        vocab_size=max(vocabulary.values()) + 1,
        eos=name,
        eos_id=None if name is None else vocabulary[name],
    )


def _files(given: str) -> dict[str, bytes]:
    path = Path(given)
    if path.is_dir():
        path = path / FILE
        if not path.is_file():
            raise HpxferError(
                f"--tokenizer: the folder must hold a {FILE}, got {given} without one; name another folder, or save "
                "the tokenizer with save_pretrained of transformers"
            )
    if path.is_file():
        names = {FILE: path, **{name: path.with_name(name) for name in MORE_FILES}}
    elif path.suffix == ".json" or path.name == FILE or given.startswith((".", "/", "~")):
        raise HpxferError(
            f"--tokenizer: must be a tokenizer.json, its folder, or a name on the hub, got {given}, "
            "which is not there; correct the path"
        )
    else:
        names = _from_hub(given)
    try:
        return {name: read_bytes(file, 2**28) for name, file in names.items() if file.is_file()}
    except OSError as error:
        raise HpxferError(f"{given}: cannot be read: {error.strerror}") from None


def _from_hub(name: str) -> dict[str, Path]:
    import huggingface_hub

    out = {}
    for file in (FILE, *MORE_FILES):
        try:
            if not isinstance(huggingface_hub.try_to_load_from_cache(name, file), str):
                # A download would try for a minute where there is no network. This fails at once.
                huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(name, file))
            out[file] = Path(huggingface_hub.hf_hub_download(name, file))
        except Exception as error:  # of the hub or the network
            if file == FILE:
                raise HpxferError(
                    f"--tokenizer: {shown(name)} is no file here, and cannot be fetched from the hub: "
                    f"{cut(first_line(error), 300)}; name a tokenizer.json"
                ) from None
    return out


def _eos(given: str, eos: str | None, files: dict[str, bytes], vocabulary: dict[str, int]) -> str | None:
    if eos == NO_EOS:
        return None
    if eos is not None:
        if eos not in vocabulary:
            raise HpxferError(f"--eos: must be a token of {given}, got {shown(eos)}; or none, to join documents")
        return eos
    stated = _stated_eos(files)
    found = next((name for name in (stated, *EOS_NAMES) if name in vocabulary), None)
    if found is None:
        raise HpxferError(
            f"--eos: {given} names no token that ends a document, and has none of the common ones; name "
            "it, e.g. --eos '<|endoftext|>', or write --eos none, to join documents without one"
        )
    return found


def _stated_eos(files: dict[str, bytes]) -> str | None:
    try:
        stated = json.loads(files.get("tokenizer_config.json", b"{}")).get("eos_token")
    except (ValueError, AttributeError):
        return None
    name = stated.get("content") if isinstance(stated, dict) else stated
    return name if isinstance(name, str) else None


def tokenized(segment: Segment, job: Job) -> Tokenized:
    """Return the ids of a segment."""
    texts = segment.texts
    is_text = segment.block.kind == "text"
    encoded = _encoded(job, texts)
    end = [] if job.eos_id is None else [job.eos_id]
    parts, lengths, offered = [], [], []
    below = int(job.held_out_share * NO_LIMIT)
    for ids in encoded:
        closes = not is_text or segment.is_last
        if not ids and not (is_text and closes and not segment.is_first):
            continue
        parts.append(np.array(ids + end if closes else ids, f"<u{job.token_bytes}"))
        lengths.append(len(parts[-1]))
        is_whole = not is_text or (segment.is_first and segment.is_last)
        offered.append(is_whole and below > 0 and key_of(parts[-1]) < below)
    return Tokenized(
        ids=np.concatenate(parts) if parts else np.empty(0, f"<u{job.token_bytes}"),
        lengths=np.array(lengths, np.int64),
        offered=np.array(offered, bool),
        # A part of a longer text that gives no tokens is no empty document.
        num_empty=0 if is_text and not (segment.is_first and segment.is_last) else len(texts) - len(lengths),
        goes_on=is_text and not segment.is_first,
        num_bytes=segment.block.num_bytes if segment.content is None or segment.is_last else 0,
    )


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
