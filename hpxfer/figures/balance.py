"""Load balance: how far the most uneven expert is from its fair share, against the HP, one color per scale.

Each arm has a panel, and all have one y-axis. So the rules of arms that balance differently stand side by side.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hpxfer.analysis import Found
from hpxfer.figures import style
from hpxfer.figures.chart import Block, Chart, Line, draw
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.text import each, listed, octaves_of, rows_of, shape_name, why_no_rows
from hpxfer.host import CONTROL, scale_text

X_MARGIN = 0.4  # octaves
MOST_IN_TITLE = 2  # arms; of more, the title names the two with the smallest and the largest deviation
NOTHING = "no shape with experts has a curve of its load"


def balance_block(found: Found, axis: str, control: str | None = CONTROL) -> Block | str:
    """Return what the figure of one axis shows, or why there is none."""
    rows = rows_of(found, axis, control)
    rows = rows[(rows["value"] > 0) & rows["final"].notna()]
    if rows.empty:
        return why_no_rows(found, axis, NOTHING)
    scale, hp = rows["scale_name"].iloc[0], rows["hp"].iloc[0]
    frame = rows.assign(x=np.log2(rows["value"].astype(float)))
    top = max(1.08 * float(frame[["final", "peak"]].max().max()), 0.05)
    x_ends = frame["x"].min() - X_MARGIN, frame["x"].max() + X_MARGIN
    shapes = frame.drop_duplicates("shape").sort_values("scale", kind="stable")
    color_of = style.scale_colors(shapes["scale"])

    def finish(axes: Axes) -> None:
        style.set_axes(axes, octaves_of(hp), "load deviation (fair shares)", x_ends=x_ends, y_ends=(0, top))
        style.whole_octaves(axes)

    chart = Chart(
        x="x",
        lines=(
            Line(y="peak", look={"linestyle": "--", "linewidth": 1.1, "alpha": 0.7}, name="largest at any time"),
            Line(y="final", marker="o", look={"linewidth": 1.8, "markersize": 4}),
        ),
        color="shape",
        panel="parameterization",
        looks={row.shape: (color_of[row.scale], "o") for row in each(shapes)},
        names={row.shape: shape_name(row.scale, row.is_base) for row in each(shapes)},
        finish=lambda axes, *_: finish(axes),
    )
    return Block(
        title=f"Largest load deviation at the end of training, in fair shares: {_most(frame, scale, hp)}",
        caption="The load of the expert that is furthest from its fair share, over all layers, in units of that share: "
        "at 1 an expert is never used, or gets twice its share. Solid lines show the mean over the last quarter of "
        "training, dashed lines the largest value at any time. Both are means over seeds.",
        frame=rows,
        drawn=frame,
        charts=(chart,),
        foot=0.5,
        legend_columns=6,
        legend_title=scale,
    )


def _most(frame: pd.DataFrame, scale: str, hp: str) -> str:
    """Return where each arm is most uneven at the end of training."""
    worst = frame.sort_values(["final", "scale", "x"]).drop_duplicates("parameterization", keep="last")
    said = {
        row.parameterization: f"{row.parameterization} {row.final:.2g} at {scale} {scale_text(row.scale)}, "
        f"{hp} 2^{row.x:.3g}"
        for row in each(worst)
    }
    names = list(said)
    if len(said) > MOST_IN_TITLE:
        return f"least with {said[names[0]]}; most with {said[names[-1]]}"
    return listed([said[name] for name in dict.fromkeys(frame["parameterization"])])


BALANCE = HPFigure(
    name="balance",
    question="Are all experts used alike?",
    infos=lambda given: {
        axis: balance_block(given.analysis.found("balance"), axis, given.analysis.control) for axis in given.axes
    },
    draw=draw,
    judged_only=True,
)
