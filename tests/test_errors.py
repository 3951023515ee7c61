"""The words of errors."""

from __future__ import annotations

from hpxfer.errors import first_line, last_line


def test_an_error_in_a_line() -> None:
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError("failed:\n\nTraceback\n  why")) == "failed: why"
    assert first_line(ValueError()) == last_line(ValueError()) == "ValueError"
    assert last_line(ValueError("one\ntwo\n")) == "two"
