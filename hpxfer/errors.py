"""The exception that means "the input is at fault", how its message is made, and that of lost ranks."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

# What a message repeats of what the user gave: the characters of one value, the lines, and the characters of a line.
MAX_SHOWN = 80
MAX_LINES = 50
MAX_LINE = 1200
MAX_NAMES = 200  # of those that are legal


class HpxferError(ValueError):
    """A mistake in what the user gave. The command line prints it without a traceback and exits 2."""


class RankLost(Exception):
    """Of the processes that train a stack together, one hangs, is gone or has no memory. It counts as a lost worker."""


def shown(value: object) -> str:
    """Return a value as a message repeats it: as Python spells it, cut after 80 characters."""
    if isinstance(value, str):
        return cut(repr(value[: MAX_SHOWN + 1]))
    try:
        return cut(repr(value))
    except (ValueError, RecursionError):  # Python spells no whole number of more than 4300 digits
        return f"a very long {type(value).__name__}"


def cut(text: str, most: int = MAX_SHOWN) -> str:
    """Return the text, or its start and `...` if it is longer than `most`."""
    return text if len(text) <= most else text[: most - 3] + "..."


def brief(text: str) -> str:
    """Return a message with its lines cut, and only the first of very many. The start and the end of a line stay."""
    lines = text.split("\n")
    kept = [
        line if len(line) <= MAX_LINE else f"{line[: MAX_LINE // 2]} ... {line[-MAX_LINE // 2 :]}" for line in lines
    ]
    if len(kept) <= MAX_LINES + 1:  # the last one may be that of `joined`
        return "\n".join(kept)
    return "\n".join([*kept[:MAX_LINES], f"... and {len(kept) - MAX_LINES} more lines"])


def joined(lines: Iterable[str]) -> str:
    """Return the lines of a message, of very many the first ones only."""
    kept = list(islice(lines, MAX_LINES + 1))
    return "\n".join(kept if len(kept) <= MAX_LINES else [*kept[:MAX_LINES], "... and more"])


def nearest(name: str, legal: Iterable[str]) -> str:
    """Return a fix for an unknown `name`: the nearest legal one, or all of them."""
    names = sorted(legal)
    close = difflib.get_close_matches(name[:MAX_SHOWN], names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {shown(close[0])}?"
    more = f", ... and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return "legal: " + ", ".join(cut(each) for each in names[:MAX_NAMES]) + more


def first_line(error: BaseException) -> str:
    """Return the first line of an error, with the last one if the first ends with a colon."""
    lines = _lines(error)
    return f"{lines[0]} {lines[-1].strip()}" if lines[0].endswith(":") else lines[0]


def last_line(error: BaseException) -> str:
    """Return the last line of an error."""
    return _lines(error)[-1]


def _lines(error: BaseException) -> list[str]:
    return str(error).strip().splitlines() or [type(error).__name__]


# Folders on this disk that are mirrors of a URI.
_MIRRORS: dict[str, str] = {}


def know_mirror(folder: object, uri: object) -> None:
    """Remember that a folder is the mirror of a URI."""
    _MIRRORS[str(folder)] = str(uri)


def spelled(text: str) -> str:
    """Return a text for people, or JSON, with URIs in the place of the folders that stand for them."""
    for folder, uri in _MIRRORS.items():
        text = text.replace(folder, uri)
    return text
