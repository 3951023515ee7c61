"""Stability map: losses over an HP and a scale, with what diverged and the optimum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

from hpxfer.analysis.statistics.stability import StabilityMap
from hpxfer.figures import style
from hpxfer.figures.cells import Cells
from hpxfer.figures.chart import Block, draw
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.text import along, listed, octaves_of, why_none
from hpxfer.verdict import CONTROL, NATS, JudgedLoss, scale_text

NOTHING = "no trial has a result"


def stability_block(
    found: Sequence[StabilityMap], axis: str, hp: str, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> Block | str:
    """Return what the figure of one HP along one axis shows, or why there is none."""
    of_axis = along([cells for cells in found if cells.hp == hp], axis, control)
    kept = [cells for cells in of_axis if cells.why_not is None and cells.scales]
    if not kept:
        return why_none((cells.why_not for cells in of_axis), NOTHING)
    scale = kept[0].scale_name
    rows = [(axis, cells.parameterization, *cell) for cells in kept for cell in _cells(cells)]
    columns = ["axis", "arm", "row", "scale", "x", "rise_nats", "diverged_share", "optimum_log2"]
    frame = pd.DataFrame(rows, columns=columns).astype({"rise_nats": float, "diverged_share": float})
    if frame.empty:
        return NOTHING
    if frame["diverged_share"].any():
        distances = listed([_distance(cells) for cells in kept])
        title = f"Octaves of {hp} from the optimum to divergence along {axis}: {distances}"
    else:
        title = f"No seed diverged along {axis} at any {hp} of the grid"
    shares = frame["diverged_share"]
    frame = frame.assign(measured=shares.notna(), text=[f"{share:.0%}" if share > 0 else "" for share in shares])
    chart = Cells(
        x="x",
        y="row",
        rise="rise_nats",
        measured="measured",
        text="text",
        panel="arm",
        titles={cells.parameterization: _title(cells) for cells in kept},
        stars={
            cells.parameterization: [(at, i) for i, at in enumerate(cells.optima_log2) if at is not None]
            for cells in kept
        },
        judged=judged,
        finish=lambda axes, _, rows: _finish(axes, rows, scale, hp),
    )
    return Block(
        title=title,
        caption="Each cell is an HP at a scale. The color is the median loss over the best of its row, and the number "
        "is the share of seeds that diverged (a cross: at least half). The star is the optimum. That the edge of "
        "divergence stays put does not show that the optimum does.",
        frame=frame,
        headings={
            "axis": "axis",
            "arm": "parameterization",
            "scale": scale,
            "x": f"log2_{hp}",
            **{name: name for name in ("rise_nats", "diverged_share", "optimum_log2")},
        },
        charts=(chart,),
        judged=judged,
        height=1.3 + 0.34 * max(len(cells.scales) for cells in kept),
        legend_columns=3,
    )


def _cells(cells: StabilityMap) -> Iterator[tuple[float | None, ...]]:
    """Yield row, scale, log2 HP, rise over the best of the row, diverged share and optimum. An HP of 0 has no log2."""
    kept = [k for k, value in enumerate(cells.values) if value > 0]
    parts = (cells.scales, cells.losses, cells.diverged_share, cells.optima_log2)
    for row, (scale, losses, shares, optimum) in enumerate(zip(*parts, strict=True)):
        best = min((loss for k in kept if (loss := losses[k]) is not None), default=0.0)
        for k in kept:
            rise = None if (loss := losses[k]) is None else loss - best
            yield row, scale, math.log2(cells.values[k]), rise, shares[k], optimum


def _distance(cells: StabilityMap) -> str:
    known = [octaves for octaves in cells.distance_octaves if octaves is not None]
    if known:
        return f"{cells.parameterization} at least {min(known):.2g}"
    shares = [share for row in cells.diverged_share for share in row if share is not None]
    if all(shares):
        return f"{cells.parameterization} always diverges"
    return f"{cells.parameterization} " + ("unknown (no optimum there)" if any(shares) else "never diverged")


def _title(cells: StabilityMap) -> str:
    slope = cells.edge_octaves_per_doubling
    edge = "" if slope is None else f": edge moves {slope:+.2f} octaves per doubling"
    return style.wrapped(cells.parameterization + edge, 46)


def _finish(axes: Axes, rows: pd.DataFrame, scale: str, hp: str) -> None:
    ticks = rows.drop_duplicates("row")
    axes.set_yticks(ticks["row"], [scale_text(at) for at in ticks["scale"]])
    style.set_axes(axes, octaves_of(hp), scale)


STABILITY = HPFigure(
    name="stability",
    question="How far is the optimum from divergence?",
    infos=lambda given: {
        axis: stability_block(
            given.analysis.found("stability"), axis, given.report.hp, given.report.judged, given.report.control
        )
        for axis in given.axes
    },
    draw=draw,
    of_lines=True,
)
