"""Stability map: HP by scale, colored by loss, with what diverged and where the optimum lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpxfer.analysis.stability import StabilityMap
from hpxfer.analysis.text import scale_text
from hpxfer.figures import style
from hpxfer.figures.cells import cell_edges, cell_handles, draw_cell, draw_star
from hpxfer.figures.words import along, listed, why

NOTHING = "no trial has a result"
RISE_QUANTILE = 0.75  # of the rises over the best of each scale: what is further up has the lightest color
MIN_RISE = 1e-3  # nats


@dataclass(frozen=True, kw_only=True)
class StabilityPanel:
    """One parameterization. Rows are scales, columns log2 HPs; `rise_nats` is the loss over the best of its scale."""

    parameterization: str
    title: str
    scales: tuple[float, ...]
    x: tuple[float, ...]
    rise_nats: tuple[tuple[float | None, ...], ...]  # None: no result, or diverged
    diverged_share: tuple[tuple[float | None, ...], ...]  # None: no result
    optima: tuple[float | None, ...]  # log2


@dataclass(frozen=True, kw_only=True)
class StabilityInfo:
    """The maps of one HP along one axis."""

    title: str
    hp: str
    axis: str
    scale_name: str
    top_nats: float  # the rise with the lightest color
    panels: tuple[StabilityPanel, ...]
    caption: str = (
        "Every cell is an HP at a scale: the color is the median loss over the best of its row, the number the share "
        "of seeds that diverged (a cross: at least half). The star is the optimum. Transferring the edge of divergence "
        "is not transfer: the optimum has to keep away from it."
    )

    def table(self) -> pd.DataFrame:
        """Return the cells drawn, a row each."""
        rows = [
            (self.axis, panel.parameterization, scale, x, rise, share, optimum)
            for panel in self.panels
            for scale, rises, shares, optimum in zip(
                panel.scales, panel.rise_nats, panel.diverged_share, panel.optima, strict=True
            )
            for x, rise, share in zip(panel.x, rises, shares, strict=True)
        ]
        columns = ["axis", "parameterization", self.scale_name, f"log2_{self.hp}", "rise_nats", "diverged_share"]
        return pd.DataFrame(rows, columns=[*columns, "optimum_log2"])


def stability_info(found: Sequence[StabilityMap], axis: str, hp: str) -> StabilityInfo | str:
    """Return what the figure of one HP along one axis shows, or why there is none."""
    of_axis = along([one for one in found if one.hp == hp], axis)
    kept = [one for one in of_axis if one.why_not is None and one.scales]
    if not kept:
        return why((one.why_not for one in of_axis), NOTHING)
    panels = tuple(_panel(one) for one in kept)
    rises = [rise for panel in panels for row in panel.rise_nats for rise in row if rise is not None]
    calm = not any(share for panel in panels for row in panel.diverged_share for share in row)
    return StabilityInfo(
        title=f"No seed diverged along {axis} at any {hp} of the grid"
        if calm
        else f"Octaves of {hp} from the optimum to divergence along {axis}: {listed([_said(one) for one in kept])}",
        hp=hp,
        axis=axis,
        scale_name=kept[0].scale_name,
        top_nats=max(float(np.quantile(rises, RISE_QUANTILE)) if rises else 0.0, MIN_RISE),
        panels=panels,
    )


def _said(one: StabilityMap) -> str:
    known = [away for away in one.distance_octaves if away is not None]
    if known:
        return f"{one.parameterization} at least {min(known):.2g}"
    shares = [share for row in one.diverged_share for share in row if share is not None]
    if all(shares):
        return f"{one.parameterization} always diverges"
    return f"{one.parameterization} " + ("unknown (no optimum there)" if any(shares) else "never diverged")


def _panel(one: StabilityMap) -> StabilityPanel:
    columns = [k for k, value in enumerate(one.values) if value > 0]
    rises = []
    for row in one.losses:
        best = min((row[k] for k in columns if row[k] is not None), default=None)  # type: ignore[type-var]
        rises.append(tuple(None if (loss := row[k]) is None or best is None else loss - best for k in columns))
    slope = one.edge_octaves_per_doubling
    edge = "" if slope is None else f": edge moves {slope:+.2f} octaves per doubling"
    return StabilityPanel(
        parameterization=one.parameterization,
        title=one.parameterization + edge,
        scales=one.scales,
        x=tuple(math.log2(one.values[k]) for k in columns),
        rise_nats=tuple(rises),
        diverged_share=tuple(tuple(row[k] for k in columns) for row in one.diverged_share),
        optima=one.optima_log2,
    )


def draw_stability(info: StabilityInfo) -> Figure:
    """Return the figure: a panel a parameterization."""
    rows = max(len(panel.scales) for panel in info.panels)
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), height=1.3 + 0.34 * rows, foot=0.6)
        for axes, panel in zip(grid, info.panels, strict=True):
            _draw_panel(axes, info, panel)
        figure.legend(handles=_handles(info), loc="outside lower center", ncols=3)
    return figure


def _draw_panel(axes: Axes, info: StabilityInfo, panel: StabilityPanel) -> None:
    axes.set_title(style.wrapped(panel.title, 46))
    axes.grid(visible=False)
    edges = cell_edges(panel.x)
    rows = zip(panel.rise_nats, panel.diverged_share, panel.optima, strict=True)
    for i, (rises, shares, optimum) in enumerate(rows):
        for k, (rise, share) in enumerate(zip(rises, shares, strict=True)):
            draw_cell(
                axes,
                (edges[k], edges[k + 1]),
                (i - 0.5, i + 0.5),
                None if rise is None else rise / info.top_nats,
                measured=share is not None,
                text=f"{share:.0%}" if share else "",
            )
        if optimum is not None:
            draw_star(axes, optimum, i)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(-0.5, len(panel.scales) - 0.5)
    axes.set_yticks(range(len(panel.scales)), [scale_text(scale) for scale in panel.scales])
    axes.set_ylabel(info.scale_name)
    axes.set_xlabel(f"log2 {info.hp}")
    style.whole_octaves(axes)


def _handles(info: StabilityInfo) -> list[Artist]:
    shares = [share for panel in info.panels for row in panel.diverged_share for share in row]
    return cell_handles(
        info.top_nats,
        star="optimum" if any(one is not None for panel in info.panels for one in panel.optima) else None,
        diverged=any(share is not None and share >= 0.5 for share in shares),
        missing=any(share is None for share in shares),
    )
