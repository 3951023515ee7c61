"""Draw the transfer figure, and write it as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox, TransformedBbox

from hpxfer.figures import style
from hpxfer.figures.kinds import HPFigure, HPInput, Info
from hpxfer.figures.style import FAINT, INK, SMALL
from hpxfer.figures.transfer import STARS, X_MARGIN, Mark, Panel, Series, TransferInfo, axis_transfer_info
from hpxfer.host.output_folder import write_folder
from hpxfer.verdict.optimum import Kind

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
    lane = (panel.y_high - panel.y_top) / max(len(panel.series), 1)
    inside = TransformedBbox(Bbox.from_extents(panel.x_low, panel.y_low, panel.x_high, panel.y_top), axes.transData)
    for i, (shape, color) in enumerate(zip(panel.series, style.ramp(len(panel.series)), strict=True)):
        drawn = _draw_basin(axes, shape, color)
        for artist in drawn:  # what runs off scale ends below the strip
            artist.set_clip_box(inside)
        for x, y in zip(shape.x, shape.y, strict=True):
            if y > panel.y_top:
                _draw_symbol(axes, x, panel.y_top, off_scale, color)
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
    if any(shape.censored for _, shape in shapes):
        out.append(_key("x", "diverged", 6))
    if any(y > panel.y_top for panel, shape in shapes for y in shape.y):
        out.append(_key("^", "off scale", 6))
    return out


def _key(marker: str, label: str, size: float, *, edge: bool = False) -> Line2D:
    """Return a legend entry for a mark, in ink, as colors stand for scales."""
    fill = {"markerfacecolor": "none"} if edge else {}
    return Line2D([], [], linestyle="none", color=INK, marker=marker, markersize=size, label=label, **fill)  # type: ignore[arg-type]


def _infos(given: HPInput) -> dict[str, Info | str]:
    return {axis: axis_transfer_info(given.report, given.line, axis) for axis in given.axes}


TRANSFER = HPFigure(
    name="transfer",
    question="Does the same HP stay best at each scale?",
    infos=_infos,
    draw=draw_transfer,
    under_verdict=True,
    of_lines=True,
)
