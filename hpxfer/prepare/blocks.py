"""Blocks: the parts of a source that processes read, in an order that depends on nothing but the source.

A block is a range of bytes of a plain file, a row group of a Parquet file, some record batches of a saved data set, or
a whole compressed file, which can only be read from its start. A segment is what is tokenized at once: a block, or the
next few megabytes of a compressed file. No size depends on the number of processes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from hpxfer.data.readers.arrow import record_batches, whole_column
from hpxfer.errors import HpxferError, cut, shown
from hpxfer.host.files import open_regular, reason

Kind = Literal["jsonl", "parquet", "text", "datasets"]
BLOCK_BYTES = 8 * 2**20
_EXAMPLE = '{"text": "a document"}'
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
        match self.block.kind:
            case "jsonl":
                return _of_lines(self, self._bytes())
            case "text":
                return [_decoded(self, self._bytes())]
            case "parquet":
                return _of_parquet(self.block)
            case "datasets":
                return _of_batches(self.block)

    def _bytes(self) -> bytes:
        return _lines_of(self.block) if self.content is None else self.content


def codec_of(path: str) -> str | None:
    """Return how a file is compressed by its name, or None."""
    return next((codec for suffix, codec in CODECS.items() if path.lower().endswith(suffix)), None)


def blocks_of(kind: Kind, path: str, num_bytes: int, field: str | None) -> list[Block]:
    """Return the blocks of a file, in order. Raise HpxferError if it cannot be read."""
    codec = codec_of(path)
    whole = Block(kind=kind, path=path, field=field, begin=0, end=num_bytes, num_bytes=num_bytes, codec=codec)
    if kind == "parquet":
        number, steps = _parquet(path).metadata.num_row_groups, 1
    elif kind == "datasets":
        number = len(record_batches(path))
        steps = max(1, number * BLOCK_BYTES // max(1, num_bytes))
    elif codec is not None:
        return [whole]
    else:
        number, steps = num_bytes, BLOCK_BYTES
    # An empty file of text is an empty document, which is counted.
    begins = range(0, max(number, 1) if kind == "text" else number, steps)
    share = num_bytes // max(1, len(begins))
    return [
        replace(
            whole,
            begin=begin,
            end=min(begin + steps, number),
            num_bytes=share,
            is_last=begin + steps >= number,
        )
        for begin in begins
    ]


def segments_of(block: Block, skip: int = 0) -> Iterator[Segment]:
    """Yield the segments of a block but for the first `skip`."""
    if block.codec is None:
        if not skip:
            yield Segment(block=block, is_first=block.begin == 0, is_last=block.is_last)
        return
    before = 0
    for index, (content, is_last) in enumerate(_with_last(_inflated(block))):
        if index >= skip:
            yield Segment(block=block, content=content, lines_before=before, is_first=index == 0, is_last=is_last)
        before += content.count(b"\n")


def _with_last(items: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each item, and whether it is the last one."""
    before = next(items, b"")  # an empty file is one empty item
    for item in items:
        yield before, False
        before = item
    yield before, True


def _inflated(block: Block) -> Iterator[bytes]:
    """Yield the content of a compressed file in parts of whole lines."""
    rest = b""
    try:
        with pa.input_stream(block.path, compression=block.codec) as stream:
            while part := stream.read(BLOCK_BYTES):
                content, newline, tail = (rest + part).rpartition(b"\n")
                if newline:
                    yield content + newline
                rest = tail
    except (OSError, pa.ArrowException) as error:
        why = str(error).splitlines()[0]
        raise HpxferError(
            f"{block.path}: must be a complete {block.codec} file, got a broken one: {cut(why, 200)}; copy it again"
        ) from None
    if rest:
        yield rest


def _lines_of(block: Block) -> bytes:
    """Return the lines that start in the block's range of bytes."""
    try:
        with open_regular(block.path) as file:
            begin = _line_start(file, block.begin)
            end = _line_start(file, block.end)
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


def _of_lines(segment: Segment, content: bytes) -> list[str]:
    lines = content.split(b"\n")
    return [_of_line(segment, index, line) for index, line in enumerate(lines) if line.strip()]


def _of_line(segment: Segment, index: int, line: bytes) -> str:
    """Return the text of a line, the index-th of the segment."""
    field = segment.block.field
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        problem = _not_utf8(error)
    except (ValueError, RecursionError) as error:
        what = str(error).partition(":")[0]
        problem = (
            f"must be JSON, one value per line, got {shown(line.decode('utf-8', 'replace'))} ({what}); "
            "write one object per line, or take the line out"
        )
    else:
        if not isinstance(row, dict):
            problem = f"must be a JSON object per line, got {type(row).__name__}; write lines as {_EXAMPLE}"
        elif field not in row:
            problem = f"must have the field {shown(field)}, got {_names(row)}; name another with --field"
        elif not isinstance(row[field], str | None):
            problem = f"{field}: must be text, got {shown(row[field])}; name another with --field"
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
        before = 0
        while left and (part := file.read(min(BLOCK_BYTES, left))):
            before, left = before + part.count(b"\n"), left - len(part)
    return before + index + 1


def _decoded(segment: Segment, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        index, line_start = content.count(b"\n", 0, error.start), content.rfind(b"\n", 0, error.start) + 1
        where = f"{segment.block.path}:{_line_number(segment, index)}"
        raise HpxferError(f"{where}: {_not_utf8(error, line_start)}") from None


def _not_utf8(error: UnicodeDecodeError, line_start: int = 0) -> str:
    got = error.object[error.start : error.start + 4]
    return (
        f"must be UTF-8 text, got {got!r} at byte {error.start - line_start + 1} of the line; convert the file, e.g. "
        "iconv -f latin1 -t utf-8"
    )


@lru_cache(maxsize=4)
def _parquet(path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (OSError, pa.ArrowException) as error:
        why = str(error).splitlines()[0]
        raise HpxferError(f"{path}: must be a Parquet file, got a broken one: {cut(why, 200)}; copy it again") from None


def _of_parquet(block: Block) -> list[str]:
    file = _parquet(block.path)
    _require_text(file.schema_arrow, block)
    try:
        table = file.read_row_groups(list(range(block.begin, block.end)), columns=[block.field])
    except (OSError, pa.ArrowException) as error:
        why = str(error).splitlines()[0]
        raise HpxferError(f"{block.path}: cannot be read: {cut(why, 200)}; copy it again") from None
    return _texts_of(block, table.column(0))


def _of_batches(block: Block) -> list[str]:
    batches = record_batches(block.path)
    if batches:
        _require_text(batches[0].schema, block)
    chosen = batches[block.begin : block.end]
    assert block.field is not None
    columns = [whole_column(batch, block.field, block.path) for batch in chosen]
    return [text for column in columns for text in _texts_of(block, column)]


def _texts_of(block: Block, column: Any) -> list[str]:
    try:
        return [text or "" for text in column.to_pylist()]
    except UnicodeDecodeError as error:
        got = error.object[error.start : error.start + 4]
        raise HpxferError(
            f"{block.path}: {block.field}: must be UTF-8 text, got {got!r}; write the file again"
        ) from None


def _require_text(schema: pa.Schema, block: Block) -> None:
    if block.field not in schema.names:
        names = ", ".join(schema.names)
        raise HpxferError(
            f"{block.path}: must have the column {shown(block.field)}, got {cut(names, 300)}; name another with --field"
        )
    kind = schema.field(block.field).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise HpxferError(
            f"{block.path}: {block.field}: must be a column of text, got {kind}; name another with --field"
        )


def _names(row: dict[str, Any]) -> str:
    return cut(", ".join(row), 200) or "none"
