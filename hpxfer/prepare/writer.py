"""Writer: token shards, complete or not at all, and the state from which a stopped preparation goes on.

A shard is closed after the segment with which it reaches its size. Then the shard, the held-out tokens so far and the
state go to the disk together. What a stopped run had beyond that is made again, with the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.formats import llmc
from hpxfer.errors import HpxferError
from hpxfer.host.files import reason, write_files
from hpxfer.prepare.tokenize import Tokenized
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
    """The shards of a folder. `next` is the (block, segment) from which a run goes on."""

    def __init__(self, folder: Path, version: llmc.Version, shard_tokens: int, val_tokens: int, request: Any) -> None:
        self.folder, self.version, self.shard_tokens = folder, version, shard_tokens
        # The last target of validation is one token more.
        self.val_tokens = val_tokens + 1 if val_tokens else 0
        self.request = request
        self.shards: list[ShardEntry] = []
        self.train, self.val = Tokens(), Tokens()
        self.num_empty = 0
        self.next = (0, 0)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a stored state."""
        self.shards = [ShardEntry.model_validate(entry) for entry in state["shards"]]
        self.num_empty, self.next = state["num_empty"], tuple(state["next"])
        if state["val"] is not None:
            self.val = self._read(ShardEntry.model_validate(state["val"]))

    def add(self, found: Tokenized, following: tuple[int, int]) -> None:
        """Add the documents of a segment. `following` is the place of the segment after it."""
        self.num_empty += found.num_empty
        ends = np.cumsum(found.lengths)
        starts = ends - found.lengths
        room = self.val_tokens - self.val.size
        kept = np.ones(len(ends), bool)
        for index in np.flatnonzero(found.held_out).tolist():
            if found.lengths[index] <= room:
                self.val.add(found.ids[starts[index] : ends[index]], np.zeros(1, np.int64))
                room -= int(found.lengths[index])
                kept[index] = False
        if not kept.all():
            ids = found.ids[np.repeat(kept, found.lengths)]
            lengths = found.lengths[kept]
            self.train.add(ids, np.cumsum(lengths) - lengths)
        elif len(ends):
            self.train.add(found.ids, starts[1:] if found.goes_on else starts)
        if self.train.size >= self.shard_tokens:
            self._close(following)

    def finish(self, source: str) -> tuple[list[ShardEntry], ShardEntry | None, dict[Path, Write]]:
        """Return the shards of both splits, and the files that are left to write.

        What validation lacks is taken from the end of the training tokens. Raises HpxferError if nothing is left.
        """
        while self.val.size < self.val_tokens:
            lacking = self.val_tokens - self.val.size
            if self.train.size == 0:
                if not self.shards:
                    break
                self.train = self._read(self.shards.pop())
            taken = self.train.take_last(min(lacking, self.train.size))
            if taken.size:
                self.val.add(taken.parts[0], taken.starts[0])
        left = sum(shard.tokens for shard in self.shards) + self.train.size
        if left < 2:
            total = left + self.val.size
            held = f" beside {self.val_tokens - 1} for validation" if self.val_tokens else ""
            fix = "a smaller --val-tokens" if self.val_tokens and total > 1 else "another --field if it is not the text"
            raise HpxferError(
                f"{source}: must leave tokens for training{held}, got {total} tokens in all, and {self.num_empty} "
                f"document{'' if self.num_empty == 1 else 's'} of no tokens; give more text, or {fix}"
            )
        files: dict[Path, Write] = {}
        if self.train.size:
            entry, more = self._entry("train", len(self.shards), self.train)
            self.shards.append(entry)
            files |= more
        val = None
        if self.val.size:
            val, more = self._entry("val", 0, self.val)
            files |= more
        return self.shards, val, files

    def _close(self, following: tuple[int, int]) -> None:
        """Write the open shard, the held-out tokens so far, and the state."""
        entry, files = self._entry("train", len(self.shards), self.train)
        val = None
        if self.val.size:
            val, more = self._entry("val", 0, self.val)
            files |= more
        self.shards.append(entry)
        self.train, self.next = Tokens(), following
        state = {
            "request": self.request,
            "shards": [shard.model_dump() for shard in self.shards],
            "val": None if val is None else val.model_dump(),
            "num_empty": self.num_empty,
            "next": following,
        }
        self.write({**files, self.folder / PROGRESS_FILE: content_of(state)})

    def write(self, files: dict[Path, Write]) -> None:
        """Write files. Raise HpxferError if the disk refuses them: what was closed before stays."""
        try:
            write_files(files)
        except OSError as error:
            raise HpxferError(
                f"{self.folder}: cannot be written: {reason(error)}; the shards that are complete stay; make room and "
                "run the same command again, and it goes on"
            ) from None

    def _entry(self, split: Split, number: int, tokens: Tokens) -> tuple[ShardEntry, dict[Path, Write]]:
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
            self.folder / entry.file: lambda file: file.write(body),
            self.folder / entry.documents: lambda file: file.write(positions),
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
