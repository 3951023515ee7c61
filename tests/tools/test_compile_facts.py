"""The record of what compilers say: kept by version of Triton, and made into a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from compile_facts import RECORDS, facts_markdown, keep, main

ROW = {
    "entry": 0,
    "dtype_bytes": 2,
    "max_rows": None,
    "max_features": 512,
    "layer": "one matrix",
    "kernel": "up",
    "registers": 120,
    "spill_bytes": 0,
    "shared_bytes": 98304,
    "buffers": ["3x128x64xbf16"],
    "blocks_per_multiprocessor": 2,
    "fault": None,
}


def record(version: str, date: str = "2026-01-02", **changes: object) -> dict[str, Any]:
    return {"date": date, "command": "a command", "versions": {"triton": version}, "rows": [ROW, {**ROW, **changes}]}


def test_a_version_has_one_line(tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl"
    for one in (record("3.10.0"), record("3.9.0"), record("3.9.0", "2026-01-03")):
        keep(one, path)
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["versions"]["triton"], one["date"]) for one in kept] == [
        ("3.9.0", "2026-01-03"),
        ("3.10.0", "2026-01-02"),
    ]


def test_the_table_has_the_extremes_of_each_product(tmp_path: Path) -> None:
    path = tmp_path / RECORDS
    path.parent.mkdir(parents=True)
    keep(record("3.9.0", registers=140, blocks_per_multiprocessor=1, buffers=["2x128x64xbf16"]), path)
    text = facts_markdown(tmp_path)
    assert "140 registers, 0 B spilled, 96 KiB shared, 2 buffers, 1 per multiprocessor" in text
    assert "2 bytes, up to 512 features" in text
    assert "`a command`" in text


@pytest.mark.parametrize("fault", [None, "up spills 68 bytes of registers"])
def test_a_fault_is_printed_and_is_the_exit_code(
    fault: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("compile_facts.record", lambda command: record("3.9.0", fault=fault))
    assert main(["--output", str(tmp_path / "facts.jsonl")]) == (fault is not None)
    assert ("FAULT" in capsys.readouterr().out) == (fault is not None)


def test_the_committed_record_has_two_versions_and_no_fault() -> None:
    lines = (Path(__file__).parents[2] / RECORDS).read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert len({one["versions"]["triton"] for one in records}) >= 2
    for one in records:
        assert {row["entry"] for row in one["rows"]} == set(range(5))
        assert [row["fault"] for row in one["rows"] if row["fault"]] == []
