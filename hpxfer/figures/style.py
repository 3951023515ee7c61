"""The look of all figures: colors that color-blind readers tell apart, on light and on dark paper.

Text, axes and neutral marks have the color `INK`, and nothing else has it. A page with a dark ground replaces it by a
light color. Series colors keep a contrast of about 2 or more against white and near-black alike.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from io import BytesIO, StringIO
from typing import IO, Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from hpxfer.host import CONTROL, is_control, scale_text

INK = "#123456"
FAINT = 0.55  # opacity of ink that should stand back
# Of viridis, from the smallest scale to the largest: colors beyond these ends fade into white or black paper.
RAMP = ("viridis", 0.78, 0.25)
# Of cells: a low loss is dark. Text in a cell is black or white by the cell's own lightness, never ink.
CELLS = ("cividis", 0.15, 1.0)
# Colors of Okabe and Ito, each with its own marker. The control's mark is used for nothing else.
CONTROL_MARKS = (("#d55e00", "s"), ("#7f3800", "p"), ("#f0a070", "h"), ("#a05028", "<"))  # one per name of arms
MARKS = (("#0072b2", "o"), ("#009e73", "^"), ("#cc79a7", "D"), ("#e69f00", "v"), ("#56b4e9", "P"), ("#8c6d31", "X"))

PAGE_INCHES = 8.6  # at 800 pixels this leaves 10 point text 13 pixels high
FONT = 10
SMALL = 9
PNG_DPI = 150
SVG_DPI = 72  # matplotlib's SVG is measured in points
TICKS = 6  # intervals per axis at most: each label costs time to lay out and bytes to write
MAX_POINTS = 300  # per line
TITLE_CHARACTERS = 84  # per line of a title across the page
LEGEND_SHARE = 0.99  # of a figure's width at most: an SVG and a PNG round the lengths of texts differently
_RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "figure.autolayout": False,  # a figure's own layout is the only one
    "figure.constrained_layout.use": False,
    "text.parse_math": False,  # users choose names, which may hold dollar signs
    "font.family": ["DejaVu Sans"],
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "legend.labelcolor": INK,
    "axes.titley": 1.0,  # no panel has tick labels on top, so that nothing has to be measured to make way for them
    "axes.facecolor": "none",
    "font.size": FONT,
    "axes.titlesize": FONT,
    "axes.labelsize": FONT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.title_fontsize": SMALL,
    "legend.frameon": False,
}
_NUMBER = re.compile(r"(\d+\.\d{2})\d+")
_COORDINATES = re.compile(r' (?:d|transform|x|y)="[^"]*"')
_HEAD = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_GROUP_ID = re.compile(r'<g id="[^"]*"')
# matplotlib's style sheet would apply to every element of a page that the SVG is pasted into. Attributes do the same.
_SHEET = re.compile(r"\s*<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)
_BETWEEN = re.compile(r">\s+<")
_LINES = ' style="stroke-linejoin: round; stroke-linecap: butt"'
_FONT = "font-family: 'DejaVu Sans'"


def look() -> AbstractContextManager[None]:
    """Return the context in which figures are made and drawn. It leaves the user's own settings as they were."""
    return matplotlib.rc_context(_RC)


def panels(
    title: str, num: int, *, columns: int = 2, height: float = 3.1, foot: float = 0.5, width: float = PAGE_INCHES
) -> tuple[Figure, list[Axes]]:
    """Return a figure with `num` panels below its title, `columns` per row. It belongs to no window."""
    columns = max(1, min(columns, num))
    rows = -(-max(num, 1) // columns)
    head = wrapped(title, TITLE_CHARACTERS)
    size = (width, height * rows + 0.22 * (head.count("\n") + 1) + foot)
    figure = Figure(figsize=size, layout="constrained", facecolor="none")
    figure.suptitle(head, fontsize=FONT + 1, fontweight="bold")
    grid = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes in grid[num:]:
        axes.remove()
    for axes in grid[:num]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.18, linewidth=0.6)
        axes.set_axisbelow(True)
        for side in (axes.xaxis, axes.yaxis):
            side.set_major_locator(MaxNLocator(TICKS))
    return figure, grid[:num]


def wrapped(text: str, characters: int) -> str:
    """Return the text in lines of at most so many characters."""
    return "\n".join(textwrap.wrap(text, characters, break_on_hyphens=False))


def ramp(num: int) -> list[str]:
    """Return one color per shape, evenly spaced by rank, as scales are mostly powers of two."""
    name, start, end = RAMP
    return [to_hex(matplotlib.colormaps[name](start + (end - start) * i / max(num - 1, 1))) for i in range(num)]


def scale_colors(scales: Iterable[float]) -> dict[float, str]:
    """Return the color of each scale of a figure, for all of its panels."""
    ordered = sorted(set(scales))
    return dict(zip(ordered, ramp(len(ordered)), strict=True))


def marks(names: Sequence[str], control: str | None = CONTROL) -> dict[str, tuple[str, str]]:
    """Return color and marker of each parameterization. Those of a control are always the same."""
    distinct = list(dict.fromkeys(names))
    controls = [name for name in distinct if is_control(name, control)]
    others = [name for name in distinct if not is_control(name, control)]
    return {
        **{name: MARKS[i % len(MARKS)] for i, name in enumerate(others)},
        **{name: CONTROL_MARKS[i % len(CONTROL_MARKS)] for i, name in enumerate(controls)},
    }


def cell_color(fraction: float) -> str:
    """Return the color of a cell for a fraction from 0 (lowest loss) to 1."""
    name, start, end = CELLS
    return to_hex(matplotlib.colormaps[name](start + (end - start) * min(max(fraction, 0.0), 1.0)))


def text_on(color: str) -> str:
    """Return black or white, whichever is easier to read on a color."""
    red, green, blue = to_rgb(color)
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "#ffffff"


def thinned(steps: Sequence[float], values: Sequence[float], most: int = MAX_POINTS) -> tuple[list[float], list[float]]:
    """Return at most `most` points of a line, evenly spaced and with both ends. Nothing is smoothed."""
    if len(steps) <= most:
        return list(steps), list(values)
    kept = np.unique(np.linspace(0, len(steps) - 1, most).round().astype(int)).tolist()
    return [steps[i] for i in kept], [values[i] for i in kept]


def log2_scale_axis(axes: Axes, scales: Sequence[float], name: str) -> None:
    """Make x the log2 of a scale, with the scales themselves as ticks."""
    ticks = sorted({float(np.log2(scale)) for scale in scales})
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: scale_text(float(f"{2**x:.12g}"))))
    axes.set_xlabel(f"{name} (log scale)")
    margin = 0.08 * max(ticks[-1] - ticks[0], 1.0)
    axes.set_xlim(ticks[0] - margin, ticks[-1] + margin)


def set_axes(
    axes: Axes,
    x: str,
    y: str,
    *,
    x_ends: tuple[float, float] | None = None,
    y_ends: tuple[float | None, float | None] | None = None,
) -> None:
    """Set the labels of both axes, and their ends where they are given."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if x_ends is not None:
        axes.set_xlim(*x_ends)
    if y_ends is not None:
        axes.set_ylim(*y_ends)


def log_steps(axes: Axes) -> None:
    """Make x a log axis with plain numbers at 1, 2 and 5 of every decade."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def whole_octaves(axes: Axes) -> None:
    """Put the ticks of a log2 HP at whole octaves."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))


def log_losses(axes: Axes) -> None:
    """Make y a log axis with plain numbers at 1, 2 and 5 of every decade."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def legend_below(figure: Figure, handles: Sequence[Artist], *, columns: int, title: str | None = None) -> None:
    """Add a legend below all panels, with at most so many columns, and fewer where it would be wider than the page."""
    for num in range(min(len(handles), columns), 0, -1):
        legend = figure.legend(handles=handles, title=title, loc="outside lower center", ncols=num)
        if num == 1 or legend.get_window_extent().width <= LEGEND_SHARE * figure.bbox.width:
            return
        legend.remove()


def lay_out(figure: Figure) -> None:
    """Lay a figure out by the lengths of its texts in an SVG, unless that is done already.

    matplotlib would lay the figure out anew for each picture of it, and draw everything twice for that.
    """
    engine = figure.get_layout_engine()
    if engine is None:
        return
    canvas, dpi = figure.canvas, figure.dpi
    FigureCanvasSVG(figure)
    figure.dpi = SVG_DPI
    engine.execute(figure)
    figure.set_layout_engine(None)
    figure.dpi = dpi
    figure.set_canvas(canvas)


def to_svg(figure: Figure, salt: str) -> str:
    """Return the figure as one `<svg>` element, with text as text and coordinates to 0.01 point.

    `salt` makes the ids in it differ from those of other figures.
    """
    out = StringIO()
    with matplotlib.rc_context({**_RC, "svg.hashsalt": salt}):
        lay_out(figure)
        figure.savefig(out, format="svg", transparent=True, metadata=_no_metadata())
    text = _METADATA.sub("", _HEAD.sub("", out.getvalue()), count=1)
    text = _SHEET.sub("", _GROUP_ID.sub("<g", text), count=1)
    text = text.replace("<svg", "<svg" + _LINES, 1).replace(_FONT, _FONT + ", Verdana, sans-serif")
    text = _BETWEEN.sub("><", text)
    return _COORDINATES.sub(lambda found: _NUMBER.sub(r"\1", found.group()), text)


def to_png(figure: Figure) -> bytes:
    """Return the figure as a PNG on white."""
    out = BytesIO()
    with look():
        lay_out(figure)
        figure.savefig(out, format="png", dpi=PNG_DPI, facecolor="white")
    return out.getvalue()


def write_png(figure: Figure, file: IO[bytes]) -> None:
    """Write the figure to a PNG file."""
    file.write(to_png(figure))


def write_svg(figure: Figure, salt: str, file: IO[bytes]) -> None:
    """Write the figure to an SVG file."""
    file.write(('<?xml version="1.0" encoding="utf-8"?>\n' + to_svg(figure, salt)).encode())


def _no_metadata() -> dict[str, Any]:
    return dict.fromkeys(("Date", "Creator", "Format", "Type"))
