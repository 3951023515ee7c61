"""Output: rows of text as aligned columns, times as text, and data as strict JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def aligned(rows: Sequence[Sequence[str]], *, right_from: int | None = None) -> list[str]:
    """Return one line per row, with columns two spaces apart. Columns from `right_from` on are aligned to the right."""
    if not rows:
        return []
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    num_left = len(widths) if right_from is None else right_from
    return [
        "  ".join(
            cell.ljust(width) if at < num_left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def spell_time(seconds: float) -> str:
    """Return a time as text, e.g. `45 s`, `12 min` or `3.5 h`."""
    if math.isnan(seconds):
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def json_ready(value: Any) -> Any:
    """Return data as strict JSON has it: lists for tuples, and None for numbers that are not finite."""
    match value:
        case Mapping():
            return {key: json_ready(part) for key, part in value.items()}
        case list() | tuple():
            return [json_ready(part) for part in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
