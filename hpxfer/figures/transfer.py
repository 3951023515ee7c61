"""The transfer figure: loss against log2 HP, one panel per parameterization, one row of panels per axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox, TransformedBbox

from hpxfer.analysis import Finding, TransferReport
from hpxfer.figures import style
from hpxfer.figures.chart import key
from hpxfer.figures.kinds import HPFigure, HPInput, Info
from hpxfer.figures.style import FAINT, INK, SMALL
from hpxfer.figures.tau import NO_TAUS, Tau, Taus, draw_tau, taus_of
from hpxfer.figures.text import notes_on, octaves_of, shape_name, staying
from hpxfer.host import NATS, JudgedLoss, write_folder
from hpxfer.verdict import Kind, ShapeLosses, Verdict, compared, loss_grids, verdict_line, with_shared_bases

COLUMNS = 2  # panels across the page
MARKERS: dict[Kind, str] = {
    "interior": "*",
    "at_divergence": "*",
    "lower_edge": "<",
    "upper_edge": ">",
}
TITLE_CHARACTERS = 42


def draw_transfer(info: TransferInfo) -> Figure:
    """Return the figure. It belongs to no window and to no global state."""
    rows = [row[start : start + COLUMNS] for row in info.rows for start in range(0, len(row), COLUMNS)]
    columns = max((len(row) for row in rows), default=1)
    with style.look():
        figure, grid = style.panels(info.title, len(rows or [()]) * columns, columns=columns, foot=0.75)
        _draw_rows(figure, grid, rows, info)
    return figure


def _draw_rows(figure: Figure, grid: Sequence[Axes], rows: Sequence[Sequence[Panel]], info: TransferInfo) -> None:
    """Draw the panels into the axes of a grid, which has as many columns as the longest row, and the legends."""
    columns = max((len(row) for row in rows), default=1)
    for number, row in enumerate(rows):
        line = grid[number * columns : (number + 1) * columns]
        for axes in line[len(row) :]:
            axes.remove()
        for axes, panel in zip(line, row, strict=False):
            _draw_panel(axes, panel, off_scale="^")
            axes.set_ylabel(f"{info.judged.words} ({info.judged.unit})")
            axes.set_xlabel(info.x_label)
            axes.tick_params(labelleft=axes is line[0])
            if axes is not line[0]:
                axes.set_ylabel("")
        _scale_legend(line[len(row) - 1], row)
    if handles := _mark_handles(info):
        style.legend_below(figure, handles, columns=3)


def save_transfer(info: TransferInfo, folder: Path, *, option: str = "--output") -> list[Path]:
    """Write `transfer.png` and `transfer.svg`, and return their paths. Equal infos give equal bytes.

    Each file appears whole or not at all. `option` is the option by which the user chooses the folder: the message of a
    folder that cannot be written names it.
    """
    figure = draw_transfer(info)
    writers = {
        folder / "transfer.png": partial(style.write_png, figure),
        folder / "transfer.svg": partial(style.write_svg, figure, "hpxfer transfer"),
    }
    return write_folder(writers, folder, "figure", option)


def _draw_panel(axes: Axes, panel: Panel, off_scale: str) -> None:
    axes.set_title(style.wrapped(panel.title, TITLE_CHARACTERS))
    axes.set_xlim(panel.x_low, panel.x_high)
    axes.set_ylim(panel.y_low, panel.y_high)
    ticks = MaxNLocator(6).tick_values(panel.y_low, panel.y_top)
    axes.set_yticks([tick for tick in ticks if panel.y_low <= tick <= panel.y_top])  # none in the strip of diverged HPs
    style.whole_octaves(axes)
    if panel.y_high > panel.y_top:
        axes.axhspan(panel.y_top, panel.y_high, color=INK, alpha=0.06, linewidth=0)
        middle = (panel.y_top + panel.y_high) / 2
        axes.text(panel.x_low + X_MARGIN / 4, middle, "diverged", fontsize=SMALL, va="center", zorder=5)
    if panel.transferred_log2 is not None:
        axes.axvline(panel.transferred_log2, color=INK, alpha=FAINT, linestyle=":", linewidth=1.3, zorder=4.5)
    if panel.tau is not None:
        draw_tau(axes, panel.tau)
    lane = (panel.y_high - panel.y_top) / max(len(panel.series), 1)
    inside = TransformedBbox(Bbox.from_extents(panel.x_low, panel.y_low, panel.x_high, panel.y_top), axes.transData)
    for i, (shape, color) in enumerate(zip(panel.series, style.ramp(len(panel.series)), strict=True)):
        drawn = _draw_basin(axes, shape, color)
        for artist in drawn:  # what runs off scale ends below the strip
            artist.set_clip_box(inside)
        for x, y in zip(shape.x, shape.y, strict=True):
            if y > panel.y_top:
                _draw_symbol(axes, x, panel.y_top, off_scale, color)
        for _, y in shape.off_axis:
            if y > panel.y_top:
                _draw_symbol(axes, panel.x_low, panel.y_top, off_scale, color)
            else:
                axes.axhline(y, color=color, linestyle="--", linewidth=1.3, zorder=2.5)
        for x in shape.censored:
            _draw_symbol(axes, x, panel.y_top + (i + 0.5) * lane, "x", color)
        if shape.lowest is not None:
            ring = {"markersize": 10, "markerfacecolor": "none", "markeredgecolor": color, "markeredgewidth": 1.4}
            axes.plot(*shape.lowest, marker="o", linestyle="none", zorder=5.8, **ring)  # type: ignore[arg-type]
        if shape.optimum is not None:
            _draw_mark(axes, shape.optimum, color)


def _draw_basin(axes: Axes, shape: Series, color: str) -> list[Artist]:
    """Draw the losses of one shape: the range of seeds, a dot per HP, and the fitted curve or else a line."""
    band = axes.fill_between(shape.x, shape.y_min, shape.y_max, color=color, alpha=0.18, linewidth=0)
    line = {"linewidth": 0.8, "alpha": 0.45} if shape.curve else {"linewidth": 1.8}
    drawn: list[Artist] = [band, *axes.plot(shape.x, shape.y, color=color, zorder=3, **line)]  # type: ignore[arg-type]
    drawn += axes.plot(shape.x, shape.y, color=color, marker="o", markersize=4, linestyle="none", zorder=3)
    if shape.curve:
        drawn += axes.plot(*zip(*shape.curve, strict=True), color=color, linewidth=1.8, zorder=3)
    return drawn


def _draw_symbol(axes: Axes, x: float, y: float, marker: str, color: str) -> None:
    axes.plot(x, y, marker=marker, markersize=5, color=color, linestyle="none", zorder=5, clip_on=False)


def _draw_mark(axes: Axes, mark: Mark, color: str) -> None:
    if mark.x_low is not None or mark.x_high is not None:
        ends = [
            edge if end is None else end for end, edge in zip((mark.x_low, mark.x_high), axes.get_xlim(), strict=True)
        ]
        axes.plot(ends, [mark.y, mark.y], color=INK, linewidth=1.3, zorder=5.5)
        caps = [end for end in (mark.x_low, mark.x_high) if end is not None]
        axes.plot(caps, [mark.y] * len(caps), color=INK, marker="|", markersize=7, linestyle="none", zorder=5.5)
    size = 13 if MARKERS[mark.kind] == "*" else 9
    axes.plot(
        mark.x,
        mark.y,
        marker=MARKERS[mark.kind],
        markersize=size,
        color=color,
        markeredgecolor=INK,
        markeredgewidth=0.8,
        linestyle="none",
        zorder=6,
    )


def _scale_legend(axes: Axes, row: Sequence[Panel]) -> None:
    """Add the legend of scales to the right of a row."""
    series = max((panel.series for panel in row), key=len)
    handles = [
        Line2D([], [], color=color, marker="o", markersize=4, label=shape.name)
        for shape, color in zip(series, style.ramp(len(series)), strict=True)
    ]
    axes.legend(handles=handles, title=row[0].scale_name, loc="upper left", bbox_to_anchor=(1.0, 1.0), alignment="left")


def _mark_handles(info: TransferInfo) -> list[Artist]:
    """Return the legend of the marks that appear in the figure."""
    shapes = [(panel, shape) for panel in info.panels for shape in panel.series]
    kinds = {shape.optimum.kind for _, shape in shapes if shape.optimum}
    out: list[Artist] = []
    if kinds & set(STARS):
        out.append(_key("*", "optimum (bar: 95% interval)", 12, edge=True))
    if kinds & {"lower_edge", "upper_edge"}:
        out.append(_key(">", "at the grid's edge: optimum beyond", 8, edge=True))
    if any(shape.lowest for _, shape in shapes):
        out.append(_key("o", "lowest measured mean", 9, edge=True))
    if any(shape.curve for _, shape in shapes):
        out.append(Line2D([], [], color=INK, linewidth=1.8, label="fitted curve"))
    if any(panel.transferred_log2 is not None for panel in info.panels):
        label = "best at the base, transferred"
        out.append(Line2D([], [], color=INK, alpha=FAINT, linestyle=":", linewidth=1.3, label=label))
    if any(shape.y_min != shape.y_max for _, shape in shapes):
        out.append(Patch(color=INK, alpha=0.2, linewidth=0, label="range of seeds"))
    beside = sorted({value for _, shape in shapes for value, _ in shape.off_axis})
    out += [key(f"HP {value:g}", linestyle="--", linewidth=1.3) for value in beside]
    if any(shape.censored for _, shape in shapes):
        out.append(_key("x", "diverged", 6))
    if any(y > panel.y_top for panel, shape in shapes for y in shape.every_y):
        out.append(_key("^", "off scale", 6))
    return out


def _key(marker: str, label: str, size: float, *, edge: bool = False) -> Line2D:
    """Return a legend entry for a mark, in ink, as colors stand for scales."""
    fill = {"markerfacecolor": "none"} if edge else {}
    return Line2D([], [], linestyle="none", color=INK, marker=marker, markersize=size, label=label, **fill)  # type: ignore[arg-type]


def _infos(given: HPInput) -> dict[str, Info | str]:
    taus = taus_of(given.results, given.line, given.report.hp)
    return {axis: axis_transfer_info(given.report, given.line, axis, taus) for axis in given.axes}


TRANSFER = HPFigure(
    name="transfer",
    question="Does the same HP stay best at each scale?",
    infos=_infos,
    draw=draw_transfer,
    under_verdict=True,
    of_lines=True,
)


# A row of panels reaches up to the highest of the best losses plus HEADROOM times the typical rise around a best loss.
# The rise is measured within this many octaves.
HEADROOM = 1.4
OCTAVES_SHOWN = 2.0
# A large regret may stretch the row to at most this many typical rises, or the basins would look flat.
MAX_STRETCH = 3.0
# Controls stand beside what a row is about: they may stretch its height by at most this factor.
CONTROL_STRETCH = 1.5
MIN_HEIGHT = 1e-3  # the height of a row without any rise
X_MARGIN = 0.4  # octaves
STARS: tuple[Kind, ...] = ("interior", "at_divergence")  # the kinds of optima that are drawn as a star
MARGIN = 0.06  # below the lowest point, as a fraction of the height
LANE = 0.05  # height per shape of the strip for HPs that diverged, as a fraction of the height


@dataclass(frozen=True, kw_only=True)
class Mark:
    """An optimum: the point, whether it is an estimate or a bound, and its 95% interval. None is an open end."""

    x: float  # log2 HP
    y: float  # loss
    kind: Kind
    x_low: float | None
    x_high: float | None


@dataclass(frozen=True, kw_only=True)
class Series:
    """The basin of one shape: `x` is log2 HP, `y_*` are losses over seeds. HPs that diverged are only in `censored`."""

    name: str
    scale: float
    x: tuple[float, ...]
    y: tuple[float, ...]  # the mean over seeds; where a seed diverged, the median
    y_min: tuple[float, ...]
    y_max: tuple[float, ...]  # over the seeds that did not diverge
    censored: tuple[float, ...]
    optimum: Mark | None
    curve: tuple[tuple[float, float], ...] = ()  # (log2 HP, loss) of the fit, only where it gives the optimum
    lowest: tuple[float, float] | None = None  # (log2 HP, loss) of the lowest measured mean
    off_axis: tuple[tuple[float, float], ...] = ()  # (HP, loss) of values without a log2, e.g. weight decay 0

    @property
    def every_y(self) -> tuple[float, ...]:
        return (*self.y, *(y for _, y in self.off_axis))


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One parameterization along one axis. The limits are those of the whole row."""

    axis: str
    scale_name: str
    parameterization: str
    verdict: Verdict
    title: str
    series: tuple[Series, ...]  # by scale
    transferred_log2: float | None
    x_low: float
    x_high: float
    y_low: float
    y_top: float  # losses above are off scale
    y_high: float  # between y_top and here are the HPs that diverged
    tau: Tau | None = None  # of a weight decay


@dataclass(frozen=True, kw_only=True)
class TransferInfo:
    """What the figure shows. `panels` are ordered by row (axis) and column (parameterization)."""

    title: str
    x_label: str
    panels: tuple[Panel, ...]
    caption: str
    judged: JudgedLoss = NATS

    @property
    def rows(self) -> tuple[tuple[Panel, ...], ...]:
        """The panels, one row per axis."""
        return tuple(tuple(group) for _, group in groupby(self.panels, key=lambda panel: panel.axis))

    def table(self) -> pd.DataFrame:
        """Return one row per HP of each shape. Losses are empty where the HP diverged."""
        rows = []
        for panel in self.panels:
            for shape in panel.series:
                start = (panel.axis, panel.parameterization, panel.scale_name, shape.scale)
                points = zip(shape.x, shape.y, shape.y_min, shape.y_max, strict=True)
                rows += [(*start, *point, False) for point in points]
                rows += [(*start, x, math.nan, math.nan, math.nan, True) for x in shape.censored]
                rows += [(*start, -math.inf, y, math.nan, math.nan, False) for _, y in shape.off_axis]
        columns = ["axis", "parameterization", "scale_name", "scale", "log2_hp"]
        return pd.DataFrame(rows, columns=[*columns, "mean_nats", "min_nats", "max_nats", "diverged"]).rename(
            columns=self.judged.column
        )


def transfer_info(report: TransferReport, line: pd.DataFrame, taus: Taus = NO_TAUS) -> TransferInfo:
    """Return what the figure of a report shows. `line` holds the rows that the report was made from."""
    series_of: dict[tuple[str, str], list[Series]] = {}
    finding_of = {(finding.axis, finding.parameterization): finding for finding in report.findings}
    for grid in with_shared_bases(loss_grids(line)):
        series_of[grid.key] = [_series(row, finding_of[grid.key]) for row in grid.rows]
    panels: list[Panel] = []
    for axis, group in groupby(report.findings, key=lambda finding: finding.axis):
        findings = tuple(group)
        row = _panels(findings, [tuple(series_of[axis, finding.parameterization]) for finding in findings])
        if len({finding.axis for finding in report.findings}) > 1:
            row = [replace(panel, title=f"{axis} | {panel.title}") for panel in row]
        panels += [replace(panel, tau=taus.get((axis, panel.parameterization))) for panel in row]
    return TransferInfo(
        title=f"{report.sweep}: {_conclusion(report)}",
        x_label=octaves_of(report.hp),
        judged=report.judged,
        panels=tuple(panels),
        caption=_caption(report.findings, panels, report.judged),
    )


def _caption(findings: Sequence[Finding], panels: Sequence[Panel], judged: JudgedLoss) -> str:
    """Return how to read the figure, and by how much errors were misfits."""
    shapes = [shape for panel in panels for shape in panel.series]
    parts = ["Loss against the HP at each shape: dots are means over seeds, the band is their range."]
    if any(shape.curve for shape in shapes):
        parts.append("The curve is the fit, and a star is its lowest point with the 95% interval.")
    if any(shape.lowest for shape in shapes):
        parts.append("A ring is the lowest measured mean.")
    if any(panel.transferred_log2 is not None for panel in panels):
        parts.append("The dotted line is the HP that is best at the base, and is transferred.")
    if any(shape.off_axis for shape in shapes):
        parts.append("A dashed line is the mean loss at an HP that has no place on a log2 axis.")
    if any(panel.tau for panel in panels):
        parts.append("Tau is steps x LR x weight decay, with the peak LR (arXiv 2405.13698).")
    if any(shape.censored for shape in shapes):
        parts.append("A cross in the strip at the top is an HP at which at least half of the seeds diverged.")
    if any(y > panel.y_top for panel in panels for shape in panel.series for y in shape.every_y):
        parts.append("A triangle is a loss off scale.")
    parts.append(f"Where the optima lie above one another, {staying(findings)}.")
    return " ".join([*parts, *notes_on(findings)])


def axis_transfer_info(
    report: TransferReport, line: pd.DataFrame, axis: str, taus: Taus = NO_TAUS
) -> TransferInfo | str:
    """Return what the figure of one axis of a report shows, or why there is none."""
    findings = tuple(finding for finding in report.findings if finding.axis == axis)
    info = transfer_info(replace(report, findings=findings), line[line["axis"] == axis], taus)
    if any(shape.x or shape.censored for panel in info.panels for shape in panel.series):
        return info
    return f"no trial along {axis} has a result at a {report.hp} above 0"


def _conclusion(report: TransferReport) -> str:
    """Return the verdicts, e.g. `lr along width: completep-moe transfers, sp drifts`. Many axes go by verdict."""
    findings = report.findings
    if not findings:
        return f"nothing is known of {report.hp}"
    axes = list(dict.fromkeys(finding.axis for finding in findings))
    bare = any(finding.verdict == "transfers" and finding.lacks_control for finding in findings)
    lacking = dict.fromkeys(why for finding in findings for why in finding.lacking)
    end = f" ({', '.join(lacking or ['no control'])})" if bare or lacking else ""
    if len(axes) == 1:
        verdicts = ", ".join(f"{finding.parameterization} {_verb(finding)}" for finding in findings)
        return f"{report.hp} along {axes[0]}: {verdicts}{end}"
    labels = dict.fromkeys(finding.parameterization for finding in findings)
    parts = [
        _by_verdict([finding for finding in findings if finding.parameterization == name], axes) for name in labels
    ]
    return f"{report.hp} along {len(axes)} axes: {'; '.join(parts)}{end}"


def _by_verdict(findings: Sequence[Finding], axes: Sequence[str]) -> str:
    """Return a parameterization's verdicts, e.g. `sp drifts along width, transfers along depth, experts`."""
    verbs = sorted({_verb(finding) for finding in findings})
    axes_of = {verb: [finding.axis for finding in findings if _verb(finding) == verb] for verb in verbs}
    parts = [f"{verb} along {'all' if len(of) == len(axes) else ', '.join(of)}" for verb, of in axes_of.items()]
    return f"{findings[0].parameterization} {', '.join(parts)}"


def _verb(finding: Finding) -> str:
    return {"undecided": "is undecided", "stays": "did not move"}.get(finding.verdict, finding.verdict)


def _series(row: ShapeLosses, finding: Finding) -> Series:
    shown = [cell for cell in row.cells if cell.finite and not cell.censored]
    x = tuple(cell.log2 for cell in shown)
    y = tuple(float(np.median(cell.losses) if cell.mean is None else cell.mean) for cell in shown)
    of_shape = (row.scale, row.shape)
    found = next(shape for shape in finding.shapes if (shape.scale, shape.shape) == of_shape)
    optimum = found.optimum
    curve = found.curve if optimum.kind in STARS else ()
    mark = None
    if optimum.log2_value is not None:
        mark = Mark(
            x=optimum.log2_value,
            y=float(
                np.interp(optimum.log2_value, *(zip(*curve, strict=True) if curve else (x, y)))
            ),  # on what is drawn
            kind=optimum.kind,
            x_low=optimum.low_log2,
            x_high=optimum.high_log2,
        )
    lowest = None
    if found.lowest_value is not None and found.lowest_loss is not None:
        lowest = (math.log2(found.lowest_value), found.lowest_loss)
    return Series(
        name=shape_name(row.scale, row.is_base),
        scale=row.scale,
        x=x,
        y=y,
        y_min=tuple(min(cell.finite) for cell in shown),
        y_max=tuple(max(cell.finite) for cell in shown),
        censored=tuple(cell.log2 for cell in row.cells if cell.censored),
        optimum=mark,
        curve=curve,
        lowest=lowest,
        off_axis=tuple((cell.value, cell.mean) for cell in row.off_axis if cell.mean is not None),
    )


def _panels(findings: Sequence[Finding], series: Sequence[tuple[Series, ...]]) -> list[Panel]:
    """Return the panels of one row, which are the findings of one axis."""
    every = [shape for column in series for shape in column]
    xs = [x for shape in every for x in (*shape.x, *shape.censored)] or [0.0]
    y_low, y_top = _row_limits(findings, series)
    num_lanes = max((len(column) for column in series if any(shape.censored for shape in column)), default=0)
    return [
        Panel(
            axis=finding.axis,
            scale_name=finding.scale_name,
            parameterization=finding.parameterization,
            verdict=finding.verdict,
            title=verdict_line(finding),
            series=column,
            transferred_log2=math.log2(finding.base_value) if finding.base_value else None,
            x_low=min(xs) - X_MARGIN,
            x_high=max(xs) + X_MARGIN,
            y_low=y_low,
            y_top=y_top,
            y_high=y_top + num_lanes * LANE * (y_top - y_low),
        )
        for finding, column in zip(findings, series, strict=True)
    ]


def _row_limits(findings: Sequence[Finding], series: Sequence[tuple[Series, ...]]) -> tuple[float, float]:
    """Return the lowest and highest loss that a row shows: those of the findings compared, and a little for controls.

    A control far above or below them runs off scale, and its title says what it costs.
    """
    shown = compared(findings)
    parts: dict[bool, tuple[float, float]] = {}
    for is_shown in (True, False):
        of = [n for n, finding in enumerate(findings) if (finding in shown) is is_shown]
        shapes = [shape for n in of for shape in series[n]]
        regrets = [lost for n in of for shape in findings[n].shapes if (lost := shape.regret_nats) is not None]
        if any(shape.x for shape in shapes):
            parts[is_shown] = _y_limits(shapes, list(filter(math.isfinite, regrets)))
    if len(parts) < 2:
        return next(iter(parts.values()), (0.0, 1.0))
    (low, top), (control_low, control_top) = parts[True], parts[False]
    more = (CONTROL_STRETCH - 1) * (top - low)
    return max(min(low, control_low), low - more), min(max(top, control_top), top + more)


def _y_limits(every: Sequence[Series], regrets: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and highest loss that a row shows, such that basins and regrets can be seen."""
    rises, bests = [], []
    known = [shape for shape in every if shape.x]
    for shape in known:
        best, center = min(zip(shape.y, shape.x, strict=True))
        near = [y for x, y in zip(shape.x, shape.y, strict=True) if abs(x - center) <= OCTAVES_SHOWN]
        bests.append(best)
        rises.append(max(near) - best)
    rise = float(np.median(rises))
    height = max(rise, min(max(regrets, default=0.0), MAX_STRETCH * rise)) or MIN_HEIGHT
    low, top = min(min(shape.y_min) for shape in known), max(bests) + HEADROOM * height
    low = min([low, *(shape.optimum.y for shape in known if shape.optimum)])
    beside = [y for shape in known for _, y in shape.off_axis]
    top = min(max([top, *beside]), max(bests) + MAX_STRETCH * height)
    low = min([max(low, min(bests) - height), *beside])  # a single seed or a fit far below does not flatten the row
    return low - MARGIN * (top - low), top
