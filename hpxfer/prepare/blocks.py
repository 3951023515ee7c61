"""Blocks: the parts of a source that processes read, in an order that depends on nothing but the source.

A block is a range of bytes of a plain file, a row group of a Parquet file, some record batches of a saved data set, or
a whole compressed file, which can only be read from its start. A segment is what is tokenized at once: a block, or the
next few megabytes of a compressed file. No size depends on the number of processes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from hpxfer.data.readers.arrow import record_batches, whole_column
from hpxfer.errors import HpxferError, cut, shown
from hpxfer.host.files import open_regular, reason

Kind = Literal["jsonl", "parquet", "text", "datasets"]
# (block, segment): the place of a segment in the source.
Place = tuple[int, int]
BLOCK_BYTES = 8 * 2**20
CODECS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of one file. `begin` and `end` count bytes, row groups or record batches."""

    kind: Kind
    path: str
    field: str | None
    begin: int
    end: int
    num_bytes: int  # of the file, as far as this block reads it
    codec: str | None = None
    is_last: bool = True  # of its file


@dataclass(frozen=True, kw_only=True)
class Segment:
    """What is tokenized at once. `content` holds whole lines that were read already, or nothing was."""

    block: Block
    content: bytes | None = None
    lines_before: int = 0  # of the content, in its file
    is_first: bool = True  # of its file
    is_last: bool = True

    @cached_property
    def texts(self) -> list[str]:
        """The texts of the segment: one per document, or the part of a file of text that it holds.

        Raises HpxferError, with file and line, for what cannot be read.
        """
        if self.block.kind == "parquet":
            return _of_parquet(self.block)
        if self.block.kind == "datasets":
            return _of_batches(self.block)
        content = _lines_of(self.block) if self.content is None else self.content
        if self.block.kind == "text":
            return [_decoded(self, content)]
        lines = enumerate(content.split(b"\n"))
        return [_of_line(self, index, line) for index, line in lines if line.strip()]


def codec_of(path: str) -> str | None:
    """Return how a file is compressed by its name, or None."""
    return next((codec for suffix, codec in CODECS.items() if path.lower().endswith(suffix)), None)


def blocks_of(kind: Kind, path: str, num_bytes: int, field: str | None) -> list[Block]:
    """Return the blocks of a file, in order. Raise HpxferError if it cannot be read."""
    codec = codec_of(path)
    whole = Block(kind=kind, path=path, field=field, begin=0, end=num_bytes, num_bytes=num_bytes, codec=codec)
    number, steps = num_bytes, BLOCK_BYTES
    if kind == "parquet":
        number, steps = _parquet(path).metadata.num_row_groups, 1
    elif kind == "datasets":
        number = len(record_batches(path))
        steps = max(1, number * BLOCK_BYTES // max(1, num_bytes))
    elif codec is not None:
        return [whole]
    # An empty file of text is an empty document, which is counted.
    begins = range(0, max(number, 1) if kind == "text" else number, steps)
    share = num_bytes // max(1, len(begins))
    return [
        replace(whole, begin=at, end=min(at + steps, number), num_bytes=share, is_last=at + steps >= number)
        for at in begins
    ]


def segments(blocks: Sequence[Block], start: Place) -> Iterator[tuple[Place, Segment]]:
    """Yield the segments of a source from a place on, each with its place."""
    for number in range(start[0], len(blocks)):
        skip = start[1] if number == start[0] else 0
        for index, segment in enumerate(_segments_of(blocks[number])):
            if index >= skip:
                yield (number, index), segment


def _segments_of(block: Block) -> Iterator[Segment]:
    if block.codec is None:
        yield Segment(block=block, is_first=block.begin == 0, is_last=block.is_last)
        return
    inflated, number, before = _inflated(block), 0, 0
    content = next(inflated, None)
    while content is not None:
        following = next(inflated, None)
        is_last = following is None
        yield Segment(block=block, content=content, lines_before=before, is_first=number == 0, is_last=is_last)
        before += content.count(b"\n")
        content, number = following, number + 1


def _inflated(block: Block) -> Iterator[bytes]:
    """Yield the content of a compressed file in parts of whole lines."""
    rest, is_empty = b"", True
    try:
        with pa.input_stream(block.path, compression=block.codec) as stream:
            while part := stream.read(BLOCK_BYTES):
                content, newline, tail = (rest + part).rpartition(b"\n")
                if newline:
                    is_empty = False
                    yield content + newline
                rest = tail
    except (OSError, pa.ArrowException) as error:
        raise _broken(block.path, f"must be a complete {block.codec} file, got a broken one", error) from None
    if rest or is_empty:  # an empty file is one empty part
        yield rest


def _broken(path: str, what: str, error: Exception) -> HpxferError:
    return HpxferError(f"{path}: {what}: {cut(str(error).splitlines()[0], 200)}; copy it again")


def _lines_of(block: Block) -> bytes:
    """Return the lines that start in the block's range of bytes."""
    try:
        with open_regular(block.path) as file:
            begin, end = _line_start(file, block.begin), _line_start(file, block.end)
            file.seek(begin)
            return file.read(end - begin)
    except OSError as error:
        raise HpxferError(f"{block.path}: cannot be read: {reason(error)}") from None


def _line_start(file: Any, at: int) -> int:
    """Return where the first line starts that does so at byte `at` or after it."""
    if at == 0:
        return 0
    file.seek(at - 1)
    file.readline()
    return int(file.tell())


def _of_line(segment: Segment, index: int, line: bytes) -> str:
    """Return the text of a line, the index-th of the segment."""
    field = segment.block.field
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        problem = _not_utf8(error)
    except (ValueError, RecursionError) as error:
        got = f"{shown(line.decode('utf-8', 'replace'))} ({str(error).partition(':')[0]})"
        problem = f"must be JSON, one value per line, got {got}"
    else:
        if not isinstance(row, dict):
            problem = f'must be a JSON object per line, such as {{"text": "a document"}}, got {type(row).__name__}'
        elif field not in row:
            problem = f"must have the field {shown(field)}, got {cut(', '.join(row), 200) or 'none'}; see --field"
        elif not isinstance(row[field], str | None):
            problem = f"{field}: must be text, got {shown(row[field])}; see --field"
        else:
            return row[field] or ""
    raise HpxferError(f"{segment.block.path}:{_line_number(segment, index)}: {problem}")


def _line_number(segment: Segment, index: int) -> int:
    """Return the number of a segment's line in its file. A plain file is read again for it."""
    block = segment.block
    if segment.content is not None:
        return segment.lines_before + index + 1
    with open_regular(block.path) as file:
        left = _line_start(file, block.begin)
        file.seek(0)
        while left and (part := file.read(min(BLOCK_BYTES, left))):
            index, left = index + part.count(b"\n"), left - len(part)
    return index + 1


def _decoded(segment: Segment, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        index, line_start = content.count(b"\n", 0, error.start), content.rfind(b"\n", 0, error.start) + 1
        where = f"{segment.block.path}:{_line_number(segment, index)}"
        raise HpxferError(f"{where}: {_not_utf8(error, line_start)}") from None


def _not_utf8(error: UnicodeDecodeError, line_start: int = 0) -> str:
    got = error.object[error.start : error.start + 4]
    return f"must be UTF-8 text, got {got!r} at byte {error.start - line_start + 1} of the line"


@lru_cache(maxsize=4)
def _parquet(path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (OSError, pa.ArrowException) as error:
        raise _broken(path, "must be a Parquet file, got a broken one", error) from None


def _of_parquet(block: Block) -> list[str]:
    file = _parquet(block.path)
    _require_text(file.schema_arrow, block)
    try:
        table = file.read_row_groups(list(range(block.begin, block.end)), columns=[block.field])
    except (OSError, pa.ArrowException) as error:
        raise _broken(block.path, "cannot be read", error) from None
    return _texts_of(block, table.column(0))


def _of_batches(block: Block) -> list[str]:
    chosen = record_batches(block.path)[block.begin : block.end]
    for batch in chosen[:1]:
        _require_text(batch.schema, block)
    columns = [whole_column(batch, str(block.field), block.path) for batch in chosen]
    return [text for column in columns for text in _texts_of(block, column)]


def _texts_of(block: Block, column: Any) -> list[str]:
    try:
        return [text or "" for text in column.to_pylist()]
    except UnicodeDecodeError as error:
        got = error.object[error.start : error.start + 4]
        raise HpxferError(f"{block.path}: {block.field}: must be UTF-8 text, got {got!r}") from None


def _require_text(schema: pa.Schema, block: Block) -> None:
    if block.field not in schema.names:
        rule = f"must have the column {shown(block.field)}, got {cut(', '.join(schema.names), 300)}"
        raise HpxferError(f"{block.path}: {rule}; see --field")
    kind = schema.field(block.field).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise HpxferError(f"{block.path}: {block.field}: must be a column of text, got {kind}; see --field")
