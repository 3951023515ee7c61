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
from hpxfer.host import open_regular, reason

Kind = Literal["jsonl", "parquet", "text", "datasets"]
# (block, segment): the place of a segment in the source.
Place = tuple[int, int]
BLOCK_BYTES = 8 * 2**20
CODECS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of one file. `begin` and `end` count bytes, row groups or record batches.

    A block of a compressed file has a codec and no content, until `segments` reads it.
    """

    kind: Kind
    path: str
    field: str | None
    begin: int
    end: int
    num_bytes: int  # of the file, of which this is the last part that is read
    codec: str | None = None
    content: bytes | None = None  # whole lines of a compressed file
    lines_before: int = 0  # of the content, in its file
    is_first: bool = True  # of its file
    is_last: bool = True

    @cached_property
    def texts(self) -> list[str]:
        """The texts of the segment: one per document, or the part of a file of text that it holds.

        Raises HpxferError, with file and line, for what cannot be read.
        """
        if self.kind in ("parquet", "datasets"):
            return _of_column(self)
        content = _lines_of(self) if self.content is None else self.content
        if self.kind == "jsonl":
            return [_of_line(self, index, line) for index, line in enumerate(content.split(b"\n")) if line.strip()]
        try:
            return [content.decode("utf-8")]
        except UnicodeDecodeError as error:
            index, line_start = content.count(b"\n", 0, error.start), content.rfind(b"\n", 0, error.start) + 1
            where = f"{self.path}:{_line_number(self, index)}"
            raise HpxferError(
                f"{where}: {_not_utf8(error)} at byte {error.start - line_start + 1} of the line"
            ) from None


def codec_of(path: str) -> str | None:
    """Return how a file is compressed by its name, or None."""
    return next((codec for suffix, codec in CODECS.items() if path.lower().endswith(suffix)), None)


def blocks_of(kind: Kind, path: str, num_bytes: int, field: str | None) -> list[Segment]:
    """Return the blocks of a file, in order. Raise HpxferError if it cannot be read."""
    codec = codec_of(path)
    whole = Segment(kind=kind, path=path, field=field, begin=0, end=num_bytes, num_bytes=num_bytes, codec=codec)
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
        replace(
            whole,
            begin=at,
            end=min(at + steps, number),
            num_bytes=share,
            codec=None,
            is_first=at == 0,
            is_last=at + steps >= number,
        )
        for at in begins
    ]


def segments(blocks: Sequence[Segment], start: Place) -> Iterator[tuple[Place, Segment]]:
    """Yield the segments of a source from a place on, each with its place."""
    for number in range(start[0], len(blocks)):
        skip = start[1] if number == start[0] else 0
        found = iter([blocks[number]]) if blocks[number].codec is None else _inflated(blocks[number])
        for index, segment in enumerate(found):
            if index >= skip:
                yield (number, index), segment


def _inflated(block: Segment) -> Iterator[Segment]:
    """Yield the segments of a compressed file, whole lines each. Only the last one has the bytes of the file."""
    rest, before = b"", 0
    ready: Segment | None = None
    try:
        with pa.input_stream(block.path, compression=block.codec) as stream:
            while part := stream.read(BLOCK_BYTES):
                content, newline, tail = (rest + part).rpartition(b"\n")
                if newline:
                    if ready is not None:
                        yield replace(ready, is_last=False, num_bytes=0)
                    content += newline
                    ready = replace(block, content=content, lines_before=before, is_first=ready is None)
                    before += content.count(b"\n")
                rest = tail
    except (OSError, pa.ArrowException) as error:
        raise _broken(block.path, f"must be a complete {block.codec} file", error) from None
    if rest and ready is not None:
        yield replace(ready, is_last=False, num_bytes=0)
    if rest or ready is None:  # an empty file is one empty part
        ready = replace(block, content=rest, lines_before=before, is_first=ready is None)
    yield ready


def _broken(path: str, rule: str, error: Exception) -> HpxferError:
    return HpxferError(f"{path}: {rule}, got a broken one: {cut(str(error).splitlines()[0], 200)}")


def _lines_of(segment: Segment) -> bytes:
    """Return the lines that start in the segment's range of bytes."""
    try:
        with open_regular(segment.path) as file:
            begin, end = _line_start(file, segment.begin), _line_start(file, segment.end)
            file.seek(begin)
            return file.read(end - begin)
    except OSError as error:
        raise HpxferError(f"{segment.path}: cannot be read: {reason(error)}") from None


def _line_start(file: Any, at: int) -> int:
    """Return where the first line starts that does so at byte `at` or after it."""
    if at == 0:
        return 0
    file.seek(at - 1)
    file.readline()
    return int(file.tell())


def _of_line(segment: Segment, index: int, line: bytes) -> str:
    """Return the text of a line, the index-th of the segment."""
    field = segment.field
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        problem = f"{_not_utf8(error)} at byte {error.start + 1} of the line"
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
    raise HpxferError(f"{segment.path}:{_line_number(segment, index)}: {problem}")


def _line_number(segment: Segment, index: int) -> int:
    """Return the number of a segment's line in its file. A plain file is read again for it."""
    if segment.content is not None:
        return segment.lines_before + index + 1
    with open_regular(segment.path) as file:
        left = _line_start(file, segment.begin)
        file.seek(0)
        while left and (part := file.read(min(BLOCK_BYTES, left))):
            index, left = index + part.count(b"\n"), left - len(part)
    return index + 1


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"must be UTF-8 text, got {error.object[error.start : error.start + 4]!r}"


@lru_cache(maxsize=4)
def _parquet(path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (OSError, pa.ArrowException) as error:
        raise _broken(path, "must be a Parquet file", error) from None


def _of_column(segment: Segment) -> list[str]:
    """Return the texts of row groups or of record batches."""
    name, path, of_rows = str(segment.field), segment.path, slice(segment.begin, segment.end)
    chosen = record_batches(path)[of_rows] if segment.kind == "datasets" else ()
    schema = chosen[0].schema if segment.kind == "datasets" else _parquet(path).schema_arrow
    if name not in schema.names:
        rule = f"must have the column {shown(name)}"
        raise HpxferError(f"{path}: {rule}, got {cut(', '.join(schema.names), 300)}; see --field")
    kind = schema.field(name).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise HpxferError(f"{path}: {name}: must be a column of text, got {kind}; see --field")
    try:
        if segment.kind == "datasets":
            columns = [whole_column(batch, name, path) for batch in chosen]
        else:
            rows = list(range(segment.begin, segment.end))
            columns = [_parquet(path).read_row_groups(rows, columns=[name]).column(0)]
        return [text or "" for column in columns for text in column.to_pylist()]
    except UnicodeDecodeError as error:
        raise HpxferError(f"{path}: {name}: {_not_utf8(error)}") from None
    except (OSError, pa.ArrowException) as error:
        raise _broken(path, "must be readable", error) from None
