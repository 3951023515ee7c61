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
