"""The figures: of a solved limit, of networks beside their limit, and of the bias-rate simulation.

No figure needs a window or a global state. matplotlib is loaded once a figure is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpxfer.limit.bias_rate import BiasRate
from hpxfer.limit.network import Floats
from hpxfer.limit.solve import Limit
from hpxfer.limit.sweep.report import Against
from hpxfer.limit.text import Solved
from hpxfer.verdict import scale_text

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Title -> the series of a panel, with its label.
PANELS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "loss": (("loss", "loss"),),
    "weights of the experts": (("gate_mean", "mean"), ("gate_variance", "variance over experts")),
    "logits of the router": (("logit_mean", "mean"), ("logit_variance", "variance over experts")),
    "size of features (RMS)": (("h1_rms", "h1"), ("h3_rms", "h3")),
}
MOST_OUTPUTS = 8
ERRORS = 2.0  # standard errors that a band or a bar shows on each side
VERDICTS = {
    "agrees": "the networks approach their limit",
    "disagrees": "the networks do NOT approach the limit of their table",
    "undecided": "it is open whether the networks approach their limit",
}
# Label, numbers after each update, and their standard errors. No error is known of a single draw.
Line = tuple[str, Floats, Floats | None]


def limit_figure(found: Solved) -> Figure:
    """Return loss, outputs, gates, logits and features over updates, with the error of the solver."""
    from hpxfer.figures.style import look, panels

    network, limit = found.network, found.limit
    regime = "residual network" if network.regime == "residual" else f"regime {network.regime}"
    how = "exact" if limit.is_exact else f"{limit.num_sites} sites, {limit.num_seeds} seeds"
    title = f"The limit of {network.parameterization} in {regime}, {network.gate} gate ({how})"
    shown: list[tuple[str, list[Line]]] = [
        (name, [(label, limit.series[key].mean, limit.series[key].error) for key, label in series])
        for name, series in PANELS.items()
    ]
    if outputs := _outputs(limit):
        shown.insert(1, ("outputs, a line per sample", outputs))
    with look():
        figure, grid = panels(title, len(shown), columns=3, height=2.7, width=11.0)
        figure.set_facecolor("white")
        for axes, (name, lines) in zip(grid, shown, strict=True):
            axes.set_title(name)
            _draw_lines(axes, lines)
    return figure


def _outputs(limit: Limit) -> list[Line]:
    """Return one line per output of a sample, of the first few. Passes with other samples have none."""
    if len({each.shape for each in limit.outputs}) > 1:
        return []
    values = np.stack([each.reshape(-1) for each in limit.outputs]).T[:MOST_OUTPUTS]
    if limit.output_errors is None:
        return [(f"f{k + 1}", value, None) for k, value in enumerate(values)]
    errors = np.stack([each.reshape(-1) for each in limit.output_errors]).T
    return [(f"f{k + 1}", value, errors[k]) for k, value in enumerate(values)]


def _draw_lines(axes: Axes, lines: Sequence[Line]) -> None:
    from matplotlib.ticker import MaxNLocator

    from hpxfer.figures.style import MARKS, TICKS, ramp

    many = len(lines) > 2
    colors = ramp(len(lines)) if many else [color for color, _ in MARKS[: len(lines)]]
    for (label, mean, error), color in zip(lines, colors, strict=True):
        updates = np.arange(len(mean))
        if error is not None:
            axes.fill_between(
                updates, mean - ERRORS * error, mean + ERRORS * error, color=color, alpha=0.25, linewidth=0
            )
        axes.plot(updates, mean, color=color, linewidth=1.4, marker="o", markersize=2.5, label=label)
    axes.set_xlabel("updates")
    axes.xaxis.set_major_locator(MaxNLocator(TICKS, integer=True))
    if len(lines) > 1 and not many:
        axes.legend(fontsize=8, handlelength=1.2)


def against_figures(found: Iterable[Against]) -> dict[str, Figure]:
    """Return name -> the figure of every arm."""
    label = re.compile(r"[^A-Za-z0-9._-]+")
    return {
        f"against-{label.sub('-', f'{each.line.axis}-{each.line.parameterization}').strip('-.')}": against_figure(each)
        for each in found
    }


def against_figure(found: Against) -> Figure:
    """Return the loss of the limit and of every size over updates, and deviations against the width.

    The loss on held-out samples is another one, and no part of the curves.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    from hpxfer.figures.style import INK, TICKS, legend_below, look, panels, scale_colors

    loss = found.loss
    stop = len(loss.passes) - (1 if found.held_out else 0)
    updates, limit, sizes = loss.passes[:stop], loss.limit[:stop], loss.deviations.sizes
    colors = scale_colors(sizes)
    dashed: dict[str, Any] = {"color": "black", "linestyle": (0, (4, 2))}
    with look():
        title = f"{found.name}, {found.line.hp} {found.line.value:g}: {VERDICTS[found.verdict]}"
        figure, (left, right) = panels(title, 2, height=3.4, foot=1.0)
        figure.set_facecolor("white")
        for size, losses in zip(sizes, loss.finite, strict=True):
            mean, spread = losses.mean(axis=0)[:stop], losses.std(axis=0, ddof=1)[:stop]
            left.fill_between(updates, mean - spread, mean + spread, color=colors[size], alpha=0.12, linewidth=0)
            left.plot(updates, mean, color=colors[size], linewidth=1.6)
        left.errorbar(updates, limit, yerr=ERRORS * loss.deviations.error[:stop], linewidth=1.2, **dashed)
        left.set_title("training loss: mean and spread of seeds")
        left.set_xlabel("updates")
        left.xaxis.set_major_locator(MaxNLocator(TICKS, integer=True))
        left.set_ylabel("loss")
        left.set_ylim(bottom=min(0.0, left.get_ylim()[0]) if limit.min() >= 0 else None)
        _draw_distances(right, found)
        handles: list[Artist] = [Line2D([], [], color=colors[size], label=scale_text(size)) for size in colors]
        handles.append(Line2D([], [], label="limit", **dashed))
        point: dict[str, Any] = {"color": INK, "linestyle": "none"}
        handles.append(Line2D([], [], marker="o", label="one network", **point))
        handles.append(Line2D([], [], marker="s", fillstyle="none", label="mean over seeds", **point))
        handles.append(Patch(color=INK, alpha=0.1, linewidth=0, label="its noise"))
        legend_below(figure, handles, columns=5, title="width")
    return figure


def _draw_distances(axes: Axes, found: Against) -> None:
    """Draw the distances of one network and of the mean, which should fall as N^-1/2 and as 1/N."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    from hpxfer.figures.style import FAINT, INK, log_losses

    sizes = [each.size for each in found.distances]
    log_losses(axes)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: scale_text(float(f"{x:.12g}"))))
    axes.set_xticks(sizes)
    axes.xaxis.set_minor_locator(NullLocator())
    networks, means = [each.network for each in found.distances], [each.mean for each in found.distances]
    shown = [height for height in (*networks, *means) if height > 0]
    top, bottom = max(shown, default=1.0) * 1.5, min(shown, default=0.01) / 1.5
    for of_sizes, power, marker, fill, style in ((networks, -0.5, "o", "full", "--"), (means, -1, "s", "none", ":")):
        kept = [(n, height) for n, height in zip(sizes, of_sizes, strict=True) if height > 0]
        if not kept:
            continue
        n, heights = (np.array(column) for column in zip(*kept, strict=True))
        axes.plot(n, heights, color=INK, marker=marker, fillstyle=fill, markersize=5, linestyle="none")
        guide = heights[0] * (n / n[0]) ** power
        axes.plot(n, guide, color=INK, alpha=FAINT, linewidth=0.9, linestyle=style)
        end: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points"}
        axes.annotate(f"N^{power:g}", (n[-1], guide[-1]), fontsize=8, va="center", alpha=FAINT, **end)
        bottom = min(bottom, float(guide[-1]) / 1.3)
    axes.fill_between(sizes, bottom, [each.noise for each in found.distances], color=INK, alpha=0.1, linewidth=0)
    axes.set_ylim(bottom, top)
    axes.set_title("distance to the limit, RMS over updates")
    axes.set_xlabel("width (log scale)")
    axes.set_ylabel("share of the fall of the loss")


def bias_rate_figure(found: BiasRate) -> Figure:
    """Return the changed part of the active experts over the number of experts, a line per share of active ones."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, NullLocator

    from hpxfer.figures.style import INK, MARKS, legend_below, look, panels

    power = found.options.rate_exponent
    title = "LR of the router bias grows as experts^" + f"{power:g}" if power else "Constant LR of the router bias"
    with look():
        figure, (axes,) = panels(title, 1, height=3.8, foot=0.7)
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
