"""The figure of the bias-rate simulation: the changed part of the active experts over the number of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpxfer.limit.bias_rate import BiasRate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of Okabe and Ito, which color-blind readers tell apart, each with its own marker.
MARKS = (("#0072b2", "o"), ("#009e73", "^"), ("#cc79a7", "D"), ("#e69f00", "v"), ("#56b4e9", "P"), ("#8c6d31", "X"))
SIZE_INCHES = (6.4, 4.2)


def bias_rate_figure(found: BiasRate) -> Figure:
    """Return the figure: a line per share of active experts with error bars, and the limit of each dashed."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, NullLocator

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    handles = []
    for index, share in enumerate(found.options.active_shares):
        color, marker = MARKS[index % len(MARKS)]
        rows = sorted((row for row in found.rows if row.active_share == share), key=lambda row: row.num_experts)
        sizes = [row.num_experts for row in rows]
        axes.errorbar(
            sizes, [row.changed for row in rows], [row.error for row in rows], color=color, marker=marker, capsize=2
        )
        axes.plot(sizes, [row.limit for row in rows], color=color, linestyle="--", linewidth=1.0)
        handles.append(Line2D([], [], color=color, marker=marker, label=f"K/M = {share:.4g}"))
    handles.append(Line2D([], [], color="0.45", linestyle="--", label="infinitely many experts"))
    axes.set_xscale("log", base=2)
    axes.set_xticks([row.num_experts for row in found.rows])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("experts")
    axes.set_ylabel("part of the active experts that one update changes")
    axes.set_title(_title(found), fontsize=10)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(handles=handles, frameon=False, fontsize=8)
    return figure


def _title(found: BiasRate) -> str:
    power = found.options.rate_exponent
    return "Constant LR of the router bias" if not power else f"LR of the router bias grows as experts^{power:g}"
