"""Source kind: whether a source such as `idx:FOLDER` names tokens or samples, and its row."""

from __future__ import annotations

from typing import Any

from hpxfer.registry import registry

TOKENS, SAMPLES = "data source", "sample source"
# What a family reads -> the kind of its sources.
KIND_OF = {"tokens": TOKENS, "samples": SAMPLES}


def source_kind(name: str) -> str:
    """Return the kind of extension that reads a source. One of an unknown name counts as tokens."""
    prefix, _, rest = name.partition(":")
    samples = registry(SAMPLES)
    if prefix not in samples:
        return TOKENS
    # Both kinds have `builtin:`, with names of their own.
    of_samples = prefix not in registry(TOKENS) or samples.get(prefix).problem(rest) is None
    return SAMPLES if of_samples else TOKENS


def source_row(name: str) -> Any | None:
    """Return the row that reads a source, or None if its prefix is unknown. It says `is_path` of both kinds."""
    rows, prefix = registry(source_kind(name)), name.partition(":")[0]
    return rows.get(prefix) if prefix in rows else None
