"""Stability map: losses over an HP and a scale, with what diverged and the optimum."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hpxfer.analysis import Found
from hpxfer.analysis.statistics.stability import distance
from hpxfer.figures import style
from hpxfer.figures.cells import Cells
from hpxfer.figures.chart import Block, draw
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.text import listed, octaves_of, rows_of, why_no_rows
from hpxfer.host import CONTROL, NATS, JudgedLoss, scale_text

NOTHING = "no trial has a result"


def stability_block(
    found: Found, axis: str, hp: str, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> Block | str:
    """Return what the figure of one HP along one axis shows, or why there is none. An HP of 0 has no log2."""
    rows = rows_of(found, axis, control)
    rows = rows[(rows["hp"] == hp) & (rows["value"] > 0)]
    if rows.empty:
        return why_no_rows(found, axis, NOTHING)
    scale = rows["scale_name"].iloc[0]
    by_shape = rows.groupby(["parameterization", "shape"], sort=False)
    shares = rows["diverged_share"].astype(float)
    frame = rows.assign(
        x=np.log2(rows["value"].astype(float)),
        row=by_shape.ngroup() - by_shape.ngroup().groupby(rows["parameterization"]).transform("min"),
        rise_nats=rows["loss_nats"].astype(float) - by_shape["loss_nats"].transform("min").astype(float),
        measured=shares.notna(),
        text=[f"{share:.0%}" if share > 0 else "" for share in shares],
    )
    by_arm = list(frame.groupby("parameterization", sort=False))
    if (shares > 0).any():
        distances = listed([distance(str(name), arm) for name, arm in by_arm])
        title = f"Octaves of {hp} from the optimum to divergence along {axis}: {distances}"
    else:
        title = f"No seed diverged along {axis} at any {hp} of the grid"
    optima = frame[frame["optimum_log2"].notna()].drop_duplicates(["parameterization", "shape"])
    chart = Cells(
        x="x",
        y="row",
        rise="rise_nats",
        measured="measured",
        text="text",
        panel="parameterization",
        titles={name: _title(str(name), arm) for name, arm in by_arm},
        stars={
            name: list(zip(arm["optimum_log2"].astype(float), arm["row"], strict=True))
            for name, arm in optima.groupby("parameterization")
        },
        judged=judged,
        finish=lambda axes, _, rows: _finish(axes, rows, scale, hp),
    )
    return Block(
        title=title,
        caption="Each cell is an HP at a scale. The color is the median loss over the best of its row, and the number "
        "is the share of seeds that diverged (a cross: at least half). The star is the optimum. That the edge of "
        "divergence stays put does not show that the optimum does.",
        frame=rows,
        drawn=frame,
        charts=(chart,),
        judged=judged,
        height=1.3 + 0.34 * (1 + int(frame["row"].max())),
        legend_columns=3,
    )


def _title(name: str, cells: pd.DataFrame) -> str:
    slope = cells["edge_octaves_per_doubling"].iloc[0]
    edge = "" if pd.isna(slope) else f": edge moves {slope:+.2f} octaves per doubling"
    return style.wrapped(name + edge, 46)


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
