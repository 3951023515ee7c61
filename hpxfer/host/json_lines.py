"""Files of JSON lines that grow while something is measured: a line is on the disk before the next thing begins."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host.files import read_text, reason

# What a benchmark writes in a year is far below this.
MAX_FILE_BYTES = 2**28


def append_line(path: Path, data: Mapping[str, Any]) -> None:
    """Append `data` as one JSON line, and wait until it is on the disk.

    If the file ends in the middle of a line, because the writer before was killed, the new line starts below it. Raises
    HpxferError if the file cannot be written, and ValueError for a number that is not finite.
    """
    _append(path, json.dumps(data, allow_nan=False) + "\n")


def require_appendable(path: Path) -> None:
    """Raise HpxferError if nothing could be appended to the file. Call it before minutes of measuring."""
    _append(path, "")


def json_lines(path: Path, what: str = "a JSON line") -> Iterator[tuple[int, Any]]:
    """Yield (number, data) of every line of a file. Raise HpxferError for a line that is no JSON.

    A last line without an end is left out if it is no JSON: its writer was killed.
    """
    try:
        text = read_text(path, MAX_FILE_BYTES)
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {reason(error)}; name a file of JSON lines") from None
    except UnicodeDecodeError as error:
        raise HpxferError(f"{path}: must be text in UTF-8, got {error.reason}; name a file of JSON lines") from None
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                return
            raise HpxferError(f"{path}:{number}: must be {what}, got {error}; remove the line") from None


def _append(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            if text and file.tell():
                file.seek(-1, os.SEEK_END)
                text = text if file.read(1) == b"\n" else "\n" + text
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise HpxferError(f"{path.parent}: cannot be written: {reason(error)}; choose another --output") from None
