"""Writer: token shards, complete or not at all, and the state from which a stopped preparation goes on.

A shard is closed after the segment with which it reaches its size. Then the shard, the held-out tokens so far and the
state go to the disk, the state last. What a stopped run had beyond that is made again, with the same bytes.

A file that the stored state names is neither replaced nor removed before another state is stored. So a run can be
killed at any moment. The held-out tokens get the number of the shards beside them. At the end, when validation may take
tokens from shards that are closed, the last shards are written under names of their own. The last state names them, and
after it they replace what is under their names, as often as it takes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.readers import llmc
from hpxfer.errors import HpxferError
from hpxfer.host.files import reason, write_files
from hpxfer.prepare.stopped import LAST, shards_in
from hpxfer.prepare.tokenize import HeldOut, Tokenized, key_of
from hpxfer.spec.manifest import PROGRESS_FILE, ShardEntry, Split

Write = Callable[[IO[bytes]], object]


@dataclass
class Tokens:
    """The tokens of a shard that is not closed, and where its documents start."""

    parts: list[NDArray[Any]] = field(default_factory=list)
    starts: list[NDArray[np.int64]] = field(default_factory=list)
    size: int = 0

    @property
    def num_documents(self) -> int:
        return sum(map(len, self.starts))

    def add(self, ids: NDArray[Any], starts: NDArray[np.int64]) -> None:
        """Add ids, of which documents start at some positions."""
        self.parts.append(ids)
        self.starts.append(starts + self.size)
        self.size += len(ids)

    def take_last(self, number: int) -> Tokens:
        """Remove the last `number` tokens and return them. A document that is cut starts again in them."""
        ids, starts = np.concatenate(self.parts), np.concatenate(self.starts)
        at = len(ids) - number
        taken = Tokens()
        taken.add(ids[at:], np.unique(np.concatenate([[0], starts[starts >= at] - at])).astype(np.int64))
        self.parts, self.starts, self.size = [ids[:at]], [starts[starts < at]], at
        return taken


class Writer:
    """The shards of a folder. `next` is the (block, segment) from which a run goes on.

    Once `has_ended`, `shards` and `val` are those of the finished data, which `complete` gives their names.
    """

    def __init__(self, folder: Path, version: llmc.Version, shard_tokens: int, val_tokens: int, request: Any) -> None:
        self.folder, self.version, self.shard_tokens = folder, version, shard_tokens
        # The last target of validation is one token more.
        self.held_out = HeldOut(val_tokens + 1 if val_tokens else 0)
        self.request = request
        self.shards: list[ShardEntry] = []
        self.val: ShardEntry | None = None
        self.train = Tokens()
        self.num_empty = 0
        self.next = (0, 0)
        self.has_ended = False

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a stored state."""
        self.shards = [ShardEntry.model_validate(entry) for entry in state["shards"]]
        self.num_empty, self.next = state["num_empty"], tuple(state["next"])
        self.held_out = HeldOut(self.held_out.wanted, int(state["limit"]))
        self.val = None if state["val"] is None else ShardEntry.model_validate(state["val"])
        self.has_ended = bool(state.get("ended"))
        if self.val is not None and not self.has_ended:
            val = self._read(self.val)
            for ids in np.split(val.parts[0], val.starts[0][1:]):
                back = list(self.held_out.add(ids, key_of(ids)))
                assert not back, "nothing was too many when it was written"

    def add(self, found: Tokenized, following: tuple[int, int]) -> None:
        """Add the documents of a segment. `following` is the place of the segment after it."""
        self.num_empty += found.num_empty
        ends = np.cumsum(found.lengths)
        starts = ends - found.lengths
        kept = np.ones(len(ends), bool)
        back: list[NDArray[Any]] = []
        for index in np.flatnonzero(found.offered).tolist():
            ids = found.ids[starts[index] : ends[index]]
            if self.held_out.takes(ids, key := key_of(ids)):
                back += self.held_out.add(ids.copy(), key)
                kept[index] = False
        if not kept.all():
            ids = found.ids[np.repeat(kept, found.lengths)]
            lengths = found.lengths[kept]
            self.train.add(ids, np.cumsum(lengths) - lengths)
        elif len(ends):
            self.train.add(found.ids, starts[1:] if found.goes_on else starts)
        self._train_on(back)
        if self.train.size >= self.shard_tokens:
            self._close(following)

    def _train_on(self, documents: Iterable[NDArray[Any]]) -> None:
        for ids in documents:
            self.train.add(ids, np.zeros(1, np.int64))

    def _val(self) -> Tokens:
        """Return what is held out so far."""
        out = Tokens()
        for ids in self.held_out.documents():
            out.add(ids, np.zeros(1, np.int64))
        return out

    def finish(self, source: str) -> None:
        """Write the last shards of both splits, and the state that names them.

        What validation lacks is taken from the end of the training tokens. Raises HpxferError if nothing is left.
        """
        self._train_on(self.held_out.surplus())
        held_out, wanted = self._val(), self.held_out.wanted
        while held_out.size < wanted:
            lacking = wanted - held_out.size
            if self.train.size == 0:
                if not self.shards:
                    break
                self.train = self._read(self.shards.pop())
            taken = self.train.take_last(min(lacking, self.train.size))
            if taken.size:
                held_out.add(taken.parts[0], taken.starts[0])
        left = sum(shard.tokens for shard in self.shards) + self.train.size
        if left < 2:
            total = left + held_out.size
            held = f" beside {wanted - 1} for validation" if wanted else ""
            fix = "a smaller --val-tokens" if wanted and total > 1 else "another --field if it is not the text"
            raise HpxferError(
                f"{source}: must leave tokens for training{held}, got {total} tokens in all, and {self.num_empty} "
                f"document{'' if self.num_empty == 1 else 's'} of no tokens; give more text, or {fix}"
            )
        files: dict[str, Write] = {}
        if self.train.size:
            entry, more = self._entry("train", len(self.shards), self.train)
            self.shards.append(entry)
            files |= more
        self.val = None
        if held_out.size:
            self.val, more = self._entry("val", 0, held_out)
            files |= more
        self.has_ended = True
        self._store({f"{name}{LAST}": write for name, write in files.items()})

    def complete(self) -> None:
        """Give the last shards their names, and remove all others. Whoever is killed here does it again."""
        with self._at_disk():
            for name in self._names():
                if (last := self.folder / f"{name}{LAST}").exists():
                    os.replace(last, self.folder / name)
            self._remove_others()

    def _close(self, following: tuple[int, int]) -> None:
        """Write the open shard, the held-out tokens so far, and the state."""
        entry, files = self._entry("train", len(self.shards), self.train)
        self.shards.append(entry)
        self.val = None
        if self.held_out.size:
            self.val, more = self._entry("val", len(self.shards), self._val())
            files |= more
        self.train, self.next = Tokens(), following
        self._store(files)
        with self._at_disk():
            self._remove_others()

    def _names(self) -> Iterator[str]:
        """Yield the names of the files that the state names."""
        for shard in (*self.shards, *([] if self.val is None else [self.val])):
            yield from (shard.file, shard.documents)

    def _remove_others(self) -> None:
        """Remove what no state names any more: held-out tokens of before, and shards that validation took."""
        known = {self.folder / name for name in self._names()}
        for path in shards_in(self.folder):
            if path not in known:
                path.unlink()

    def _store(self, files: dict[str, Write]) -> None:
        """Write files of the folder, then the state."""
        self.write(
            {
                **{self.folder / name: write for name, write in files.items()},
                self.folder / PROGRESS_FILE: content_of(self.state()),
            }
        )

    def state(self) -> dict[str, Any]:
        """Return what `restore` goes on from."""
        return {
            "request": self.request,
            "shards": [shard.model_dump() for shard in self.shards],
            "val": None if self.val is None else self.val.model_dump(),
            "limit": self.held_out.limit,
            "num_empty": self.num_empty,
            "next": self.next,
            "ended": self.has_ended,
        }

    def write(self, files: dict[Path, Write]) -> None:
        """Write files. Raise HpxferError if the disk refuses them: what was closed before stays."""
        with self._at_disk():
            write_files(files)

    @contextmanager
    def _at_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HpxferError(
                f"{self.folder}: cannot be written: {reason(error)}; the shards that are complete stay; make room and "
                "run the same command again, and it goes on"
            ) from None

    def _entry(self, split: Split, number: int, tokens: Tokens) -> tuple[ShardEntry, dict[str, Write]]:
        """Return what the manifest says of a shard, and its files."""
        if tokens.size > llmc.MOST_TOKENS:
            raise HpxferError(
                f"{self.folder}: a shard must have at most {llmc.MOST_TOKENS} tokens, got {tokens.size}; lower "
                "--shard-tokens or --val-tokens"
            )
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
        positions = listed.getvalue()
        return entry, {
            entry.file: lambda file: file.write(body),
            entry.documents: lambda file: file.write(positions),
        }

    def _read(self, entry: ShardEntry) -> Tokens:
        """Return the tokens of a shard that this folder's run wrote. Raise HpxferError if it was changed since."""
        path, listed = self.folder / entry.file, self.folder / entry.documents
        try:
            body = path.read_bytes()
            starts = np.load(listed, allow_pickle=False)
        except (OSError, EOFError, ValueError):
            body, starts = b"", np.empty(0, np.int64)
        if hashlib.blake2b(body, digest_size=16).hexdigest() != entry.digest or len(starts) != entry.num_documents:
            raise HpxferError(f"{path}: was changed since it was written; prepare into another folder with --out")
        out = Tokens()
        out.add(np.frombuffer(body, self.version.dtype, offset=llmc.HEADER_BYTES), starts)
        return out


def content_of(data: Any) -> Write:
    """Return what writes JSON-ready data as a file."""
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    return lambda file: file.write(text.encode())
