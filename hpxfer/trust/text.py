"""The outcomes of the checks as a table for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from hpxfer.receipts import Outcome

WIDTH = 120


def checks_table(outcomes: Sequence[Outcome]) -> str:
    """Return the columns check, result and why. A long reason goes on under its start."""
    head = ("check", "result", "why")
    first = max(len(row) for row in (head[0], *(each.check for each in outcomes)))
    second = max(len(row) for row in (head[1], *(each.status for each in outcomes)))
    rows = [head, *((each.check, each.status, each.reason) for each in outcomes)]
    return "\n".join(line for row in rows for line in _lines(row, first, second))


def _lines(row: tuple[str, str, str], first: int, second: int) -> list[str]:
    start = f"{row[0]:<{first}}  {row[1]:<{second}}  "
    return textwrap.wrap(
        row[2], WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
    )
