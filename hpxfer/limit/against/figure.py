"""The figure of a comparison: the loss of the limit and of every size over updates, and deviations against the width.

`against_info` decides everything that is shown and is pure. `draw_against` only draws it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpxfer.limit.against.report import Against
from hpxfer.verdict import scale_text

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VERDICTS = {
    "agrees": "the networks approach their limit",
    "disagrees": "the networks do NOT approach the limit of their table",
    "undecided": "it is open whether the networks approach their limit",
}
CONFIDENCE_SE = 2.0


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The loss over updates: the mean of a size, and how far single networks spread about it (a standard deviation)."""

    size: float | None  # None: the limit
    updates: tuple[int, ...]
    mean: tuple[float, ...]
    spread: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A deviation against the width, as a share of the fall of the limit's loss."""

    sizes: tuple[float, ...]
    heights: tuple[float, ...]
    noise: tuple[float, ...]  # what it is without a deviation; zeros where that means nothing
    guide: float  # the exponent that is expected


@dataclass(frozen=True, kw_only=True)
class AgainstInfo:
    """All that the figure shows."""

    name: str  # of the file
    title: str
    limit: Curve
    curves: tuple[Curve, ...]
    networks: Sizes
    means: Sizes


def against_info(found: Against) -> AgainstInfo:
    """Return what the figure of an arm shows. The loss on held-out samples is no part of the curves."""
    loss = found.loss
    stop = len(loss.passes) - (1 if found.held_out else 0)
    updates = loss.passes[:stop]
    curves = [
        Curve(
            size=size,
            updates=updates,
            mean=_floats(loss.finite[j].mean(axis=0)[:stop]),
            spread=_floats(loss.finite[j].std(axis=0, ddof=1)[:stop]),
        )
        for j, size in enumerate(loss.deviations.sizes)
    ]
    sizes = tuple(each.size for each in found.distances)
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{found.axis}-{found.parameterization}").strip("-.")
    return AgainstInfo(
        name=f"against-{label}",
        title=f"{found.parameterization} along {found.axis}, {found.hp} {found.value:g}: {VERDICTS[found.verdict]}",
        limit=Curve(
            size=None, updates=updates, mean=_floats(loss.limit[:stop]), spread=_floats(loss.deviations.error[:stop])
        ),
        curves=tuple(curves),
        networks=Sizes(
            sizes=sizes,
            heights=tuple(each.network for each in found.distances),
            noise=(0.0,) * len(sizes),
            guide=-0.5,
        ),
        means=Sizes(
            sizes=sizes,
            heights=tuple(each.mean for each in found.distances),
            noise=tuple(each.noise for each in found.distances),
            guide=-1.0,
        ),
    )


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def against_figures(found: Sequence[Against]) -> dict[str, Figure]:
    """Return name -> the figure of every arm."""
    infos = [against_info(each) for each in found]
    return {info.name: draw_against(info) for info in infos}


def draw_against(info: AgainstInfo) -> Figure:
    """Return the figure. It needs no window and no global state."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    from hpxfer.figures.style import INK, TICKS, legend_below, look, panels, scale_colors

    colors = scale_colors(curve.size for curve in info.curves if curve.size is not None)
    with look():
        figure, (left, right) = panels(info.title, 2, height=3.4, foot=1.0)
        figure.set_facecolor("white")
        for curve in info.curves:
            assert curve.size is not None, "only the limit has no size"
            low, high = (np.array(curve.mean) + sign * np.array(curve.spread) for sign in (-1, 1))
            left.fill_between(curve.updates, low, high, color=colors[curve.size], alpha=0.12, linewidth=0)
            left.plot(curve.updates, curve.mean, color=colors[curve.size], linewidth=1.6)
        error = CONFIDENCE_SE * np.array(info.limit.spread)
        left.errorbar(
            info.limit.updates, info.limit.mean, yerr=error, color="black", linewidth=1.2, linestyle=(0, (4, 2))
        )
        left.set_title("training loss: mean and spread of seeds")
        left.set_xlabel("updates")
        left.xaxis.set_major_locator(MaxNLocator(TICKS, integer=True))
        left.set_ylabel("loss")
        left.set_ylim(bottom=min(0.0, left.get_ylim()[0]) if min(info.limit.mean) >= 0 else None)
        _draw_sizes(right, info)
        handles: list[Artist] = [Line2D([], [], color=colors[size], label=scale_text(size)) for size in colors]
        handles.append(Line2D([], [], color="black", linestyle=(0, (4, 2)), label="limit"))
        point: dict[str, Any] = {"color": INK, "linestyle": "none"}
        handles.append(Line2D([], [], marker="o", label="one network", **point))
        handles.append(Line2D([], [], marker="s", fillstyle="none", label="mean over seeds", **point))
        handles.append(Patch(color=INK, alpha=0.1, linewidth=0, label="its noise"))
        legend_below(figure, handles, columns=5, title="width")
    return figure


def _draw_sizes(axes: Axes, info: AgainstInfo) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    from hpxfer.figures.style import FAINT, INK, log_losses

    log_losses(axes)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: scale_text(float(f"{x:.12g}"))))
    axes.set_xticks(info.means.sizes)
    axes.xaxis.set_minor_locator(NullLocator())
    shown = [height for sizes in (info.networks, info.means) for height in sizes.heights if height > 0]
    top = max(shown, default=1.0) * 1.5
    bottom = min(shown, default=0.01) / 1.5
    for sizes, marker, fill in ((info.networks, "o", "full"), (info.means, "s", "none")):
        kept = [(n, height) for n, height in zip(sizes.sizes, sizes.heights, strict=True) if height > 0]
        if not kept:
            continue
        n, heights = (np.array(column) for column in zip(*kept, strict=True))
        axes.plot(n, heights, color=INK, marker=marker, fillstyle=fill, markersize=5, linestyle="none")
        guide = heights[0] * (n / n[0]) ** sizes.guide
        axes.plot(n, guide, color=INK, alpha=FAINT, linewidth=0.9, linestyle=":" if sizes.guide == -1 else "--")
        end: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points"}
        axes.annotate(f"N^{sizes.guide:g}", (n[-1], guide[-1]), fontsize=8, va="center", alpha=FAINT, **end)
        bottom = min(bottom, float(guide[-1]) / 1.3)
    axes.fill_between(info.means.sizes, bottom, info.means.noise, color=INK, alpha=0.1, linewidth=0)
    axes.set_ylim(bottom, top)
    axes.set_title("distance to the limit, RMS over updates")
    axes.set_xlabel("width (log scale)")
    axes.set_ylabel("share of the fall of the loss")
