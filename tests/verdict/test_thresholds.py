"""The thresholds: the reason for each, which the docs print, is its own."""

from __future__ import annotations

from pathlib import Path

from docs_parts import thresholds_markdown


def test_every_threshold_has_a_reason_of_its_own() -> None:
    rows = thresholds_markdown(Path()).splitlines()[2:]
    reasons = [row.split(" | ", 2)[2] for row in rows]
    assert len(rows) > 10
    assert all(len(reason) > 10 for reason in reasons)
    assert len(set(reasons)) == len(reasons)
