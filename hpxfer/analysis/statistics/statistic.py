"""What a statistic is: a question about a sweep besides the verdict, and the function that answers it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from hpxfer.analysis.statistics.inputs import Inputs

Kind = Literal["line", "cells", "contour"]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Which columns of a frame are drawn. An axis is called by its column.

    A `line` is y over x, with one line per value of `color` and a band from `low` to `high`. `cells` have a cell at
    each x and y, whose color is the number in the column `color`. `contour` adds level lines to them.
    """

    x: str
    y: str
    color: str | None = None  # None: one line
    panel: str | None = None  # a panel per value; None: one panel
    kind: Kind = "line"
    low: str | None = None
    high: str | None = None
    log: tuple[Literal["x", "y"], ...] = ()  # axes that are logarithmic


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What a statistic found."""

    frame: pd.DataFrame  # tidy: numbers, texts and None
    title: str = ""  # the finding, in a sentence
    unknown: Sequence[tuple[str, str]] = ()  # of what nothing is known, and why
    chart: Chart | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the finding, its rows and what is unknown."""
        return {"title": self.title, "rows": records(self.frame), "unknown": [list(each) for each in self.unknown]}


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A row of the registry `STATISTICS`.

    CSV and JSON hold the whole frame that `compute` returns. The page shows it as a table, and draws its chart.
    """

    name: str  # its key in `Analysis` and in the JSON of the report
    title: str  # the question that it answers
    compute: Callable[[Inputs], Found]
    columns: Mapping[str, str] = field(default_factory=dict)  # column -> what it holds, with its unit
    note: str = ""  # how the answer is read
    of_lines: bool = False  # whether it reads the lines alone, no trials and no sweep, so that a table can feed it
    hidden: tuple[str, ...] = ()  # columns that its table leaves out
    is_table: bool = True  # whether the page shows its rows; False where there are too many, and a figure shows them


def frame_of(rows: Iterable[Mapping[str, Any]], statistic: Mapping[str, str]) -> pd.DataFrame:
    """Return a frame with the columns of a statistic. Without rows it is empty. A column without values holds NaN."""
    frame = pd.DataFrame(list(rows), columns=list(statistic))
    return frame.astype(dict.fromkeys(frame.columns[frame.isna().all()], float))


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as mappings of plain values, with None for what is missing."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]


def listed(phrases: Sequence[str], num: int = 4) -> str:
    """Return the first `num` phrases with commas between them, and how many more there are."""
    return ", ".join(phrases[:num]) + (f" and {len(phrases) - num} more" if len(phrases) > num else "")


def in_unit(text: str, unit: str) -> str:
    """Return a text with another unit of the loss for nats."""
    return re.sub(r"\bnats\b", unit, text)


def by_axis(frame: pd.DataFrame, said: Callable[[pd.DataFrame], str]) -> str:
    """Return what is said of the rows of each axis, e.g. `width: mup yes, sp no; depth: mup yes`."""
    axes = list(dict.fromkeys(frame["axis"]))
    return "; ".join(f"{axis}: {said(frame[frame['axis'] == axis])}" for axis in axes)


def arms(frame: pd.DataFrame) -> Sequence[tuple[str, pd.DataFrame]]:
    """Return each parameterization with its rows, in the order of the frame."""
    return [(str(name), rows) for name, rows in frame.groupby("parameterization", sort=False)]
