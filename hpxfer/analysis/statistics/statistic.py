"""What a statistic is: a question about a sweep besides the verdict, and the function that answers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpxfer.analysis.statistics.inputs import Inputs


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A row of the registry `STATISTICS`.

    `compute` returns the answers: frozen dataclasses, one per axis and parameterization, or per whatever it asks about.
    The JSON of a report holds every field of an answer. Text and HTML show a table with one row per answer and one
    column per field that holds a number, a string or a short tuple. An answer that cannot be given has the reason in a
    field `why_not: str | None`, and the report lists all reasons in one place.
    """

    name: str  # its key in `Analysis` and in the JSON of the report
    title: str  # the heading of its table, e.g. its question
    compute: Callable[[Inputs], Sequence[Any]]
    note: str = ""  # what a reader of the table must know
    parts: str | None = None  # the field of an answer that holds the rows of the table; None: the answers are the rows
    answer: str | None = None  # a field of the whole answer that each row of its parts repeats
    of_lines: bool = False  # whether it reads the lines alone, no trials and no sweep, so that a table can feed it
