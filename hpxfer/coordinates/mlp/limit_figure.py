"""The losses of networks of growing width beside the limit that their table claims.

Left: the loss over updates, one line per width, and the limit. Right: where the means over networks go as the width
grows, less the limit, with two standard errors.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hpxfer.coordinates.limit_answer import Compared, LimitAnswer
from hpxfer.coordinates.report import AxisReport, CheckReport
from hpxfer.coordinates.style import GRAY, MISS, PREDICTED, legend_below, scale_colors, set_up

PANEL_INCHES = (4.2, 3.0)


def has_figure(answer: LimitAnswer | None) -> bool:
    """Return whether there are losses to draw."""
    return answer is not None and answer.compared is not None and not answer.compared.diverged


def draw_limit(report: CheckReport, axis: AxisReport) -> Figure:
    """Return the figure of an axis whose losses were compared. It needs no window and no global state."""
    answer = axis.limit
    assert answer is not None, "the caller has looked"
    found = answer.compared
    assert found is not None, "the caller has looked"
    width, height = PANEL_INCHES
    figure = Figure(figsize=(2 * width, height + 0.9), layout="constrained")
    says = {"ok": "losses approach the limit of", "miss": "losses MISS the limit of"}
    verdict = says.get(answer.verdict, "losses may approach the limit of")
    figure.suptitle(
        f"{report.parameterization} along {axis.axis}, {report.optimizer}: {verdict} {answer.claim}",
        fontsize=11,
        fontweight="bold",
    )
    left, right = figure.subplots(1, 2)
    _draw_losses(left, found)
    _draw_offsets(right, found, missed=answer.missed)
    colors = scale_colors(found.widths)
    handles = [Line2D([], [], color=color, marker="o", markersize=3, label=f"{w:g}") for w, color in colors.items()]
    handles.append(Line2D([], [], **PREDICTED, label=f"limit of {answer.claim}"))
    legend_below(figure, handles, "width")
    return figure


def _draw_losses(axes: Axes, found: Compared) -> None:
    updates = range(len(found.limit))
    colors = scale_colors(found.widths)
    for width, means, errors in zip(found.widths, found.means, found.errors, strict=True):
        axes.errorbar(updates, means, errors, color=colors[width], linewidth=1.3, marker="o", markersize=3)
    axes.plot(updates, found.limit, **PREDICTED)
    axes.set_title(f"loss, mean over {found.seeds} networks", fontsize=9)
    axes.set_ylim(bottom=0)
    _finish(axes)


def _draw_offsets(axes: Axes, found: Compared, *, missed: bool) -> None:
    axes.axhline(0.0, color=GRAY, linewidth=0.7)
    axes.errorbar(
        range(len(found.offsets)),
        found.offsets,
        [2 * error for error in found.offset_errors],
        color=MISS if missed else "black",
        linewidth=1.3,
        marker="o",
        markersize=3,
        capsize=3,
    )
    axes.set_title("extrapolated to infinite width, less the limit", fontsize=9)
    most = max([abs(offset) + 2 * error for offset, error in zip(found.offsets, found.offset_errors, strict=True)])
    most = max(most, 0.05 * found.scale) * 1.1
    axes.set_ylim(-most, most)
    _finish(axes)


def _finish(axes: Axes) -> None:
    set_up(axes)
    axes.set_xlabel("updates", fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
