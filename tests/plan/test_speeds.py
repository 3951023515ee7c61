"""Benchmark records: what is written is read back, and what is not theirs is left alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_record import RECORD

from hpxfer.errors import HpxferError
from hpxfer.plan.speeds import append, latest


def test_a_record_comes_back_as_it_went(tmp_path: Path) -> None:
    assert append(RECORD, tmp_path / "new" / "folder") == tmp_path / "new" / "folder" / "trainer.jsonl"
    assert latest(tmp_path / "new" / "folder", "trainer", "cpu") == RECORD


def test_the_last_record_of_a_device_is_read(tmp_path: Path) -> None:
    for date, device in (("1", "cpu"), ("2", "cuda"), ("3", "cpu"), ("4", "cuda")):
        append(replace(RECORD, date=date, device=device), tmp_path)
    found = [latest(tmp_path, "trainer", device) for device in ("cpu", "cuda")]
    assert [record and record.date for record in found] == ["3", "4"]
    assert latest(tmp_path, "kernels", "cpu") is None


def test_lines_of_another_version_are_history(tmp_path: Path) -> None:
    append(RECORD, tmp_path)
    old = {"date": "2025", "command": "hpxfer bench trainer", "rows": [{"width": 32}]}
    with (tmp_path / "trainer.jsonl").open("a") as file:
        file.write(json.dumps(old) + "\n" + json.dumps({**RECORD.to_dict(), "version": 99}) + "\n")
    assert latest(tmp_path, "trainer", "cpu") == RECORD


@pytest.mark.parametrize("line", ["{", "[1]", '{"version": 2, "device": "cpu", "rows": []}', '{"version": 2}'])
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    append(RECORD, tmp_path)
    path = tmp_path / "trainer.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(HpxferError, match=r"trainer.jsonl:2: must be a benchmark record, got .*; remove the line"):
        latest(tmp_path, "trainer", "cpu")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HpxferError, match=r"cannot be written: .*; choose another --output"):
        append(RECORD, tmp_path / "file")


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    row = replace(RECORD.rows[0], value=float("nan"))
    with pytest.raises(ValueError, match="not JSON compliant"):
        append(replace(RECORD, rows=(row,)), tmp_path)


def test_a_row_is_found_by_its_key() -> None:
    assert RECORD.row("a") is RECORD.rows[0]
    assert RECORD.row("b") is None
