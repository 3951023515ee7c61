"""Reader: the lines of a report file, read as they come. It keeps little in memory, whatever the trainer writes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from hpxfer.errors import shown
from hpxfer.host.files import open_regular, reason
from hpxfer.trainer.lines import MAX_LINE_BYTES, Fault, Line, Point, parse_line

_CHUNK_BYTES = 2**20
# A file may have so many bytes, and more for each step. A trainer that writes more does not report, it dumps.
_FILE_BYTES, _STEP_BYTES = 64 * 2**20, 4096


class Reader:
    """Reads what was appended to a report file since the last look. The file may come later.

    The first line that breaks a rule ends the reading: `fault` then names the line, the rule and what was got.
    """

    def __init__(self, path: Path, *, trial_id: str, attempt: int, steps: int) -> None:
        self.fault: str | None = None
        self.num_lines = 0
        self.path, self._trial_id, self._attempt, self._steps = path, trial_id, attempt, steps
        self._offset = 0
        self._torn = b""  # the start of a line whose end has not been written
        self._last_step: int | None = None
        self._most_bytes = _FILE_BYTES + _STEP_BYTES * steps

    def read(self) -> Iterator[Line]:
        """Yield the lines that are whole now, at most a megabyte of them. A torn last line waits for its end."""
        if self.fault is not None:
            return
        for text in self._new_lines():
            if not text.strip():
                continue
            try:
                yield self._checked(text)
            except Fault as fault:
                self.fault = f"{self.path}:{self.num_lines}: {fault}"
                return

    @property
    def has_more(self) -> bool:
        """Whether there are bytes that were not read."""
        return self.fault is None and self._size() > self._offset

    def _new_lines(self) -> Iterator[bytes]:
        size = self._size()
        if size < self._offset:
            self.fault = f"{self.path}: must only grow, got a file that was cut; open it for appending"
            return
        if size > self._most_bytes:
            most = f"{self._most_bytes / 2**20:g} MiB for {self._steps} steps"
            self.fault = f"{self.path}: must have at most {most}, got more; report fewer numbers"
            return
        if size == self._offset:
            return
        try:
            with open_regular(self.path) as file:
                file.seek(self._offset)
                chunk = file.read(_CHUNK_BYTES)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self.fault = f"{self.path}: must be a file that can be read, got: {reason(error)}"
            return
        self._offset += len(chunk)
        *lines, self._torn = (self._torn + chunk).split(b"\n")
        for line in lines:
            self.num_lines += 1
            yield line
            if self.fault is not None:
                return
        if len(self._torn) > MAX_LINE_BYTES:
            start = shown(self._torn[:100].decode(errors="replace"))
            limit = f"a line must have at most {MAX_LINE_BYTES / 2**20:g} MiB"
            self.fault = f"{self.path}:{self.num_lines + 1}: {limit}, got more; it starts with {start}"

    def _checked(self, text: bytes) -> Line:
        if len(text) > MAX_LINE_BYTES:
            raise Fault(f"a line must have at most {MAX_LINE_BYTES / 2**20:g} MiB, got {len(text) / 2**20:.1f} MiB")
        line = parse_line(text, trial_id=self._trial_id, attempt=self._attempt, steps=self._steps)
        if isinstance(line, Point):
            if self._last_step is not None and line.step <= self._last_step:
                raise Fault(f"step: must be greater than that of the report before, {self._last_step}, got {line.step}")
            self._last_step = line.step
        return line

    def _size(self) -> int:
        try:
            return os.stat(self.path).st_size
        except OSError:
            return 0
