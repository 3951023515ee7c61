"""Chart: which columns of a figure's frame are drawn as lines, and the one drawing of them all.

A figure is a `Block`: its finding, how to read it, the frame behind it, and one chart or several side by side. A chart
has a panel per value of one column and a color per value of another, e.g. per shape:

    Chart(x="step", lines=(Line(y="loss", low="min", high="max"),), color="shape", looks=looks, panel="arm")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpxfer.figures import style
from hpxfer.figures.style import FAINT, INK
from hpxfer.host import NATS, JudgedLoss

# Legends that belong to a panel.
PLACES: dict[str, dict[str, Any]] = {
    "panel": {"loc": "best"},
    "right": {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)},
    "under": {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17)},
}
LATE = 10  # curves of losses are shown from this part of a run on: before it all shapes look alike
CUT = "The first steps of training, in which all curves fall steeply, are not shown."
Look = tuple[str, str] | tuple[str, str, str]  # color, marker, and the style of its line if it is not solid


@dataclass(frozen=True, kw_only=True)
class Line:
    """A column that is drawn over x, one line per color."""

    y: str
    low: str | None = None  # the columns of the band about it
    high: str | None = None
    se: str | None = None  # the column of its standard error, of which two are drawn up and down
    cross: str | None = None  # the column that says which points are marked by a cross
    where: Mapping[str, Any] = field(default_factory=dict)  # column -> value of the rows that are drawn; None: empty
    by: str | None = None  # a further column, with one line per value
    marker: str | None = None  # of its points; `arm` for that of the color
    look: Mapping[str, Any] = field(default_factory=dict)  # as matplotlib names it, e.g. {"linestyle": "--"}
    name: str = ""  # in the legend, where a color has several lines


@dataclass(frozen=True, kw_only=True, eq=False)
class Panels:
    """What all charts have in common: a panel per value of one column."""

    x: str
    panel: str | None = None  # None: one panel
    panels: Sequence[Any] | None = None  # the values that have a panel; None: all, in the order of the frame
    titles: Mapping[Any, str] | None = None  # value of `panel`, None without one -> title; None: the value
    finish: Callable[[Axes, Any, pd.DataFrame], None] | None = None  # gets the value of the panel, and its rows

    def values(self, frame: pd.DataFrame) -> list[Any]:
        """Return the values that have a panel."""
        if self.panel is None:
            return [None]
        return list(dict.fromkeys(frame[self.panel]) if self.panels is None else self.panels)

    def end_panel(self, axes: Axes, value: Any, rows: pd.DataFrame) -> None:
        """Set the axes of a panel, and add what is special to the figure."""
        if self.finish is not None:
            self.finish(axes, value, rows)

    def draw_panel(self, axes: Axes, value: Any, rows: pd.DataFrame, frame: pd.DataFrame) -> Sequence[Artist]:
        """Draw a panel with these rows of the frame. Return the entries of the legend below the figure."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, eq=False)
class Chart(Panels):
    """Lines over x."""

    lines: tuple[Line, ...]
    color: str | tuple[str, ...]  # a column, or several that tell lines apart together
    looks: Mapping[Any, Look]  # value of `color` -> its look, in the order of the legend
    names: Mapping[Any, str] = field(default_factory=dict)  # value of `color` -> its entry in the legend
    x_log2: bool = False  # x is drawn by its log2
    # Below all panels (with the entries of colors, or of `keys` alone), in each panel, to its right, or under it.
    legend: Literal["below", "keys", "panel", "right", "under"] = "below"
    legend_title: str | None = None  # of a legend in each panel
    keys: tuple[Artist, ...] = ()  # further entries of the legend

    def colored(self, frame: pd.DataFrame) -> list[Any]:
        """Return the values of the color that are in a frame, in its order."""
        found = frame[self.color] if isinstance(self.color, str) else frame[list(self.color)].itertuples(index=False)
        return list(dict.fromkeys(found if isinstance(self.color, str) else map(tuple, found)))

    def draw_panel(self, axes: Axes, value: Any, rows: pd.DataFrame, frame: pd.DataFrame) -> list[Artist]:
        """Draw a panel. Return the legend of the figure: every look, then the lines that have a name."""
        here = set(self.colored(rows))
        names = [self.color] if isinstance(self.color, str) else list(self.color)
        for line in self.lines:
            for at, series in _kept(rows, line).groupby([*names, *([line.by] if line.by else [])], sort=False):
                _draw_line(axes, self, line, series, self.looks[at[0] if len(names) == 1 else at[: len(names)]])
        has_marks = any(line.marker for line in self.lines) or not self.lines
        handles: list[Artist] = []
        for at, (color, marker, *dash) in self.looks.items():
            if self.legend == "below" or (self.legend in PLACES and at in here):
                mark = {"marker": marker if has_marks else "", "markersize": 5, "linestyle": (*dash, "-")[0]}
                handles.append(Line2D([], [], color=color, label=self.names.get(at, str(at)), **mark))  # type: ignore[arg-type]
        handles += [key(line.name, **line.look) for line in self.lines if line.name]
        handles += self.keys
        self.end_panel(axes, value, rows)
        if (place := PLACES.get(self.legend)) is None:
            return handles
        axes.legend(handles=handles, title=self.legend_title, alignment="left", **place)
        return []


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """A figure as data. Several charts stand side by side, panel by panel.

    The columns of `frame` have names of ours, as those of a sweep's scales and HPs could be the same. `headings` gives
    the columns of the CSV, and what they are called there.
    """

    title: str  # the finding
    caption: str  # how to read it
    frame: pd.DataFrame
    charts: tuple[Panels, ...]
    headings: Mapping[str, str] | None = None  # None: all columns, by their own names
    drawn: pd.DataFrame | None = None  # the rows that are drawn, where they are others
    judged: JudgedLoss = NATS  # its unit is that of columns that end in `_nats`
    height: float = 2.9  # inches per row of panels
    foot: float = 0.6  # inches below them
    columns: int = 2
    legend_columns: int = 4
    legend_title: str | None = None

    def table(self) -> pd.DataFrame:
        """Return what stands in the CSV, with the unit of its losses."""
        kept = self.frame if self.headings is None else self.frame[list(self.headings)]
        names = self.frame.columns if self.headings is None else self.headings.values()
        return kept.set_axis([self.judged.column(name) for name in names], axis=1)


def key(label: str, **look: Any) -> Line2D:
    """Return an entry of a legend in the color of text."""
    return Line2D([], [], **{"color": INK, "alpha": FAINT, **look}, label=label)


def late_ends(
    frame: pd.DataFrame, x: str, start: float, room: float = 0.04
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ends of x and of y of curves of losses from `start` on. `room` is below them, as a share of y."""
    late = frame[frame[x] >= start]
    low, high = float(late["min_nats"].min()), float(late["max_nats"].max())
    span = high - low or 0.1
    return (start, float(frame[x].max()) * 1.1), (low - room * span, high + 0.05 * span)


def draw(block: Block) -> Figure:
    """Return the figure of a block."""
    first, num = block.charts[0], len(block.charts)
    frame = block.frame if block.drawn is None else block.drawn
    values = first.values(frame)
    with style.look():
        across = {1: block.columns, 4: 2}.get(num, num)  # four beside each other would cut their titles
        size = {"columns": across, "height": block.height, "foot": block.foot}
        figure, grid = style.panels(block.title, num * len(values), **size)  # type: ignore[arg-type]
        handles: dict[str, Artist] = {}
        for i, value in enumerate(values):
            rows = frame if first.panel is None else frame[frame[first.panel] == value]
            for axes, chart in zip(grid[num * i :], block.charts, strict=False):
                title = value if chart.titles is None else chart.titles.get(value)
                if title not in (None, ""):
                    axes.set_title(title if isinstance(title, str) else f"{title:g}")
                handles |= {str(each.get_label()): each for each in chart.draw_panel(axes, value, rows, frame)}
        if handles:
            style.legend_below(figure, list(handles.values()), columns=block.legend_columns, title=block.legend_title)
    return figure


def _kept(rows: pd.DataFrame, line: Line) -> pd.DataFrame:
    """Return the rows that a line draws."""
    for column, value in line.where.items():
        rows = rows[rows[column].isna() if value is None else rows[column] == value]
    return rows[rows[line.y].notna()]


def _draw_line(axes: Axes, chart: Chart, line: Line, series: pd.DataFrame, look: Look) -> None:
    color, marker, *dash = look
    series = series.sort_values(chart.x, kind="stable")
    x = np.log2(series[chart.x]) if chart.x_log2 else series[chart.x]
    if line.low and line.high:
        axes.fill_between(x, series[line.low], series[line.high], color=color, alpha=0.18, linewidth=0)
    if line.se:
        half = 2 * series[line.se].astype(float)
        axes.vlines(x, series[line.y] - half, series[line.y] + half, color=color, linewidth=1.2)
    if line.cross and (at := series[line.cross].to_numpy(bool)).any():
        cross = {"marker": "x", "markersize": 8, "markeredgewidth": 2, "linestyle": "none"}
        axes.plot(x[at], series[line.y][at], color=color, **cross)  # type: ignore[arg-type]
    of_points: dict[str, Any] = {}
    if line.marker:
        of_points = {"marker": marker if line.marker == "arm" else line.marker, "zorder": 3, "markersize": 5}
    drawn = {"color": color, "linewidth": 1.6, "linestyle": (*dash, "-")[0], **of_points, **line.look}
    axes.plot(*style.thinned(x.to_list(), series[line.y].to_list()), **drawn)
