"""Append a receipt to the file of reports of a trial: one JSON line, written at once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError, shown
from hpxfer.host.output import json_ready


def write_groups(path: str | Path, step: int, groups: Iterable[Mapping[str, Any]]) -> None:
    """Append `{"type": "groups", "step": step, "groups": [...]}` to a file of JSON lines.

    Call it on rank 0 alone. `step` counts the optimizer updates before. Numbers that are not finite become null.

    Raises:
        HpxferError: the step is no count, or the file cannot be written.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise HpxferError(f"write_groups: step must be a number of updates, 0 or more, got {shown(step)}")
    line = {"type": "groups", "step": step, "groups": [json_ready(dict(entry)) for entry in groups]}
    text = json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            left = memoryview(text.encode())
            while left:
                left = left[os.write(handle, left) :]
        finally:
            os.close(handle)
    except OSError as error:
        raise HpxferError(f"{path}: the groups cannot be written: {error.strerror}; give another path") from None
