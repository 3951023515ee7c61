"""The record of what compilers say: kept by version of Triton, made into a table, and without a fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import compile_facts
import pytest
from compile_facts import RECORDS, facts_markdown, keep, main

COMMITTED = Path(__file__).parents[2] / RECORDS


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_committed_record_has_two_versions_and_no_fault() -> None:
    assert len({one["versions"]["triton"] for one in lines(COMMITTED)}) >= 2
    for one in lines(COMMITTED):
        assert {row["entry"] for row in one["rows"]} == set(range(5))
        assert [row["fault"] for row in one["rows"] if row["fault"]] == []


@pytest.mark.parametrize("fault", [None, "up spills 68 bytes of registers"])
def test_a_fault_is_the_exit_code_and_a_version_has_one_line_and_a_column(
    fault: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = lines(COMMITTED)[0], tmp_path / RECORDS
    new.parent.mkdir(parents=True)
    for version in ("3.10.0", "3.9.0", "3.9.0"):
        keep({**old, "versions": {"triton": version}}, new)
    row = {**old["rows"][0], "registers": 999, "fault": fault}
    monkeypatch.setattr(
        compile_facts, "record", lambda command: {**old, "versions": {"triton": "3.9.0"}, "rows": [row]}
    )
    assert main(["--output", str(new)]) == (fault is not None)
    assert [one["versions"]["triton"] for one in lines(new)] == ["3.9.0", "3.10.0"]
    assert facts_markdown(tmp_path).count("999 registers") == 1
