"""Load balance: how far the most uneven expert is from its fair share, against the HP, one color per scale.

Each arm has a panel, and all have one y-axis. So the rules of arms that balance differently stand side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from hpxfer.analysis.statistics.routers import LoadBalance
from hpxfer.figures import style
from hpxfer.figures.chart import Block, Chart, Line, draw
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.text import along, listed, octaves_of, shape_name, why_none
from hpxfer.verdict import CONTROL, scale_text

X_MARGIN = 0.4  # octaves
MOST_IN_TITLE = 2  # arms; of more, the title names the two with the smallest and the largest deviation
NOTHING = "no shape with experts has a curve of its load"


def balance_block(found: Sequence[LoadBalance], axis: str, control: str | None = CONTROL) -> Block | str:
    """Return what the figure of one axis shows, or why there is none."""
    of_axis = along(found, axis, control)
    lines = [
        (load.parameterization, line)
        for load in of_axis
        for line in sorted(load.lines, key=lambda line: (line.scale, line.is_base, line.value))
        if line.value > 0 and line.peak is not None and line.final is not None
    ]
    if not lines:
        return why_none((load.why_not for load in of_axis), NOTHING)
    scale, hp = of_axis[0].scale_name, of_axis[0].hp
    rows = [
        {
            "axis": axis,
            "arm": name,
            "shape": line.shape,
            "scale": line.scale,
            "x": math.log2(line.value),
            "final": (line.final or 0.0) / line.fair_share,
            "peak": (line.peak or 0.0) / line.fair_share,
            "diverged_seeds": line.num_diverged,
        }
        for name, line in lines
    ]
    frame = pd.DataFrame(rows)
    worst = frame.sort_values(["final", "scale", "x"]).groupby("arm").tail(1)
    said = {
        row["arm"]: f"{row['arm']} {row['final']:.2g} at {scale} {scale_text(row['scale'])}, {hp} 2^{row['x']:.3g}"
        for row in worst.to_dict("records")
    }
    names = list(said)
    if len(said) > MOST_IN_TITLE:
        named = f"least with {said[names[0]]}; most with {said[names[-1]]}"
    else:
        named = listed([said[name] for name in dict.fromkeys(frame["arm"])])
    top = max(1.08 * float(frame[["final", "peak"]].max().max()), 0.05)
    x_ends = frame["x"].min() - X_MARGIN, frame["x"].max() + X_MARGIN
    color_of = style.scale_colors(frame["scale"])

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
        panel="arm",
        looks={line.shape: (color_of[line.scale], "o") for _, line in sorted(lines, key=lambda of: of[1].scale)},
        names={line.shape: shape_name(line.scale, line.is_base) for _, line in lines},
        finish=lambda axes, *_: finish(axes),
    )
    return Block(
        title=f"Largest load deviation at the end of training, in fair shares: {named}",
        caption="The load of the expert that is furthest from its fair share, over all layers, in units of that share: "
        "at 1 an expert is never used, or gets twice its share. Solid lines show the mean over the last quarter of "
        "training, dashed lines the largest value at any time. Both are means over seeds.",
        frame=frame,
        headings={
            "axis": "axis",
            "arm": "parameterization",
            "scale": scale,
            "x": f"log2_{hp}",
            "final": "final",
            "peak": "peak",
            "diverged_seeds": "diverged_seeds",
        },
        charts=(chart,),
        foot=0.5,
        legend_columns=6,
        legend_title=scale,
    )


BALANCE = HPFigure(
    name="balance",
    question="Are all experts used alike?",
    infos=lambda given: {
        axis: balance_block(given.analysis.found("balance"), axis, given.analysis.control) for axis in given.axes
    },
    draw=draw,
    judged_only=True,
)
