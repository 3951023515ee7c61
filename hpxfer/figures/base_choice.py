"""Which base is large enough: what tuning at each shape gives up at the largest one, beside what tuning there costs."""

from __future__ import annotations

from collections.abc import Mapping
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
from hpxfer.figures.text import each, listed, rows_of, why_no_rows
from hpxfer.host import shape_label

SPREAD = 0.05  # doublings between the marks of two parameterizations, so that their bars can be told apart
RING = 15  # points, around the recommended base


def base_choice_block(analysis: Analysis, hp: str, axis: str) -> Block | str:
    """Return what the figure of one axis shows, or why there is none."""
    found = analysis.found("bases")
    rows = rows_of(found, axis, analysis.control)
    rows = rows[rows["hp"] == hp]
    if rows.empty or not (rows["loss_given_up_nats"].notna() | rows["diverges"].astype(bool)).any():
        return why_no_rows(found, f"{axis}", f"no HP tuned along {axis} has a result at its end")
    arms = list(dict.fromkeys(rows["parameterization"]))
    advice = listed(
        [f"with {row.parameterization}, {row.advice}" for row in each(rows.drop_duplicates("parameterization"))]
    )
    scale, largest = rows["scale_name"].iloc[0], rows["scale"].iloc[-1]
    looks = style.marks(arms, analysis.control)
    shift = {name: SPREAD * (i - (len(arms) - 1) / 2) for i, name in enumerate(arms)}
    drawn = rows.assign(
        at=np.log2(rows["scale"].astype(float)), x=lambda of: of["at"] + of["parameterization"].map(shift)
    )
    marks = _marks(rows)
    form: dict[str, Any] = {"x": "x", "lines": (), "color": "parameterization", "looks": looks}
    charts = (
        Chart(
            **form,
            titles={None: f"loss given up at {shape_label(scale, largest)}"},
            keys=tuple(handle for handle, _ in marks),
            finish=lambda axes, _, of: _draw_losses(axes, of, looks, analysis.judged.unit),
        ),
        Chart(**form, legend="keys", finish=lambda axes, _, of: _draw_costs(axes, of, looks)),
    )
    has_costs = bool(rows["tuning_flops"].notna().any())
    # The caption names no mark that is not there.
    caption = [
        f"{'Left: what' if has_costs else 'What'} the HP tuned at each shape gives up at "
        f"{shape_label(scale, largest)}, with its 95% interval."
    ]
    said = "; ".join(text for _, text in marks)
    caption += [f"{said[:1].upper()}{said[1:]}."] if marks else []
    caption += ["Right: the FLOPs of all trials that tune the HP at this shape."] if has_costs else []
    return Block(
        title=f"Base for {hp} along {axis}: {advice}",
        caption=" ".join(caption),
        frame=rows,
        drawn=drawn,
        charts=charts if has_costs else charts[:1],
        judged=analysis.judged,
        height=3.2,
    )


def _draw_losses(axes: Axes, rows: pd.DataFrame, looks: Mapping[str, Look], unit: str) -> None:
    _scale_axis(axes, rows)
    ends = ["loss_given_up_nats", "loss_given_up_low", "loss_given_up_high", "limit_nats"]
    broken = broken_axis([end for name in ends for end in rows[name].dropna()])
    draw_broken_axis(axes, broken, unit, strip=bool(rows["diverges"].any()))
    for name, arm in rows.groupby("parameterization", sort=False):
        color, marker, *_ = looks[str(name)]
        known = arm[arm["loss_given_up_nats"].notna()]
        heights = [broken.at(lost) for lost in known["loss_given_up_nats"]]
        axes.plot(known["x"], heights, color=color, linewidth=1.4, zorder=2)
        for row, height in zip(each(known), heights, strict=True):
            if not pd.isna(row.loss_given_up_low) and not pd.isna(row.loss_given_up_high):
                bar = [broken.at(row.loss_given_up_low), broken.at(row.loss_given_up_high)]
                axes.plot([row.x, row.x], bar, color=color, linewidth=1.6, marker="_", markersize=7, zorder=3)
            _draw_mark(axes, height, row, color, marker)
        for row in each(arm[arm["diverges"].astype(bool)]):
            axes.plot(row.x, broken.strip, marker="x", color=color, markersize=7, markeredgewidth=1.8)
        limits = arm[arm["limit_nats"].notna()]
        axes.plot(
            limits["at"], [broken.at(limit) for limit in limits["limit_nats"]], color=INK, alpha=FAINT, linestyle=":"
        )


def _draw_costs(axes: Axes, rows: pd.DataFrame, looks: Mapping[str, Look]) -> None:
    _scale_axis(axes, rows)
    axes.set_ylabel("FLOPs of tuning there (log scale)")
    for name, arm in rows.groupby("parameterization", sort=False):
        color, marker, *_ = looks[str(name)]
        known = arm[arm["tuning_flops"].notna()]
        style.log_losses(axes)
        axes.plot(known["x"], known["tuning_flops"], color=color, linewidth=1.4)
        for row in each(known):
            _draw_mark(axes, row.tuning_flops, row, color, marker)


def _scale_axis(axes: Axes, rows: pd.DataFrame) -> None:
    """Make x the scale that was tuned at."""
    scale = rows["scale_name"].iloc[0]
    style.log2_scale_axis(axes, rows["scale"].to_list(), scale)
    axes.set_xlabel(f"tuned at {scale} (log scale)")


def _draw_mark(axes: Axes, y: float, row: Any, color: str, marker: str) -> None:
    """Draw a base: filled if the HP transfers from there, and small at the largest shape, beyond which nothing lies."""
    size, inside = (7, color if row.verdict == "transfers" else "none") if not pd.isna(row.verdict) else (3, color)
    axes.plot(row.x, y, color=color, marker=marker, markersize=size, markerfacecolor=inside, linestyle="none", zorder=4)
    if row.recommended:
        ring = {"marker": "o", "markersize": RING, "markerfacecolor": "none", "markeredgecolor": INK}
        axes.plot(row.x, y, linestyle="none", zorder=5, **ring)  # type: ignore[arg-type]


def _marks(rows: pd.DataFrame) -> list[tuple[Line2D, str]]:
    """Return the marks that the figure has beside those of arms: the entry of the legend, and what the caption says."""
    verdicts = set(rows["verdict"])
    given: list[tuple[Any, dict[str, Any], str, str]] = [
        (
            "transfers" in verdicts,
            {"marker": "o"},
            "transfers from here",
            "a filled mark transfers to all larger shapes",
        ),
        (
            verdicts & {"drifts", "undecided"},
            {"marker": "o", "markerfacecolor": "none"},
            "is not seen to transfer from here",
            "an open one is not seen to",
        ),
        (
            rows["recommended"].any(),
            {"marker": "o", "markerfacecolor": "none", "markersize": RING},
            "smallest base recommended",
            "a ring is the smallest base that is recommended",
        ),
        (
            rows["limit_nats"].notna().any(),
            {"linestyle": ":", "alpha": FAINT},
            "limit of the verdict",
            "the dotted line is the limit of the verdict",
        ),
        (rows["diverges"].any(), {"marker": "x"}, "diverges there", "a cross diverges there"),
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
