"""Loss collapse: the curves of all shapes over one another, and beside them how far apart they are against the noise.

Once as losses over steps, with the step marked at which they part; once normalized over shares of training
(arXiv 2507.02119).
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

from hpxfer.analysis.collapse import Collapse
from hpxfer.analysis.text import scale_text
from hpxfer.analysis.thresholds import COLLAPSE_SHARE
from hpxfer.figures import style
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.words import along, listed, why

NOTHING = "no loss curves"
LEAST = 1e-4  # of a spread on its log axis, against its largest
TITLE_CHARACTERS = 46  # in a line of a panel
BEYOND, APART = "beyond noise", f"{COLLAPSE_SHARE:.0%} apart"


@dataclass(frozen=True, kw_only=True)
class CollapseLine:
    """One shape."""

    name: str
    scale: float
    x: tuple[float, ...]
    y: tuple[float, ...]
    diverged_step: int | None


@dataclass(frozen=True, kw_only=True)
class CollapseRow:
    """One parameterization: its curves, and their spread against what seeds make of it."""

    parameterization: str
    title: str
    lines: tuple[CollapseLine, ...]  # by scale
    x: tuple[float, ...]
    spread: tuple[float, ...]
    noise: tuple[float, ...]  # empty with one seed
    parts_at: float | None  # step from which shapes differ by more than seeds do
    parts_by_share_at: float | None  # by more than COLLAPSE_SHARE of the loss


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
        """Return the points drawn, a row for each shape and place; spread and noise are those of the place."""
        out = []
        for row in self.rows:
            spread = dict(zip(row.x, row.spread, strict=True))
            noise = dict(zip(row.x, row.noise, strict=False))
            for line in row.lines:
                for x, y in zip(line.x, line.y, strict=True):
                    out.append((self.axis, row.parameterization, line.scale, x, y, spread.get(x), noise.get(x)))
        columns = ["axis", "parameterization", self.scale_name, self.x_label, self.y_label, self.spread_label]
        return pd.DataFrame(out, columns=[*columns, "from seeds alone"])


def collapse_info(found: Sequence[Collapse], axis: str) -> CollapseInfo | str:
    """Return what the figure of losses over steps along one axis shows, or why there is none."""
    of_axis = along(found, axis)
    kept = [one for one in of_axis if one.why_not is None and one.curves]
    if not kept:
        return why((one.why_not for one in of_axis), NOTHING)
    first = kept[0]
    return CollapseInfo(
        title=f"Training losses along {axis} part beyond the seeds' noise: {listed([_parts(one) for one in kept])}",
        caption="Training loss at the HP transferred from the base, mean over seeds and windows of steps. Right: the "
        "standard deviation over shapes against what seeds alone make of it. Lines mark the step from which shapes "
        f"differ by more than seeds do, and by more than {COLLAPSE_SHARE:.0%} of the loss. With two seeds the noise is "
        "poorly known, and a difference has to be large to be told from it.",
        axis=axis,
        scale_name=first.scale_name,
        x_label="step",
        y_label="training loss (nats)",
        spread_label="spread over shapes (nats)",
        rows=tuple(_row(one) for one in kept),
    )


def normalized_info(found: Sequence[Collapse], axis: str) -> CollapseInfo | str:
    """Return what the figure of normalized losses along one axis shows, or why there is none."""
    of_axis = along(found, axis)
    kept = [one for one in of_axis if one.why_not is None and one.shares and one.deviation]
    if not kept:
        return why((one.why_not for one in of_axis), NOTHING)
    said = [
        f"{one.parameterization} "
        + ("unknown (one seed)" if one.below_noise is None else f"for {one.below_noise:.0%} of training")
        for one in kept
    ]
    floors = dict.fromkeys(f"{one.floor_nats or 0:.3g} nats ({one.floor_from or 'none'})" for one in kept)
    return CollapseInfo(
        title=f"Normalized losses along {axis} collapse below the seeds' noise: {listed(said)}",
        caption="(loss - floor) / (final loss - floor) over the share of training, as in arXiv 2507.02119. Floor taken "
        f"off: {', '.join(floors)}.",
        axis=axis,
        scale_name=kept[0].scale_name,
        x_label="share of training",
        y_label="normalized loss (1 = final)",
        spread_label="relative deviation",
        rows=tuple(_normalized_row(one) for one in kept),
    )


def _parts(one: Collapse) -> str:
    if one.why_no_noise is not None or not one.noise_nats:
        return f"{one.parameterization} unknown (one seed)"
    return f"{one.parameterization} " + ("at no step" if one.parts_at is None else f"from step {one.parts_at:.0f}")


def _row(one: Collapse) -> CollapseRow:
    at = "" if one.value is None else f" at {one.hp} {one.value:.4g}"
    return CollapseRow(
        parameterization=one.parameterization,
        title=one.parameterization + at,
        lines=tuple(
            CollapseLine(
                name=scale_text(curve.scale) + (" (base)" if curve.is_base else ""),
                scale=curve.scale,
                x=one.steps[: len(curve.losses)],
                y=curve.losses[: len(one.steps)],
                diverged_step=curve.diverged_step,
            )
            for curve in one.curves
        ),
        x=one.steps,
        spread=one.spread_nats,
        noise=one.noise_nats,
        parts_at=one.parts_at,
        parts_by_share_at=one.parts_by_share_at,
    )


def _normalized_row(one: Collapse) -> CollapseRow:
    return CollapseRow(
        parameterization=one.parameterization,
        title=one.parameterization,
        lines=tuple(
            CollapseLine(
                name=scale_text(curve.scale) + (" (base)" if curve.is_base else ""),
                scale=curve.scale,
                x=one.shares,
                y=curve.normalized,
                diverged_step=None,
            )
            for curve in one.curves
            if curve.normalized
        ),
        x=one.shares,
        spread=one.deviation,
        noise=one.noise_floor,
        parts_at=None,
        parts_by_share_at=None,
    )


def draw_collapse(info: CollapseInfo) -> Figure:
    """Return the figure: a parameterization a row, curves left, their spread right."""
    with style.look():
        figure, grid = style.panels(info.title, 2 * len(info.rows), columns=2, height=2.7, foot=0.6)
        color_of = style.scale_colors(line.scale for row in info.rows for line in row.lines)
        for i, row in enumerate(info.rows):
            curves, spread = grid[2 * i], grid[2 * i + 1]
            _draw_curves(curves, info, row, color_of)
            _draw_spread(spread, info, row)
        key: dict[str, Artist] = {}
        for axes in grid[1::2]:
            handles, labels = axes.get_legend_handles_labels()
            for label, handle in zip(labels, handles, strict=True):
                key.setdefault(label, handle)
        figure.legend(key.values(), key.keys(), loc="outside lower center", ncols=len(key))
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
    axes.plot(row.x, _positive(row.spread), color=color, linewidth=1.7, label="shapes")
    if row.noise:
        axes.plot(
            row.x, _positive(row.noise), linestyle="--", linewidth=1.4, label="seeds alone", color=INK, alpha=FAINT
        )
    if heights:
        style.log_losses(axes)
        axes.set_ylim(max(min(heights), LEAST * max(heights)) / 1.3, max(heights) * 1.3)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    _mark_parting(axes, row)
    axes.set_title(style.wrapped(", ".join(["how far apart", *_parting(row)]), TITLE_CHARACTERS))
    axes.set_xlabel(info.x_label)
    axes.set_ylabel(info.spread_label)


def _positive(heights: Sequence[float]) -> list[float]:
    """Return heights fit for a log axis: normalized curves agree at the end by definition."""
    return [y if y > 0 else math.nan for y in heights]


def _mark_parting(axes: Axes, row: CollapseRow) -> None:
    """Mark the steps from which shapes part: beyond the noise, and by more than a share of the loss."""
    for step, line, name in ((row.parts_at, ":", BEYOND), (row.parts_by_share_at, "-.", APART)):
        if step is not None:
            axes.axvline(step, color=INK, alpha=FAINT, linestyle=line, linewidth=1.4, label=name)


def _parting(row: CollapseRow) -> list[str]:
    """Return in words from which steps shapes part."""
    marks = ((row.parts_at, BEYOND), (row.parts_by_share_at, APART))
    return [f"{name} from step {step:.0f}" for step, name in marks if step is not None]
