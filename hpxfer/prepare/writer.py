"""Writer: token shards, complete or not at all, and the state from which a stopped preparation goes on.

A shard is closed after the segment with which it reaches its size. Then the shard, the held-out tokens so far and the
state go to the disk, the state last. What a stopped run had beyond that is made again, with the same bytes.

A file that the stored state names is neither replaced nor removed before another state is stored, because every file
gets a name of its own: shards are numbered, and the held-out tokens have the number of the shards beside them until
they are complete, which is number 0. So a run can be killed at any moment.
"""

from __future__ import annotations

import hashlib
import heapq
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpxfer.data import PROGRESS_FILE, NumTokens, ShardEntry, SplitName
from hpxfer.data.readers import llmc
from hpxfer.errors import HpxferError
from hpxfer.host import reason, write_files
from hpxfer.prepare.blocks import Place
from hpxfer.prepare.tokenize import NO_LIMIT, Tokenized, key_of
from hpxfer.spec import Section, Seq

Ids = NDArray[Any]
Write = Callable[[IO[bytes]], object]
_SHARD = re.compile(r"(train|val)-\d{5,}(\.bin|\.documents\.npy)")


class HeldOut:
    """The documents that may be held out. Validation needs `wanted` tokens. Only keys below `limit` may still join.

    Validation takes the documents with the smallest hashes, as many as it has room for. So it is spread over the whole
    source, and copies of a document are all on its side or all on the other. Which documents those are is known at the
    end alone: until then each document that may be among them waits, and one that no longer may goes back to training.
    """

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
        while self.size - sum(len(self._documents[each]) for each in self._groups[-self._keys[0]]) >= self.wanted:
            yield from self._leave()

    def surplus(self) -> Iterator[Ids]:
        """Yield the documents that go back to training at the end, so that no more is held out than is wanted."""
        while self.size > self.wanted:
            yield from self._leave()

    def documents(self) -> list[Ids]:
        """Return what is held out, in the order of the source."""
        return list(self._documents.values())

    def _leave(self) -> Iterator[Ids]:
        """Yield the documents with the largest key, which are no longer held out."""
        self.limit = -heapq.heappop(self._keys)
        for number in self._groups.pop(self.limit):
            ids = self._documents.pop(number)
            self.size -= len(ids)
            yield ids


@dataclass
class Tokens:
    """The tokens of a shard that is not closed, and where its documents start."""

    parts: list[Ids] = field(default_factory=list)
    starts: list[NDArray[np.int64]] = field(default_factory=list)
    size: int = 0

    def add(self, ids: Ids, starts: NDArray[np.int64]) -> None:
        """Add ids, of which documents start at some positions."""
        self.parts.append(ids)
        self.starts.append(starts + self.size)
        self.size += len(ids)

    def add_documents(self, documents: Iterator[Ids] | list[Ids]) -> Tokens:
        for ids in documents:
            self.add(ids, np.zeros(1, np.int64))
        return self

    def take_last(self, number: int, into: Tokens) -> None:
        """Move the last `number` tokens. A document that is cut starts again in them."""
        ids, starts = np.concatenate(self.parts), np.concatenate(self.starts)
        at = len(ids) - number
        into.add(ids[at:], np.unique(np.concatenate([[0], starts[starts >= at] - at])).astype(np.int64))
        self.parts, self.starts, self.size = [ids[:at]], [starts[starts < at]], at


class State(Section):
    """How far a preparation is: what is complete, and the (block, segment) from which a run goes on."""

    request: dict[str, Any]
    shards: Seq[ShardEntry] = ()
    val: ShardEntry | None = None
    limit: Annotated[int, Field(ge=0, le=NO_LIMIT)] = NO_LIMIT
    num_empty: NumTokens = 0
    next: tuple[NumTokens, NumTokens] = (0, 0)
    ended: bool = False


class Writer:
    """The shards of a folder. `next` is the (block, segment) from which a run goes on.

    Once `has_ended`, `shards` and `val` are those of the finished data.
    """

    def __init__(self, folder: Path, version: llmc.Version, state: State) -> None:
        self.folder, self.version, self.request = folder, version, state.request
        # The last target of validation is one token more.
        wanted = state.request["val_tokens"] + 1 if state.request["val_tokens"] else 0
        self.held_out = HeldOut(wanted, state.limit)
        self.shards, self.val, self.train = list(state.shards), state.val, Tokens()
        self.num_empty, self.next, self.has_ended = state.num_empty, state.next, state.ended
        if self.val is not None and not self.has_ended:
            val = self._read(self.val)
            for ids in np.split(val.parts[0], val.starts[0][1:]):
                back = list(self.held_out.add(ids, key_of(ids)))
                assert not back, "nothing was too many when it was written"

    @property
    def size(self) -> int:
        """The tokens so far."""
        return sum(shard.tokens for shard in self.shards) + self.train.size + self.held_out.size

    def add(self, found: Tokenized, following: Place) -> None:
        """Add the documents of a segment. `following` is the place of the segment after it."""
        self.num_empty += found.num_empty
        ends = np.cumsum(found.lengths)
        starts = ends - found.lengths
        kept = np.ones(len(ends), bool)
        back: list[Ids] = []
        for index in np.flatnonzero(found.offered).tolist():
            ids = found.ids[starts[index] : ends[index]]
            if self.held_out.takes(ids, key := key_of(ids)):
                back += self.held_out.add(ids.copy(), key)
                kept[index] = False
        if not kept.all():
            lengths = found.lengths[kept]
            self.train.add(found.ids[np.repeat(kept, found.lengths)], np.cumsum(lengths) - lengths)
        elif len(ends):
            self.train.add(found.ids, starts[1:] if found.goes_on else starts)
        self.train.add_documents(back)
        if self.train.size >= self.request["shard_tokens"]:
            files = self._close(self.train)
            if self.held_out.size:
                self.val, more = self._entry("val", len(self.shards), Tokens().add_documents(self.held_out.documents()))
                files |= more
            self.train, self.next = Tokens(), following
            self.store(files)

    def finish(self, source: str) -> None:
        """Write the last shards of both splits, and the state that names them.

        What validation lacks is taken from the end of the training tokens. Raises HpxferError if nothing is left.
        """
        self.train.add_documents(self.held_out.surplus())
        held_out, wanted = Tokens().add_documents(self.held_out.documents()), self.held_out.wanted
        number = len(self.shards)
        while held_out.size < wanted and (self.train.size or self.shards):
            if not self.train.size:
                self.train = self._read(self.shards.pop())
            self.train.take_last(min(wanted - held_out.size, self.train.size), held_out)
        if (left := sum(shard.tokens for shard in self.shards) + self.train.size) < 2:
            beside = f" beside {wanted - 1} for validation" if wanted else ""
            raise HpxferError(
                f"{source}: must leave tokens for training{beside}, got {left + held_out.size} tokens in all, and "
                f"{self.num_empty} document{'' if self.num_empty == 1 else 's'} of no tokens"
            )
        files = self._close(self.train, number) if self.train.size else {}
        self.val = None
        if held_out.size:
            self.val, more = self._entry("val", 0, held_out)
            files |= more
        self.has_ended = True
        self.store(files)

    def _close(self, tokens: Tokens, number: int | None = None) -> dict[str, Write]:
        entry, files = self._entry("train", len(self.shards) if number is None else number, tokens)
        self.shards.append(entry)
        return files

    def store(self, files: dict[str, Write]) -> None:
        """Write files of the folder, then the state, and remove the shards that it does not name."""
        state = State(
            request=self.request,
            shards=tuple(self.shards),
            val=self.val,
            limit=self.held_out.limit,
            num_empty=self.num_empty,
            next=self.next,
            ended=self.has_ended,
        )
        self.write(files | {PROGRESS_FILE: json_writer(state)})
        self.remove_others()

    def remove_others(self) -> None:
        """Remove the shards that no state names any more."""
        known = {name for shard in (*self.shards, self.val) if shard for name in (shard.file, shard.documents)}
        with at_disk(self.folder):
            for path in self.folder.iterdir():
                if _SHARD.fullmatch(path.name) and path.name not in known:
                    path.unlink()

    def write(self, files: dict[str, Write]) -> None:
        """Write files. Raise HpxferError if the disk refuses them: what was closed before stays."""
        with at_disk(self.folder):
            write_files({self.folder / name: write for name, write in files.items()})

    def _entry(self, split: SplitName, number: int, tokens: Tokens) -> tuple[ShardEntry, dict[str, Write]]:
        """Return what the manifest says of a shard, and its files."""
        if tokens.size > llmc.MOST_TOKENS:
            rule = f"a shard must have at most {llmc.MOST_TOKENS} tokens"
            raise HpxferError(f"{self.folder}: {rule}, got {tokens.size}; see --shard-tokens and --val-tokens")
        name = f"{split}-{number:05}"
        ids, starts = np.concatenate(tokens.parts), np.concatenate(tokens.starts)
        body = self.version.header(len(ids)) + ids.astype(self.version.dtype).tobytes()
        listed = io.BytesIO()
        np.save(listed, starts.astype("<i8"), allow_pickle=False)
        entry = ShardEntry(
            file=f"{name}.bin",
            tokens=len(ids),
            documents=f"{name}.documents.npy",
            num_documents=len(starts),
            digest=hashlib.blake2b(body, digest_size=16).hexdigest(),
        )
        return entry, {entry.file: bytes_writer(body), entry.documents: bytes_writer(listed.getvalue())}

    def _read(self, entry: ShardEntry) -> Tokens:
        """Return the tokens of a shard that this folder's run wrote. Raise HpxferError if it was changed since."""
        path = self.folder / entry.file
        try:
            body, starts = path.read_bytes(), np.load(self.folder / entry.documents, allow_pickle=False)
        except (OSError, EOFError, ValueError):
            body, starts = b"", np.empty(0, np.int64)
        if hashlib.blake2b(body, digest_size=16).hexdigest() != entry.digest or len(starts) != entry.num_documents:
            raise HpxferError(f"{path}: must be as it was written, got other bytes; name another folder with --out")
        out = Tokens()
        out.add(np.frombuffer(body, self.version.dtype, offset=llmc.HEADER_BYTES), starts)
        return out


@contextmanager
def at_disk(folder: Path) -> Iterator[None]:
    """Turn what a disk refuses into HpxferError: what was closed before stays."""
    try:
        yield
    except OSError as error:
        rule = "what is complete stays, and the same command goes on"
        raise HpxferError(f"--out: {folder}: cannot be written: {reason(error)}; {rule}") from None


def bytes_writer(content: bytes) -> Write:
    return lambda file: file.write(content)


def json_writer(data: Section) -> Write:
    """Return what writes data as a file of JSON."""
    return bytes_writer((json.dumps(data.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n").encode())
