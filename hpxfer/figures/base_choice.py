"""Which base is large enough: what tuning at each shape gives up at the largest one, beside what tuning there costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hpxfer.analysis import Analysis
from hpxfer.figures import style
from hpxfer.figures.broken_axis import broken_axis, draw_broken_axis
from hpxfer.figures.chart import Block, Chart, Look, draw
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import along, listed, why_none
from hpxfer.verdict import BaseReading, TunedAt

SPREAD = 0.05  # doublings between the marks of two parameterizations, so that their bars can be told apart
RING = 15  # points, around the recommended base


def base_choice_block(analysis: Analysis, hp: str, axis: str) -> Block | str:
    """Return what the figure of one axis shows, or why there is none."""
    found = along([reading for reading in analysis.found("bases") if reading.hp == hp], axis, analysis.control)
    readings = [reading for reading in found if reading.why_not is None]
    if not any(row.loss_given_up_nats is not None for reading in readings for row in reading.bases):
        return why_none((reading.why_not for reading in found), f"no HP tuned along {axis} has a result at its end")
    advice = listed([f"with {reading.parameterization}, {reading.advice}" for reading in readings])
    rows = [
        (
            *(axis, reading.parameterization, row.shape, row.scale, row.tuned_value, row.verdict),
            *(_finite(row.loss_given_up_nats), row.loss_given_up_low, row.loss_given_up_high, row.limit_nats),
            *(_diverges(row), row.octaves_to_next, row.octaves_low, row.octaves_high, row.tuning_flops),
            reading.name(row) == reading.recommended,
        )
        for reading in readings
        for row in reading.bases
    ]
    scale, largest = readings[0].scale_name, readings[0].name(readings[0].bases[-1])
    columns = ["axis", "parameterization", "tuned_at", scale, f"tuned_{hp}", "verdict"]
    columns += ["loss_given_up_nats", "low_nats", "high_nats", "limit_nats", "diverged", "octaves_to_next"]
    columns += ["octaves_low", "octaves_high", "tuning_flops", "recommended"]
    looks = style.marks([reading.parameterization for reading in readings], analysis.control)
    marks = _marks(readings)
    form = {"x": scale, "lines": (), "color": "arm", "looks": looks}
    charts = (
        Chart(
            **form,
            titles={None: f"loss given up at {largest}"},
            keys=tuple(handle for handle, _ in marks),
            finish=lambda axes, *_: _draw_losses(axes, readings, looks, analysis.judged.unit),
        ),
        Chart(**form, legend="keys", finish=lambda axes, *_: _draw_costs(axes, readings, looks)),
    )
    # The caption names no mark that is not there.
    caption = [f"Left: what the HP tuned at each shape gives up at {largest}, with its 95% interval."]
    caption += [f"{'; '.join(text for _, text in marks)}."] if marks else []
    return Block(
        title=f"Base for {hp} along {axis}: {advice}",
        caption=" ".join([*caption, "Right: the FLOPs of all trials that tune the HP at this shape."]),
        frame=pd.DataFrame(rows, columns=columns),
        drawn=pd.DataFrame({"arm": list(looks)}),
        charts=charts,
        judged=analysis.judged,
        height=3.2,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _diverges(row: TunedAt) -> bool:
    return row.loss_given_up_nats == math.inf


def _draw_losses(axes: Axes, readings: Sequence[BaseReading], looks: Mapping[str, Look], unit: str) -> None:
    rows = _scale_axis(axes, readings)
    ends = [end for row in rows for end in (row.loss_given_up_nats, row.loss_given_up_low, row.loss_given_up_high)]
    broken = broken_axis([*ends, *(row.limit_nats for row in rows)])
    draw_broken_axis(axes, broken, unit, strip=any(map(_diverges, rows)))
    for reading, shift in _shifted(readings):
        color, marker, *_ = looks[reading.parameterization]
        known = [row for row in reading.bases if _finite(row.loss_given_up_nats) is not None]
        x = [_x(row, shift) for row in known]
        y = [broken.at(row.loss_given_up_nats or 0.0) for row in known]
        axes.plot(x, y, color=color, linewidth=1.4, zorder=2)
        for at, height, row in zip(x, y, known, strict=True):
            if row.loss_given_up_low is not None and row.loss_given_up_high is not None:
                bar = [broken.at(row.loss_given_up_low), broken.at(row.loss_given_up_high)]
                axes.plot([at, at], bar, color=color, linewidth=1.6, marker="_", markersize=7, zorder=3)
            _draw_mark(axes, at, height, reading, row, color, marker)
        for row in filter(_diverges, reading.bases):
            axes.plot(_x(row, shift), broken.strip, marker="x", color=color, markersize=7, markeredgewidth=1.8)
        limits = [(_x(row, 0.0), broken.at(row.limit_nats)) for row in reading.bases if row.limit_nats is not None]
        axes.plot([at for at, _ in limits], [limit for _, limit in limits], color=INK, alpha=FAINT, linestyle=":")


def _draw_costs(axes: Axes, readings: Sequence[BaseReading], looks: Mapping[str, Look]) -> None:
    _scale_axis(axes, readings)
    axes.set_ylabel("FLOPs of tuning there (log scale)")
    for reading, shift in _shifted(readings):
        color, marker, *_ = looks[reading.parameterization]
        known = [(row, _x(row, shift), row.tuning_flops) for row in reading.bases if row.tuning_flops]
        if not known:
            axes.annotate("not known", (0.5, 0.5), xycoords="axes fraction", ha="center")
            continue
        style.log_losses(axes)
        axes.plot([x for _, x, _ in known], [flops for *_, flops in known], color=color, linewidth=1.4)
        for row, x, flops in known:
            _draw_mark(axes, x, flops, reading, row, color, marker)


def _scale_axis(axes: Axes, readings: Sequence[BaseReading]) -> list[TunedAt]:
    """Make x the scale that was tuned at. Return the bases of all readings."""
    rows = [row for reading in readings for row in reading.bases]
    style.log2_scale_axis(axes, [row.scale for row in rows], readings[0].scale_name)
    axes.set_xlabel(f"tuned at {readings[0].scale_name} (log scale)")
    return rows


def _shifted(readings: Sequence[BaseReading]) -> Iterator[tuple[BaseReading, float]]:
    """Yield each reading, and by how many doublings its marks are shifted."""
    for number, reading in enumerate(readings):
        yield reading, SPREAD * (number - (len(readings) - 1) / 2)


def _draw_mark(axes: Axes, x: float, y: float, reading: BaseReading, row: TunedAt, color: str, marker: str) -> None:
    """Draw a base: filled if the HP transfers from there, and small at the largest shape, beyond which nothing lies."""
    size, inside = (7, color if row.verdict == "transfers" else "none") if row.verdict is not None else (3, color)
    axes.plot(x, y, color=color, marker=marker, markersize=size, markerfacecolor=inside, linestyle="none", zorder=4)
    if reading.name(row) == reading.recommended:
        ring = {"marker": "o", "markersize": RING, "markerfacecolor": "none", "markeredgecolor": INK}
        axes.plot(x, y, linestyle="none", zorder=5, **ring)  # type: ignore[arg-type]


def _x(row: TunedAt, shift: float) -> float:
    return float(np.log2(row.scale)) + shift


def _marks(readings: Sequence[BaseReading]) -> list[tuple[Line2D, str]]:
    """Return the marks that the figure has beside those of arms: the entry of the legend, and what the caption says."""
    rows = [row for reading in readings for row in reading.bases]
    verdicts = {row.verdict for row in rows}
    given: list[tuple[bool, dict[str, Any], str, str]] = [
        (
            "transfers" in verdicts,
            {"marker": "o"},
            "transfers from here",
            "a filled mark transfers to all larger shapes",
        ),
        (
            bool(verdicts & {"drifts", "undecided"}),
            {"marker": "o", "markerfacecolor": "none"},
            "is not seen to transfer from here",
            "an open one is not seen to",
        ),
        (
            any(reading.recommended is not None for reading in readings),
            {"marker": "o", "markerfacecolor": "none", "markersize": RING},
            "smallest base recommended",
            "a ring is the smallest base that is recommended",
        ),
        (
            any(row.limit_nats is not None for row in rows),
            {"linestyle": ":", "alpha": FAINT},
            "limit of the verdict",
            "the dotted line is the limit of the verdict",
        ),
        (any(map(_diverges, rows)), {"marker": "x"}, "diverges there", "a cross diverges there"),
    ]
    return [
        (Line2D([], [], **{"color": INK, "linestyle": "none", **look}, label=label), text)
        for there, look, label, text in given
        if there
    ]


BASE_CHOICE = HPFigure(
    name="base-choice",
    question="Which base is large enough?",
    infos=lambda given: {axis: base_choice_block(given.analysis, given.report.hp, axis) for axis in given.axes},
    draw=draw,
    of_lines=True,
)
