"""The one exception that means "the input is at fault", and how its message is made."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HpxferError(ValueError):
    """A mistake in what the user gave. The command line prints it without a traceback and exits 2."""


def nearest(name: str, legal: Iterable[str]) -> str:
    """Return a fix for an unknown `name`: the nearest legal one, or all of them."""
    names = sorted(legal)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "legal: " + ", ".join(names)


def first_line(error: BaseException) -> str:
    """Return the first line of an error, with the last one if the first ends with a colon."""
    lines = _lines(error)
    return f"{lines[0]} {lines[-1].strip()}" if lines[0].endswith(":") else lines[0]


def last_line(error: BaseException) -> str:
    """Return the last line of an error."""
    return _lines(error)[-1]


def _lines(error: BaseException) -> list[str]:
    return str(error).strip().splitlines() or [type(error).__name__]
