"""Reader: whatever the pieces in which a file grows, the lines are the same."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpxfer.trainer.lines import MAX_LINE_BYTES, Point
from hpxfer.trainer.reader import Reader


def reader_of(path: Path, steps: int = 1000) -> Reader:
    return Reader(path, trial_id="t1", attempt=1, steps=steps)


def report(step: int) -> bytes:
    return json.dumps({"type": "report", "step": step, "loss": 1.0, "note of é": step}, ensure_ascii=False).encode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 30),
    st.lists(st.integers(1, 60), max_size=30),
    st.binary(max_size=20).filter(lambda b: b"\n" not in b),
)
def test_pieces_make_no_difference(tmp_path: Path, num_lines: int, cuts: list[int], torn: bytes) -> None:
    path = tmp_path / "reports.jsonl"
    path.unlink(missing_ok=True)
    data = b"".join(report(step) + b"\r\n\n" for step in range(num_lines)) + torn
    reader, lines = reader_of(path), list(reader_of(path).read())
    with path.open("ab") as file:
        for size in [*cuts, len(data)]:
            file.write(data[:size])
            file.flush()
            data = data[size:]
            lines += reader.read()
    assert [line.step for line in lines if isinstance(line, Point)] == list(range(num_lines))
    assert reader.fault is None
    assert not reader.has_more


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    reader = reader_of(tmp_path / "gone")
    assert list(reader.read()) == []
    assert reader.fault is None


def test_a_fault_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_bytes(report(0) + b"\nhello\n" + report(1) + b"\n")
    reader = reader_of(path)
    assert len(list(reader.read())) == 1
    assert reader.fault is not None
    assert reader.fault.startswith(f"{path}:2: must be one JSON object")
    assert list(reader.read()) == []


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_of_absurd_size(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_bytes(report(0) + b"\n" + b"x" * (MAX_LINE_BYTES + 2**20) + end)
    reader = reader_of(path)
    tracemalloc.start()
    lines = []
    while reader.has_more:
        lines += reader.read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(lines) == 1
    assert reader.fault is not None
    assert "reports.jsonl:2: a line must have at most 4 MiB" in reader.fault or "must be one JSON" in reader.fault
    assert peak < 5 * MAX_LINE_BYTES


def test_a_file_of_absurd_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    with path.open("wb") as file:
        file.truncate(2**40)
    reader = reader_of(path)
    assert list(reader.read()) == []
    assert reader.fault is not None
    assert "must have at most 67.9062 MiB for 1000 steps" in reader.fault


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_bytes(report(0) + b"\n")
    reader = reader_of(path)
    assert len(list(reader.read())) == 1
    path.write_bytes(b"")
    assert list(reader.read()) == []
    assert reader.fault is not None
    assert "open it for appending" in reader.fault


def test_many_short_lines_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_bytes(b'{"type": "alive"}\n' * 50_000)
    reader, count = reader_of(path), 0
    tracemalloc.start()
    while reader.has_more:
        count += sum(1 for _ in reader.read())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 50_000
    assert peak < 16 * 2**20
