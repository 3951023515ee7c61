"""arrow: a folder that `datasets` saved (`save_to_disk`), with a column of lists of token ids.

`state.json` names the files in order. Each is a stream of Arrow's record batches, which are memory-mapped. The ids of
all rows are one long row of tokens.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hpxfer.data.tokens import Dataset, cumulative, spans
from hpxfer.errors import HpxferError, shown
from hpxfer.host import read_text

STATE, SPLITS, COLUMN = "state.json", "dataset_dict.json", "input_ids"
_FILE_MAGIC, _STREAM_MARK = b"ARROW1", b"\xff\xff\xff\xff"


class NoIds(HpxferError):
    """A saved data set without a column of token ids."""


def is_one(head: bytes) -> bool:
    """Return whether a file starts as Arrow's files do, or as its streams: a mark, then the size of the schema."""
    size = int.from_bytes(head[4:8], "little")
    return head.startswith(_FILE_MAGIC) or (head.startswith(_STREAM_MARK) and 0 < size < 2**24 and size % 8 == 0)


def is_folder(path: str) -> bool:
    """Return whether `datasets` saved this folder."""
    return any(os.path.isfile(os.path.join(path, name)) for name in (STATE, SPLITS))


def split_names(folder: str) -> list[str] | None:
    """Return the names of the splits of a saved folder, or None if it holds one data set without splits."""
    if not os.path.isfile(os.path.join(folder, SPLITS)):
        return None
    return _named(folder, SPLITS, "splits", lambda name: name)


def data_files(folder: str) -> list[str]:
    """Return the files of a saved data set, in order. Raise HpxferError if the folder holds several splits."""
    if (splits := split_names(folder)) is not None:
        raise HpxferError(f"{folder}: must be one split, got a folder of {len(splits)}: {', '.join(splits)}; name one")
    names = _named(folder, STATE, "_data_files", lambda entry: entry["filename"])
    return [os.path.join(folder, name) for name in names]


def stated_split(folder: str) -> str | None:
    """Return the split that a saved data set says it is, e.g. `test`, or None if it says nothing."""
    stated = _json(os.path.join(folder, STATE)).get("_split")
    return stated if isinstance(stated, str) else None


def _named(folder: str, file: str, key: str, name_of: Any) -> list[str]:
    """Return the names of files or folders beside the file that states them under a key."""
    stated = _json(os.path.join(folder, file)).get(key)
    try:
        names = [name_of(entry) for entry in stated or ()]
    except (KeyError, TypeError):
        names = []
    if not names or not all(isinstance(name, str) and os.path.basename(name) == name for name in names):
        raise HpxferError(f"{folder}: {file} must name what lies beside it in {key}, got {shown(stated)}")
    return names


def _json(path: str) -> dict[str, Any]:
    try:
        found = json.loads(read_text(Path(path)))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise HpxferError(f"{path}: must be a mapping that `datasets` wrote, got something else")
    return found


def open_folder(folder: str) -> Dataset:
    """Return the data set of a saved folder. Raise HpxferError unless it has one column of lists of whole numbers."""
    parts = tuple(ArrowFile(path=path) for path in data_files(folder))
    sizes = sorted({part.token_bytes for part in parts})
    if len(sizes) > 1:
        raise HpxferError(f"{folder}: all files must hold ids of one size, got {sizes} bytes")
    return Dataset(format=f"arrow_{8 * sizes[0]}", parts=parts, token_bytes=sizes[0])


@dataclass(frozen=True, kw_only=True)
class ArrowFile:
    """The token ids of one file."""

    path: str
    header: bytes = b""

    @cached_property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """The ids of each record batch, unsigned, memory-mapped."""
        return tuple(_ids(batch, self.path) for batch in record_batches(self.path))

    def mapped(self) -> tuple[NDArray[Any], ...]:
        return self.arrays

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return cumulative(map(len, self.arrays))

    @property
    def num_tokens(self) -> int:
        return self._starts[-1]

    @cached_property
    def token_bytes(self) -> int:
        return self.arrays[0].itemsize if self.arrays else 4

    def read(self, low: int, high: int) -> NDArray[Any]:
        """Return tokens `low` to `high`, unsigned [high - low]."""
        found = [self.arrays[index][begin:end] for index, begin, end in spans(self._starts, low, high)]
        return np.concatenate(found) if found else np.empty(0, f"<u{self.token_bytes}")


@lru_cache(maxsize=64)
def record_batches(path: str) -> tuple[pa.RecordBatch, ...]:
    """Return the record batches of a file, memory-mapped. Raise HpxferError if it is none of Arrow's, or cut off."""
    try:
        with pa.memory_map(path) as source, pa.ipc.open_stream(source) as stream:
            _ = stream.schema.names  # which need not be text
            return tuple(stream)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise _broken(path, error) from None


def whole_column(batch: pa.RecordBatch, name: str, path: str) -> Any:
    """Return a column of a record batch. Raise HpxferError if it is damaged, on which Arrow would end the process."""
    column = batch.column(name)
    try:
        column.validate(full=True)
    except pa.ArrowException as error:
        raise _broken(path, error) from None
    return column


def _broken(path: str, error: Exception) -> HpxferError:
    return HpxferError(f"{path}: must be a file of `datasets`, got a broken one: {str(error).splitlines()[0]}")


def _ids(batch: pa.RecordBatch, path: str) -> NDArray[Any]:
    def is_ids(kind: pa.DataType) -> bool:
        return bool((pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_integer(kind.value_type))

    names = [str(field.name) for field in batch.schema if is_ids(field.type)]
    if COLUMN not in names and len(names) != 1:
        rule = f"must have a column {COLUMN} of lists of whole numbers"
        raise NoIds(f"{path}: {rule}, got the columns {', '.join(batch.schema.names)}; see hpxfer data prepare")
    column = COLUMN if COLUMN in names else names[0]
    lists = whole_column(batch, column, path)
    values = lists.flatten()
    if lists.null_count or values.null_count:
        raise HpxferError(f"{path}: {column} must have ids in every row, got an empty entry")
    found: NDArray[Any] = values.to_numpy(zero_copy_only=True)
    return found.view(f"<u{found.itemsize}")
