"""Steps to the same loss: loss over steps of every arm, and arrows to where it has the loss that its reference ends at.

The form is that of papers, e.g. 2605.23893, Fig. 8: a dotted line at the loss of the reference, from the end of the
reference back to the arm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator

from hpxfer.analysis.statistics.same_loss import LossCurve, Reached
from hpxfer.analysis.statistics.steps_to_loss import StepsToLoss
from hpxfer.figures import style
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import INK, SMALL
from hpxfer.figures.text import along, listed, why_none
from hpxfer.verdict import CONTROL, NATS, JudgedLoss

NOTHING = "no two arms to compare"
SHOWN = 10  # x starts at this part of the longest run: before it all arms look alike
BEFORE = 3  # or at this part of the first arrow's end
ARROWS = 3  # per reference: those of the fastest arms
LABEL_POINTS = 12  # from one arrow's text to the next one's, as they lie at one loss
ROOM = 0.22  # of the range of losses, below them
STYLES: dict[str, Literal["-", "--"]] = {"arm": "-", "reference": "-", "elsewhere": "--"}
Unit = Literal["steps", "tokens"]


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """From where a reference ends to where an arm has its loss."""

    arm: str
    reference: str
    loss_nats: float
    start: float  # at the end of the reference, in steps or tokens
    stop: float
    factor: float


@dataclass(frozen=True, kw_only=True)
class SameLossPanel:
    """One parameterization."""

    parameterization: str
    curves: tuple[LossCurve, ...]  # references, arms by scale, curves from elsewhere
    arrows: tuple[Arrow, ...]


@dataclass(frozen=True, kw_only=True)
class SameLossInfo:
    """The arms along one axis."""

    title: str
    caption: str
    axis: str
    other_data: frozenset[str]  # the arms that train on other data than their references
    unit: Unit
    panels: tuple[SameLossPanel, ...]
    judged: JudgedLoss = NATS

    def table(self) -> pd.DataFrame:
        """Return one row per point."""
        rows = [
            (self.axis, panel.parameterization, curve.name, curve.kind, *point)
            for panel in self.panels
            for curve in panel.curves
            for point in zip(positions(curve, self.unit), curve.mean, curve.low, curve.high, strict=True)
        ]
        columns = ["axis", "parameterization", "curve", "kind", self.unit, "mean_nats", "min_nats", "max_nats"]
        return pd.DataFrame(rows, columns=columns).rename(columns=self.judged.column)


def positions(curve: LossCurve, unit: Unit) -> tuple[float, ...]:
    """Return where the points of a curve lie; nothing if that is not known in this unit."""
    return curve.steps if unit == "steps" else curve.tokens


def steps_to_loss_info(
    found: Sequence[StepsToLoss], axis: str, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> SameLossInfo | str:
    """Return what the figure of one axis shows, or why there is none."""
    of_axis = along(found, axis, control)
    kept = [answer for answer in of_axis if answer.why_not is None and answer.curves]
    if not kept:
        return why_none((answer.why_not for answer in of_axis), NOTHING)
    unit = _unit([curve for answer in kept for curve in answer.curves])
    lost = dict.fromkeys(curve.name for answer in kept for curve in answer.curves if not positions(curve, unit))
    caption = (
        "Training losses, as means over the last tenth of the steps so far; the band is the range of seeds. Arms have "
        "the HP transferred from the base, a reference has its own best one. A dotted line is at the loss that a "
        "reference ends at, and leads from there to the arm that has it earlier or later; the number is by what "
        f"factor the arm takes fewer {unit}, or more where it says so (median over paired seeds). Those of the "
        f"{ARROWS} fastest arms are drawn; the table says which arms do not reach the loss."
    )
    uncompared = {row.arm: row.other_data for answer in kept for row in answer.rows if row.other_data is not None}
    if any(curve.kind == "elsewhere" for answer in kept for curve in answer.curves):
        caption += " Dashed curves were trained elsewhere."
    if uncompared:
        arms = ", ".join(f"{arm} ({data})" for arm, data in uncompared.items())
        caption += f" Not compared, as training losses on different data are not comparable: {arms}."
    if lost:
        caption += f" Not drawn, as arms differ in their batches and these curves count no tokens: {', '.join(lost)}."
    return SameLossInfo(
        title=f"{unit.capitalize()} to the same loss, {axis}: {listed([_fastest(answer, unit) for answer in kept])}",
        caption=caption,
        axis=axis,
        other_data=frozenset(uncompared),
        unit=unit,
        panels=tuple(_panel(answer, unit) for answer in kept),
        judged=judged,
    )


def _unit(curves: Sequence[LossCurve]) -> Unit:
    """Return what x counts: steps, unless batches differ or a curve counts tokens only."""
    of_arms = {round(curve.tokens[0] / curve.steps[0]) for curve in curves if curve.steps and curve.kind != "elsewhere"}
    return "tokens" if len(of_arms) > 1 or any(not curve.steps for curve in curves) else "steps"


def _fastest(answer: StepsToLoss, unit: Unit) -> str:
    """Return the largest factor of a panel: against arms of the sweep or, without any, curves from elsewhere."""
    own = [row for row in answer.rows if row.reference not in _elsewhere(answer)] or answer.rows
    known = [(factor, row) for row in own if (factor := _factor(row, unit)) is not None]
    if own and all(row.other_data is not None for row in own):
        return f"{answer.parameterization} not compared, as data differ"
    if not known:
        return f"{answer.parameterization} never has it"
    factor, best = max(known, key=lambda found: found[0])
    spelled = f"up to {factor:.3g}x fewer" if factor >= 1 else f"at best {1 / factor:.3g}x more"
    return f"{answer.parameterization} {spelled} than {best.reference}"


def _elsewhere(answer: StepsToLoss) -> set[str]:
    return {curve.name for curve in answer.curves if curve.kind == "elsewhere"}


def _factor(row: Reached, unit: Unit) -> float | None:
    return row.speed_up if unit == "steps" and row.reference_steps is not None else row.fewer_tokens


def _panel(answer: StepsToLoss, unit: Unit) -> SameLossPanel:
    arrows: list[Arrow] = []
    for reference in dict.fromkeys(row.reference for row in answer.rows):
        known = [found for row in answer.rows if row.reference == reference and (found := _arrow(row, unit))]
        arrows += sorted(known, key=lambda arrow: -arrow.factor)[:ARROWS]
    return SameLossPanel(
        parameterization=answer.parameterization,
        curves=tuple(curve for curve in answer.curves if positions(curve, unit)),
        arrows=tuple(arrows),
    )


def _arrow(row: Reached, unit: Unit) -> Arrow | None:
    stop, start = (row.steps, row.reference_steps) if unit == "steps" else (row.tokens, row.reference_tokens)
    factor = _factor(row, unit)
    if stop is None or start is None or factor is None or row.loss_nats is None:
        return None
    return Arrow(arm=row.arm, reference=row.reference, loss_nats=row.loss_nats, start=start, stop=stop, factor=factor)


def draw_steps_to_loss(info: SameLossInfo) -> Figure:
    """Return the figure: one panel per parameterization, all with the same limits and colors."""
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), height=3.4, foot=0.9)
        lines = {curve.name: curve for panel in info.panels for curve in panel.curves}
        color_of = _colors(lines.values())
        start, end, low, high = _limits(info)
        for axes, panel in zip(grid, info.panels, strict=True):
            _draw_panel(axes, info, panel, color_of)
            axes.set_xlim(start, end)
            axes.set_ylim(low, high)
        handles = [
            Line2D([], [], color=color_of[name], linestyle=STYLES[curve.kind], label=_label(info, name))
            for name, curve in lines.items()
        ]
        if any(panel.arrows for panel in info.panels):
            handles.append(Line2D([], [], color=INK, linestyle=":", marker="o", markersize=4, label="the same loss"))
        style.legend_below(figure, handles, columns=3)
    return figure


def _label(info: SameLossInfo, name: str) -> str:
    return f"{name} (other data)" if name in info.other_data else name


def _colors(curves: Iterable[LossCurve]) -> dict[str, str]:
    """Return the color of each curve: ink for references, by scale for arms, and others for curves from elsewhere."""
    by_kind: dict[str, list[str]] = {}
    for curve in curves:
        by_kind.setdefault(curve.kind, []).append(curve.name)
    arms, elsewhere = by_kind.get("arm", []), by_kind.get("elsewhere", [])
    marks = [color for color, _ in style.MARKS[2:]]
    return {
        **dict.fromkeys(by_kind.get("reference", []), INK),
        **dict(zip(arms, style.ramp(len(arms)), strict=True)),
        **{name: marks[i % len(marks)] for i, name in enumerate(elsewhere)},
    }


def _limits(info: SameLossInfo) -> tuple[float, float, float, float]:
    """Return the limits of x and y. Below the curves there is room for the factors."""
    end = max(positions(curve, info.unit)[-1] for panel in info.panels for curve in panel.curves)
    stops = [arrow.stop for panel in info.panels for arrow in panel.arrows]
    start = min([end / SHOWN, *(stop / BEFORE for stop in stops)])
    heights = [
        height
        for panel in info.panels
        for curve in panel.curves
        for x, *ends in zip(positions(curve, info.unit), curve.low, curve.high, strict=True)
        if x >= start
        for height in ends
    ]
    span = max(heights) - min(heights) or 0.1
    return start, end * 1.1, min(heights) - ROOM * span, max(heights) + 0.05 * span


def _draw_panel(axes: Axes, info: SameLossInfo, panel: SameLossPanel, color_of: Mapping[str, str]) -> None:
    axes.set_title(panel.parameterization)
    for curve in panel.curves:
        color, x = color_of[curve.name], positions(curve, info.unit)
        axes.fill_between(x, curve.low, curve.high, color=color, alpha=0.16, linewidth=0)
        axes.plot(x, curve.mean, color=color, linewidth=1.5, linestyle=STYLES[curve.kind])
    place: dict[str, int] = {}
    for arrow in panel.arrows:
        place[arrow.reference] = place.get(arrow.reference, 0) + 1
        _draw_arrow(axes, arrow, color_of[arrow.arm], place[arrow.reference])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(
        EngFormatter(sep="") if info.unit == "tokens" else FuncFormatter(lambda x, _: f"{x:g}")
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"{info.unit} (log scale)")
    axes.set_ylabel(f"training loss ({info.judged.unit})")


def _draw_arrow(axes: Axes, arrow: Arrow, color: str, place: int) -> None:
    """Draw the dotted line from the end of a reference to an arm, and its factor, the `place`-th below the line."""
    axes.plot([arrow.start, arrow.stop], [arrow.loss_nats] * 2, linestyle=":", linewidth=1.3, color=color)
    axes.plot(arrow.stop, arrow.loss_nats, marker="o", markersize=4, color=color)
    axes.annotate(
        "",
        (arrow.stop, arrow.loss_nats),
        (arrow.stop * (arrow.start / arrow.stop) ** 0.15, arrow.loss_nats),
        arrowprops={"arrowstyle": "->", "color": color, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0},
    )
    axes.annotate(
        f"{arrow.factor:.3g}x" if arrow.factor >= 1 else f"{1 / arrow.factor:.3g}x more",
        (arrow.stop, arrow.loss_nats),
        (-4, -LABEL_POINTS * place),
        textcoords="offset points",
        color=color,
        fontsize=SMALL,
        fontweight="bold",
        ha="right",
    )


STEPS_TO_LOSS = HPFigure(
    name="steps-to-loss",
    question="After how many steps does each arm have the loss that its reference ends at?",
    infos=lambda given: {
        axis: steps_to_loss_info(
            given.analysis.found("steps_to_loss"), axis, given.report.judged, given.analysis.control
        )
        for axis in given.axes
    },
    draw=draw_steps_to_loss,
    judged_only=True,
)
