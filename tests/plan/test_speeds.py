"""Benchmark records: what is written is read back, and what is not theirs is left alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_record import RECORD

from hpxfer.errors import HpxferError
from hpxfer.plan.speeds import Record, append, latest


def test_a_record_comes_back_as_it_went(tmp_path: Path) -> None:
    assert append(RECORD, tmp_path / "new" / "folder") == tmp_path / "new" / "folder" / "speeds.jsonl"
    assert latest(tmp_path / "new" / "folder", "speeds", "cpu") == RECORD


def test_the_last_record_of_a_device_is_read(tmp_path: Path) -> None:
    for date, device in (("1", "cpu"), ("2", "cuda"), ("3", "cpu"), ("4", "cuda")):
        append(replace(RECORD, date=date, device=device), tmp_path)
    found = [latest(tmp_path, "speeds", device) for device in ("cpu", "cuda")]
    assert [record and record.date for record in found] == ["3", "4"]
    assert latest(tmp_path, "kernels", "cpu") is None


def test_lines_of_another_version_are_history(tmp_path: Path) -> None:
    append(RECORD, tmp_path)
    old = {"date": "2025", "command": "hpxfer bench", "rows": [{"width": 32}]}
    with (tmp_path / "speeds.jsonl").open("a") as file:
        file.write(json.dumps(old) + "\n" + json.dumps({**RECORD.to_dict(), "version": 99}) + "\n")
    assert latest(tmp_path, "speeds", "cpu") == RECORD


@pytest.mark.parametrize("line", ["{", "[1]", '{"version": 2, "device": "cpu", "rows": []}', '{"version": 2}'])
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    append(RECORD, tmp_path)
    path = tmp_path / "speeds.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(HpxferError, match=r"speeds.jsonl:2: must be a benchmark record, got .*; remove the line"):
        latest(tmp_path, "speeds", "cpu")


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


def row_record(run: str, key: str, value: float, date: str = "2026-11-22") -> Record:
    row = replace(RECORD.rows[0], key=key, value=value)
    return replace(RECORD, run=run, date=date, command=f"hpxfer bench --device cpu --row {key}", rows=(row,))


def test_the_rows_of_a_run_are_put_together(tmp_path: Path) -> None:
    for key, value in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        append(row_record("r1", key, value), tmp_path)
    found = latest(tmp_path, "speeds", "cpu")
    assert found is not None
    assert {row.key: row.value for row in found.rows} == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert found.date == "2026-11-22"


def test_a_run_of_one_row_keeps_those_of_the_same_machine_and_versions(tmp_path: Path) -> None:
    for record in (row_record("r1", "a", 1.0, "2026-11-20"), row_record("r1", "b", 2.0, "2026-11-20")):
        append(record, tmp_path)
    append(row_record("r2", "b", 5.0), tmp_path)
    append(row_record("r2", "c", 6.0), tmp_path)
    found = latest(tmp_path, "speeds", "cpu")
    assert found is not None
    assert {row.key: row.value for row in found.rows} == {"a": 1.0, "b": 5.0, "c": 6.0}
    assert found.date == "2026-11-20 to 2026-11-22"
    assert found.command == "hpxfer bench --device cpu"
    append(replace(row_record("r3", "d", 7.0), versions={"torch": "3"}), tmp_path)
    alone = latest(tmp_path, "speeds", "cpu")
    assert alone is not None
    assert [row.key for row in alone.rows] == ["d"]


def test_a_record_of_before_is_a_whole_run(tmp_path: Path) -> None:
    """A line of version 2 holds all rows of its run, so it keeps none of the run before."""
    append(row_record("r1", "z", 1.0), tmp_path)
    old = {**RECORD.to_dict(), "version": 2}
    del old["run"]
    with (tmp_path / "speeds.jsonl").open("a") as file:
        file.write(json.dumps(old) + "\n")
    assert latest(tmp_path, "speeds", "cpu") == RECORD


@pytest.mark.parametrize("name", ["trainer", "kernels", "moe", "sweep"])
def test_the_committed_records_are_read(name: str) -> None:
    folder = Path(__file__).parents[2] / "results" / "bench"
    last = json.loads((folder / f"{name}.jsonl").read_text().splitlines()[-1])
    found = latest(folder, name, "cpu")
    assert found is not None
    if last["version"] == 2:
        assert {**found.to_dict(), "version": 2, "run": ""} == {**last, "run": "", "rows": tuple(last["rows"])}


def test_a_line_that_its_writer_did_not_end_is_left_out_and_the_next_one_starts_below(tmp_path: Path) -> None:
    path = append(RECORD, tmp_path)
    path.write_text(path.read_text() + '{"version": 3, "na')
    assert latest(tmp_path, "speeds", "cpu") == RECORD
