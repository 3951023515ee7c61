"""Which base is large enough: what tuning at each shape gives up at the largest one, beside what tuning there costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpxfer.analysis import Analysis
from hpxfer.figures import style
from hpxfer.figures.broken_axis import BrokenAxis, broken_axis, draw_broken_axis
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import along, listed, why_none
from hpxfer.verdict import CONTROL, NATS, BaseReading, JudgedLoss, TunedAt

SPREAD = 0.05  # doublings between the marks of two parameterizations, so that their bars can be told apart
RING = 15  # points, around the recommended base


@dataclass(frozen=True, kw_only=True)
class BaseChoiceInfo:
    """The bases of one HP along one axis."""

    title: str
    hp: str
    axis: str
    scale_name: str
    largest: str  # the name of the largest shape
    readings: tuple[BaseReading, ...]  # one per parameterization that has a base
    judged: JudgedLoss = NATS
    control: str | None = CONTROL  # the arm that the others are compared with

    @property
    def caption(self) -> str:
        """How to read the figure: what it shows, and no mark that is not there."""
        parts = [f"Left: what the HP tuned at each shape gives up at {self.largest}, with its 95% interval."]
        marks = [text for _, text in _marks(self)]
        parts += [f"{'; '.join(marks)}."] if marks else []
        return " ".join([*parts, "Right: the FLOPs of all trials that tune the HP at this shape."])

    def table(self) -> pd.DataFrame:
        """Return one row per base."""
        rows = [
            (
                *(self.axis, reading.parameterization, row.shape, row.scale, row.tuned_value, row.verdict),
                *(_finite(row.loss_given_up_nats), row.loss_given_up_low, row.loss_given_up_high, row.limit_nats),
                *(_diverges(row), row.octaves_to_next, row.octaves_low, row.octaves_high, row.tuning_flops),
                reading.name(row) == reading.recommended,
            )
            for reading in self.readings
            for row in reading.bases
        ]
        columns = ["axis", "parameterization", "tuned_at", self.scale_name, f"tuned_{self.hp}", "verdict"]
        columns += ["loss_given_up_nats", "low_nats", "high_nats", "limit_nats", "diverged", "octaves_to_next"]
        return pd.DataFrame(
            rows, columns=[*columns, "octaves_low", "octaves_high", "tuning_flops", "recommended"]
        ).rename(columns=self.judged.column)


def base_choice_info(analysis: Analysis, hp: str, axis: str) -> BaseChoiceInfo | str:
    """Return what the figure of one axis shows, or why there is none."""
    found = along([reading for reading in analysis.found("bases") if reading.hp == hp], axis, analysis.control)
    readings = tuple(reading for reading in found if reading.why_not is None)
    if not any(row.loss_given_up_nats is not None for reading in readings for row in reading.bases):
        return why_none((reading.why_not for reading in found), f"no HP tuned along {axis} has a result at its end")
    advice = listed([f"with {reading.parameterization}, {reading.advice}" for reading in readings])
    return BaseChoiceInfo(
        control=analysis.control,
        title=f"Base for {hp} along {axis}: {advice}",
        hp=hp,
        axis=axis,
        scale_name=readings[0].scale_name,
        largest=readings[0].name(readings[0].bases[-1]),
        readings=readings,
        judged=analysis.judged,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _diverges(row: TunedAt) -> bool:
    return row.loss_given_up_nats == math.inf


def draw_base_choice(info: BaseChoiceInfo) -> Figure:
    """Return the figure: the loss given up on the left, the cost on the right."""
    with style.look():
        figure, (losses, costs) = style.panels(info.title, 2, height=3.2, foot=0.6)
        rows = [row for reading in info.readings for row in reading.bases]
        for axes in (losses, costs):
            style.log2_scale_axis(axes, [row.scale for row in rows], info.scale_name)
            axes.set_xlabel(f"tuned at {info.scale_name} (log scale)")
        ends = [end for row in rows for end in (row.loss_given_up_nats, row.loss_given_up_low, row.loss_given_up_high)]
        broken = broken_axis([*ends, *(row.limit_nats for row in rows)])
        draw_broken_axis(losses, broken, info.judged.unit, strip=any(map(_diverges, rows)))
        losses.set_title(f"loss given up at {info.largest}")
        look_of = style.marks([reading.parameterization for reading in info.readings], info.control)
        for number, reading in enumerate(info.readings):
            shift = SPREAD * (number - (len(info.readings) - 1) / 2)
            _draw_losses(losses, broken, reading, *look_of[reading.parameterization], shift)
            _draw_costs(costs, reading, *look_of[reading.parameterization], shift)
        style.legend_below(figure, _legend(info, look_of), columns=4)
    return figure


def _draw_losses(axes: Axes, broken: BrokenAxis, reading: BaseReading, color: str, marker: str, shift: float) -> None:
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


def _draw_costs(axes: Axes, reading: BaseReading, color: str, marker: str, shift: float) -> None:
    known = [(row, _x(row, shift), row.tuning_flops) for row in reading.bases if row.tuning_flops]
    axes.set_ylabel("FLOPs of tuning there (log scale)")
    if not known:
        axes.annotate("not known", (0.5, 0.5), xycoords="axes fraction", ha="center")
        return
    style.log_losses(axes)
    axes.plot([x for _, x, _ in known], [flops for *_, flops in known], color=color, linewidth=1.4)
    for row, x, flops in known:
        _draw_mark(axes, x, flops, reading, row, color, marker)


def _draw_mark(axes: Axes, x: float, y: float, reading: BaseReading, row: TunedAt, color: str, marker: str) -> None:
    """Draw a base: filled if the HP transfers from there, and small at the largest shape, beyond which nothing lies."""
    size, inside = (7, color if row.verdict == "transfers" else "none") if row.verdict is not None else (3, color)
    axes.plot(x, y, color=color, marker=marker, markersize=size, markerfacecolor=inside, linestyle="none", zorder=4)
    if reading.name(row) == reading.recommended:
        ring = {"marker": "o", "markersize": RING, "markerfacecolor": "none", "markeredgecolor": INK}
        axes.plot(x, y, linestyle="none", zorder=5, **ring)  # type: ignore[arg-type]


def _x(row: TunedAt, shift: float) -> float:
    return float(np.log2(row.scale)) + shift


def _legend(info: BaseChoiceInfo, look_of: dict[str, tuple[str, str]]) -> list[Line2D]:
    handles = [Line2D([], [], color=color, marker=marker, label=name) for name, (color, marker) in look_of.items()]
    return [*handles, *(handle for handle, _ in _marks(info))]


def _marks(info: BaseChoiceInfo) -> list[tuple[Line2D, str]]:
    """Return the marks that the figure has beside those of arms: the entry of the legend, and what the caption says."""
    rows = [row for reading in info.readings for row in reading.bases]
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
            any(reading.recommended is not None for reading in info.readings),
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
    infos=lambda given: {axis: base_choice_info(given.analysis, given.report.hp, axis) for axis in given.axes},
    draw=draw_base_choice,
    of_lines=True,
)
