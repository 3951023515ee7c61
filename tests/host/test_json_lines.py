"""Files of JSON lines: what is appended is read back, also after a writer that was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpxfer.errors import HpxferError
from hpxfer.host.json_lines import append_line, json_lines, require_appendable


def test_lines_come_back_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.jsonl"
    for value in (1, 2):
        append_line(path, {"value": value})
    assert list(json_lines(path)) == [(1, {"value": 1}), (2, {"value": 2})]


def test_a_half_line_stays_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"value": 1}\n{"val')
    assert list(json_lines(path)) == [(1, {"value": 1})]
    append_line(path, {"value": 2})
    assert path.read_text() == '{"value": 1}\n{"val\n{"value": 2}\n'
    with pytest.raises(HpxferError, match=r"a.jsonl:2: must be a JSON line, got .*; remove the line"):
        list(json_lines(path))


def test_a_number_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_line(tmp_path / "a.jsonl", {"value": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"text\nmore\n"])
def test_what_is_no_file_of_json_lines_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(HpxferError, match=r"a.jsonl"):
        list(json_lines(path))


def test_a_file_below_a_file_cannot_be_appended(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HpxferError, match=r"cannot be written: .*; choose another --output"):
        require_appendable(tmp_path / "file" / "a.jsonl")
