"""Loss collapse: the curves of all shapes over one another, and beside them how far apart they are against the noise.

One figure shows losses over steps, with marks where the curves part. The other shows normalized losses over fractions
of training (arXiv 2507.02119).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hpxfer.analysis.statistics.collapse import Collapse, CollapseCurve
from hpxfer.figures import style
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import along, listed, shape_name, why_none
from hpxfer.verdict import COLLAPSE_SHARE, CONTROL, NATS, JudgedLoss, hp_text, scale_text

NOTHING = "no loss curves"
LEAST = 1e-4  # smallest spread that is shown on the log axis, as a fraction of the largest
TITLE_CHARACTERS = 46  # in a line of a panel's title
BEYOND, APART = "more than seeds", f"more than {COLLAPSE_SHARE:.0%} of the loss"  # how far apart curves are
BETWEEN, SEEDS = "between shapes", "between seeds alone"


@dataclass(frozen=True, kw_only=True)
class CollapseLine:
    """One shape."""

    name: str
    scale: float
    x: tuple[float, ...]
    y: tuple[float, ...]
    diverged_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class CollapseRow:
    """One parameterization: its curves, their spread over shapes, and the spread that seeds alone would cause."""

    parameterization: str
    title: str  # of the curves: what is compared
    spread_title: str
    lines: tuple[CollapseLine, ...]  # by scale
    x: tuple[float, ...]
    spread: tuple[float, ...]
    noise: tuple[float, ...]  # empty with one seed
    parts_at: float | None = None  # step from which shapes differ by more than seeds do
    parts_by_share_at: float | None = None  # by more than COLLAPSE_SHARE of the loss

    @property
    def parting(self) -> list[tuple[str, float]]:
        """How far apart the curves are -> from which step, for each mark of the figure."""
        marks = ((BEYOND, self.parts_at), (APART, self.parts_by_share_at))
        return [(name, step) for name, step in marks if step is not None]


@dataclass(frozen=True, kw_only=True)
class CollapseInfo:
    """The curves along one axis."""

    title: str
    caption: str
    axis: str
    scale_name: str
    x_label: str
    y_label: str
    spread_label: str
    rows: tuple[CollapseRow, ...]

    def table(self) -> pd.DataFrame:
        """Return one row per shape and x; spread and noise are those at this x."""
        out = []
        for row in self.rows:
            spread = dict(zip(row.x, row.spread, strict=True))
            noise = dict(zip(row.x, row.noise, strict=False))
            for line in row.lines:
                for x, y in zip(line.x, line.y, strict=True):
                    out.append((self.axis, row.parameterization, line.scale, x, y, spread.get(x), noise.get(x)))
        columns = ["axis", "parameterization", self.scale_name, self.x_label, self.y_label, self.spread_label]
        return pd.DataFrame(out, columns=[*columns, "from seeds alone"])


def collapse_info(
    found: Sequence[Collapse], axis: str, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> CollapseInfo | str:
    """Return what the figure of losses over steps along one axis shows, or why there is none."""
    of_axis = along(found, axis, control)
    kept = [curves for curves in of_axis if curves.why_not is None and curves.curves]
    if not kept:
        return why_none((curves.why_not for curves in of_axis), NOTHING)
    parts = listed([f"{curves.parameterization} {_parts(curves)}" for curves in kept])
    return CollapseInfo(
        title=f"Training losses of {_compared(kept[0])} at one {kept[0].hp} part beyond the seeds' noise: {parts}",
        caption="Compared are the training losses of all shapes at the same step and at the same HP, the one "
        "transferred from the base; each curve is a mean over seeds and windows of steps. Right: the standard "
        "deviation between these curves, and the one that seeds alone would cause. Lines mark the step from which "
        f"shapes differ by more than seeds do, and by more than {COLLAPSE_SHARE:.0%} of the loss. With two seeds the "
        "noise is poorly known, so that only a large difference stands out from it." + _other_data(kept),
        axis=axis,
        scale_name=kept[0].scale_name,
        x_label="step",
        y_label=f"training loss ({judged.unit})",
        spread_label=f"standard deviation ({judged.unit})",
        rows=tuple(_row(curves) for curves in kept),
    )


def normalized_info(
    found: Sequence[Collapse], axis: str, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> CollapseInfo | str:
    """Return what the figure of normalized losses along one axis shows, or why there is none."""
    of_axis = along(found, axis, control)
    kept = [curves for curves in of_axis if curves.why_not is None and curves.shares and curves.deviation]
    if not kept:
        return why_none((curves.why_not for curves in of_axis), NOTHING)
    phrases = [
        f"{curves.parameterization} "
        + ("unknown (one seed)" if curves.below_noise is None else f"for {curves.below_noise:.0%} of training")
        for curves in kept
    ]
    floors = dict.fromkeys(
        f"{curves.floor_nats or 0:.3g} {judged.unit} ({curves.floor_from or 'none'})" for curves in kept
    )
    return CollapseInfo(
        title=f"Normalized losses of {_compared(kept[0])} differ by less than seeds do: {listed(phrases)}",
        caption="Compared are the training losses of all shapes at the HP transferred from the base, at the same share "
        "of training, as (loss - floor) / (final loss - floor) (arXiv 2507.02119). Right: the standard deviation "
        "between these curves over their mean, and the one that seeds alone would cause. The floor is "
        f"{', '.join(floors)}." + _other_data(kept),
        axis=axis,
        scale_name=kept[0].scale_name,
        x_label="share of training",
        y_label="normalized loss (1 = final)",
        spread_label="relative deviation",
        rows=tuple(_normalized_row(curves) for curves in kept),
    )


def _other_data(every: Sequence[Collapse]) -> str:
    """Return which shapes are left out for their data, as a sentence after a caption; empty if there are none."""
    names = dict.fromkeys(name for curves in every for name in curves.other_data)
    if not names:
        return ""
    return f" Left out, as training losses on other data are not comparable: {', '.join(names)}."


def _compared(curves: Collapse) -> str:
    """Return which shapes are compared, e.g. `width 32 to 128`."""
    scales = [curve.scale for curve in curves.curves]
    return f"{curves.scale_name} {scale_text(min(scales))} to {scale_text(max(scales))}"


def _parts(curves: Collapse) -> str:
    if curves.why_no_noise is not None or not curves.noise_nats:
        return "unknown (one seed)"
    return "at no step" if curves.parts_at is None else f"from step {curves.parts_at:.0f}"


def _row(curves: Collapse) -> CollapseRow:
    at = "" if curves.value is None else f" at {curves.hp} {hp_text(curves.value)}"
    seeds = f", mean of {curves.num_seeds} seeds" if curves.num_seeds > 1 else ""
    return CollapseRow(
        parameterization=curves.parameterization,
        title=f"{curves.parameterization}: each {curves.scale_name}{at}{seeds}",
        spread_title=_spread_title(curves),
        lines=tuple(
            _line(curve, curves.steps[: len(curve.losses)], curve.losses[: len(curves.steps)], curve.diverged_step)
            for curve in curves.curves
        ),
        x=curves.steps,
        spread=curves.spread_nats,
        noise=curves.noise_nats,
        parts_at=curves.parts_at,
        parts_by_share_at=curves.parts_by_share_at,
    )


def _spread_title(curves: Collapse) -> str:
    num = len([curve for curve in curves.curves if curve.diverged_step is None])
    return f"how far apart the {num} curves are"


def _normalized_row(curves: Collapse) -> CollapseRow:
    return CollapseRow(
        parameterization=curves.parameterization,
        title=f"{curves.parameterization}: each {curves.scale_name}, normalized",
        spread_title=_spread_title(curves),
        lines=tuple(_line(curve, curves.shares, curve.normalized) for curve in curves.curves if curve.normalized),
        x=curves.shares,
        spread=curves.deviation,
        noise=curves.noise_floor,
    )


def _line(curve: CollapseCurve, x: Sequence[float], y: Sequence[float], diverged: int | None = None) -> CollapseLine:
    name = shape_name(curve.scale, curve.is_base)
    return CollapseLine(name=name, scale=curve.scale, x=tuple(x), y=tuple(y), diverged_step=diverged)


def draw_collapse(info: CollapseInfo) -> Figure:
    """Return the figure: one row per parameterization, its curves on the left, their spread on the right."""
    with style.look():
        figure, grid = style.panels(info.title, 2 * len(info.rows), columns=2, height=2.7, foot=0.6)
        color_of = style.scale_colors(line.scale for row in info.rows for line in row.lines)
        legend: dict[str, Artist] = {}
        for i, row in enumerate(info.rows):
            _draw_curves(grid[2 * i], info, row, color_of)
            _draw_spread(grid[2 * i + 1], info, row)
            handles, labels = grid[2 * i + 1].get_legend_handles_labels()
            legend = dict(zip(labels, handles, strict=True)) | legend
        ordered = [label for label in (BETWEEN, SEEDS, _apart(BEYOND), _apart(APART)) if label in legend]
        figure.legend([legend[label] for label in ordered], ordered, loc="outside lower center", ncols=len(ordered))
    return figure


def _draw_curves(axes: Axes, info: CollapseInfo, row: CollapseRow, color_of: Mapping[float, str]) -> None:
    axes.set_title(row.title)
    handles: list[Line2D] = []
    for line in row.lines:
        color = color_of[line.scale]
        x, y = style.thinned(line.x, line.y)
        handles += axes.plot(x, y, color=color, linewidth=1.5, label=line.name)
        if line.diverged_step is not None and x:
            axes.plot(x[-1], y[-1], marker="x", color=color, markersize=8, markeredgewidth=2, linestyle="none")
    _mark_parting(axes, row)
    axes.set_xlabel(info.x_label)
    axes.set_ylabel(info.y_label)
    axes.legend(handles=handles, title=info.scale_name, loc="upper right", alignment="left")


def _draw_spread(axes: Axes, info: CollapseInfo, row: CollapseRow) -> None:
    color, _ = style.MARKS[0]
    heights = [y for y in (*row.spread, *row.noise) if y > 0]
    axes.plot(row.x, _positive(row.spread), color=color, linewidth=1.7, label=BETWEEN)
    if row.noise:
        noise = _positive(row.noise)
        axes.plot(row.x, noise, linestyle="--", linewidth=1.4, label=SEEDS, color=INK, alpha=FAINT)
    if heights:
        style.log_losses(axes)
        axes.set_ylim(max(min(heights), LEAST * max(heights)) / 1.3, max(heights) * 1.3)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    _mark_parting(axes, row)
    marks = ", ".join(f"{name} from step {step:.0f}" for name, step in row.parting)
    axes.set_title(style.wrapped(f"{row.spread_title}: {marks}" if marks else row.spread_title, TITLE_CHARACTERS))
    axes.set_xlabel(info.x_label)
    axes.set_ylabel(info.spread_label)


def _positive(heights: Sequence[float]) -> list[float]:
    """Return the heights that a log axis can show. Normalized curves agree at the end by definition: 0 becomes nan."""
    return [y if y > 0 else math.nan for y in heights]


def _apart(name: str) -> str:
    return f"apart by {name}"


def _mark_parting(axes: Axes, row: CollapseRow) -> None:
    lines = {BEYOND: ":", APART: "-."}
    for name, step in row.parting:
        axes.axvline(step, color=INK, alpha=FAINT, linestyle=lines[name], linewidth=1.4, label=_apart(name))


COLLAPSE = HPFigure(
    name="collapse",
    question="Do the losses of all shapes follow one curve early in training?",
    infos=lambda given: {
        axis: collapse_info(given.analysis.found("collapse"), axis, given.report.judged, given.analysis.control)
        for axis in given.axes
    },
    draw=draw_collapse,
    judged_only=True,
)
NORMALIZED_COLLAPSE = HPFigure(
    name="normalized-collapse",
    question="Do the normalized losses of all shapes follow one curve?",
    infos=lambda given: {
        axis: normalized_info(given.analysis.found("collapse"), axis, given.report.judged, given.analysis.control)
        for axis in given.axes
    },
    draw=draw_collapse,
    judged_only=True,
)
