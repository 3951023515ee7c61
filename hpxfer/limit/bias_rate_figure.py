"""The figure of the bias-rate simulation: the changed part of the active experts over the number of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpxfer.limit.bias_rate import BiasRate

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure


def bias_rate_figure(found: BiasRate) -> Figure:
    """Return the figure: a line per share of active experts with error bars, and the limit of each dashed."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, NullLocator

    from hpxfer.figures.style import INK, MARKS, legend_below, look, panels

    with look():
        figure, (axes,) = panels(_title(found), 1, height=3.8, foot=0.7)
        figure.set_facecolor("white")
        handles: list[Artist] = []
        for index, share in enumerate(found.options.active_shares):
            color, marker = MARKS[index % len(MARKS)]
            rows = sorted((row for row in found.rows if row.active_share == share), key=lambda row: row.num_experts)
            sizes, changed = [row.num_experts for row in rows], [row.changed for row in rows]
            axes.errorbar(sizes, changed, [row.error for row in rows], color=color, marker=marker, capsize=2)
            axes.plot(sizes, [row.limit for row in rows], color=color, linestyle="--", linewidth=1.0)
            handles.append(Line2D([], [], color=color, marker=marker, label=f"K/M = {share:.4g}"))
        handles.append(Line2D([], [], color=INK, linestyle="--", label="infinitely many experts"))
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(found.options.num_experts))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(bottom=0.0)
        axes.set_xlabel("experts (log scale)")
        axes.set_ylabel("changed part of the active experts")
        legend_below(figure, handles, columns=5)
    return figure


def _title(found: BiasRate) -> str:
    power = found.options.rate_exponent
    return "Constant LR of the router bias" if not power else f"LR of the router bias grows as experts^{power:g}"
