"""The words of errors."""

from __future__ import annotations

from hpxfer.errors import brief, first_line, last_line, nearest, shown


def test_an_error_in_a_line() -> None:
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError("failed:\n\nTraceback\n  why")) == "failed: why"
    assert first_line(ValueError()) == last_line(ValueError()) == "ValueError"
    assert last_line(ValueError("one\ntwo\n")) == "two"


def test_a_message_repeats_the_start_of_a_long_value() -> None:
    assert (shown("a"), shown([1, "b"]), shown(1.5)) == ("'a'", "[1, 'b']", "1.5")
    assert shown("x" * 50_000) == f"'{'x' * 76}..."
    assert shown(["x" * 50_000]) == f"['{'x' * 75}..."
    assert shown(10**5000) == "a very long int"
    assert shown({"a": [10**5000]}) == "a very long dict"


def test_nearest_of_a_long_name() -> None:
    assert nearest("widht", ["depth", "width"]) == "did you mean 'width'?"
    assert nearest("q" * 10**6, ["depth", "width"]) == "legal: depth, width"
    many = nearest("?", [f"name{at}" for at in range(10_000)])
    assert many.endswith(", ... and 9800 more")
    assert len(nearest("?", ["x" * 50_000])) < 100


def test_a_message_is_brief() -> None:
    text = "a: must be 1\nb: must be 2"
    assert brief(text) == text
    assert brief("\n".join("x" * 60)).splitlines()[-1] == "... and 10 more lines"
    long = brief(f"start {'x' * 50_000} end")
    assert len(long) < 1300
    assert long.startswith("start x")
    assert long.endswith("x end")
