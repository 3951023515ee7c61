"""The figure of a statistic's own chart: lines, cells or level lines over the columns of its frame."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hpxfer.analysis import Chart as Given
from hpxfer.analysis import Found, Statistic
from hpxfer.analysis.statistics.statistic import in_unit
from hpxfer.figures import style
from hpxfer.figures.cells import Cells
from hpxfer.figures.chart import Block, Chart, Line, Look, Panels
from hpxfer.host import CONTROL, NATS, JudgedLoss, scale_text

MOST_PANELS = 6
MOST_TICKS = 8  # on a log axis whose ticks are the values themselves
# Columns beside those of the user: the color of a chart that names none, the rise of a cell, whether it has a number.
ONE, RISE, MEASURED = "hpxfer one", "hpxfer rise", "hpxfer measured"


def charted_block(
    statistic: Statistic, found: Found, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> Block | str:
    """Return what the figure of a statistic shows, or why there is none."""
    chart = found.chart
    assert chart is not None, "a statistic without a chart has no figure"
    frame = found.frame.replace([math.inf, -math.inf], math.nan)
    numbers = {chart.x, chart.y, chart.low, chart.high, chart.color if chart.kind != "line" else None} - {None}
    frame = frame.astype(dict.fromkeys(numbers, float))
    known = frame[[chart.x, chart.y]].notna().all(axis=1)
    for side in chart.log:  # a log axis has no place for 0
        known &= frame[chart.x if side == "x" else chart.y] > 0
    rows = frame[known] if chart.panel is None else frame[known & frame[chart.panel].notna()]
    if rows.empty:
        return "; ".join(dict.fromkeys(why for _, why in found.unknown)) or "no row has both numbers of the chart"
    panels = None if chart.panel is None else list(dict.fromkeys(rows[chart.panel]))[:MOST_PANELS]
    labels = {name: judged.column(name).replace("_", " ") for name in map(str, rows.columns)}
    left_out = 0 if chart.panel is None else rows[chart.panel].nunique() - MOST_PANELS
    caption = [
        statistic.note,
        *(f"{labels[name]}: {text}." for name, text in statistic.columns.items() if name in labels),
    ]
    caption += [f"{left_out} more panels are in the data."] if left_out > 0 else []
    drawn = rows.assign(**{ONE: ""})
    if chart.kind == "line" and chart.color is not None and not _is_scale(rows[chart.color]):
        drawn[chart.color] = rows[chart.color].astype(str)
    if chart.kind != "line":
        values = rows[chart.color].astype(float)
        drawn = rows.assign(**{RISE: values - values.min()}).assign(**{MEASURED: values.notna()})
        for name in {chart.x if side == "x" else chart.y for side in chart.log}:  # cells are even in the logarithm
            drawn, labels = drawn.assign(**{name: np.log2(drawn[name])}), {**labels, name: f"log2 {labels[name]}"}
    return Block(
        title=in_unit(f"{statistic.title} {found.title}".strip(), judged.unit),
        caption=in_unit(" ".join(part for part in caption if part), judged.unit),
        frame=found.frame,
        drawn=drawn,
        charts=(_lines if chart.kind == "line" else _cells)(chart, drawn, panels, labels, control),
        judged=judged,
    )


def _is_scale(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _lines(
    chart: Given, rows: pd.DataFrame, panels: list[Any] | None, labels: Mapping[str, str], control: str | None
) -> tuple[Panels]:
    color = chart.color or ONE
    values = list(dict.fromkeys(rows[color].dropna()))
    looks: dict[Any, Look] = {}
    if all(isinstance(value, str) for value in values):
        looks |= style.marks(values, control)
    else:  # a number is a scale, whose colors are in its order
        looks |= {value: (of, "o") for value, of in style.scale_colors(values).items()}
    whole = bool((rows[chart.x] >= 1).all() and (rows[chart.x] % 1 == 0).all())
    most = int(rows.groupby(chart.panel or ONE)[chart.x].nunique().max())
    is_scale = "x" in chart.log and whole and most <= MOST_TICKS
    drawn = Chart(
        x=chart.x,
        lines=(Line(y=chart.y, low=chart.low, high=chart.high, marker="arm"),),
        color=color,
        panel=chart.panel,
        panels=panels,
        looks=looks,
        legend="keys" if chart.color is None else "below",
        names={value: value if isinstance(value, str) else scale_text(value) for value in values},
        x_log2=is_scale,
        finish=lambda axes, _, of: _finish(axes, chart, of[chart.x] if is_scale else None, labels),
    )
    return (drawn,)


def _finish(axes: Axes, chart: Given, scales: pd.Series | None, labels: Mapping[str, str]) -> None:
    """Set the axes. Where x has few values on a log axis, such as `scales`, its ticks are these values."""
    x, y = (labels[name] + " (log scale)" * (side in chart.log) for side, name in (("x", chart.x), ("y", chart.y)))
    style.set_axes(axes, x, y)
    if scales is not None:
        style.log2_scale_axis(axes, scales.to_list(), labels[chart.x])
    elif "x" in chart.log:
        style.log_steps(axes)
    if "y" in chart.log:
        style.log_losses(axes)


def _cells(
    chart: Given, rows: pd.DataFrame, panels: list[Any] | None, labels: Mapping[str, str], control: str | None
) -> tuple[Panels]:
    values = rows[chart.color].astype(float)
    low, high = (0.0, 1.0) if values.isna().all() else (values.min(), values.max())

    def finish(axes: Axes, _: Any, cells: pd.DataFrame) -> None:
        known = cells[cells[chart.color].notna()]
        if chart.kind == "contour" and known[chart.color].nunique() > 1:
            x, y, z = (known[name].to_numpy(float) for name in (chart.x, chart.y, chart.color))
            if np.linalg.matrix_rank(np.stack([x - x.mean(), y - y.mean()])) == 2:  # the cells are not on one line
                axes.tricontour(x, y, z, colors=["#ffffff"], linewidths=1.2)
        style.set_axes(axes, labels[chart.x], labels[chart.y])

    drawn = Cells(
        x=chart.x,
        y=chart.y,
        rise=RISE,
        panel=chart.panel,
        panels=panels,
        measured=MEASURED,
        top=high - low or 1.0,
        ends=(f"{labels[str(chart.color)]} {low:.3g}", f"{high:.3g}"),
        finish=finish,
    )
    return (drawn,)
