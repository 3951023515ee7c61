"""Loss against parameters: the shapes of all axes, the line in the logarithm with its R^2, and the power law."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from hpxfer.analysis import Found
from hpxfer.analysis.statistics.scaling_fit import COUNTS, TITLE_COUNT, Count
from hpxfer.figures import style
from hpxfer.figures.chart import Block, Chart, Line, draw, key
from hpxfer.figures.kinds import SweepFigure
from hpxfer.figures.text import control_last, each, listed, rows_of, why_no_rows, with_interval
from hpxfer.host import CONTROL, NATS, JudgedLoss

NOTHING = "no shape has a result at a transferred HP"
UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "k"))
LINES = (
    Line(y="loss_nats", se="se_nats", marker="arm", look={"linestyle": "none", "markersize": 6}),
    Line(y="line_nats", look={"linestyle": "--", "linewidth": 1.3}),
    Line(y="power_law_nats", look={"linestyle": ":", "linewidth": 1.5}),
)


def parameters_block(
    found: Found, by_size: Found, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> Block | str:
    """Return what the figure shows, or why there is none. `found` are the lines, and `by_size` all points."""
    lines, drawn = (rows_of(of, None, control) for of in (found, by_size))
    order = drawn["count"].map(COUNTS.index).sort_values(kind="stable").index
    drawn, lines = drawn.loc[order], lines.loc[lines["count"].map(COUNTS.index).sort_values(kind="stable").index]
    if lines.empty:
        return why_no_rows(found, None, NOTHING)
    count = TITLE_COUNT if (lines["count"] == TITLE_COUNT).any() else lines["count"].iloc[0]
    slopes = [
        f"{row.parameterization} {with_interval(row.slope, row.slope_low, row.slope_high, '+.3f')}"
        + ("" if pd.isna(row.r2) else f" (R2\u00a0{row.r2:.2f})")
        for row in each(lines[lines["count"] == count])
    ]
    bent = drawn["shape"].isna()  # a law bends between shapes, so that there are points of it alone
    names = sorted(set(drawn["parameterization"]), key=lambda name: control_last(name, control))
    titles = {
        count: style.wrapped(listed([f"{row.parameterization} R2 {row.r2:.2f}" for row in each(of)], 3), 46)
        for count, of in lines[lines["r2"].notna()].groupby("count")
    }
    keys = [key("line in the log", linestyle="--")]
    keys += [key("saturating power law", linestyle=":")] if bent.any() else []
    return Block(
        title=f"{judged.unit.capitalize()} per doubling of {count} parameters: {listed(slopes)}",
        caption="Loss at the HP transferred from the base, as a mean over seeds with two standard errors, against the "
        "logarithm of the parameters. Dashed: the least-squares line over all shapes. Dotted: the power law that "
        "saturates at a floor.",
        frame=drawn[~bent],
        drawn=drawn,
        charts=(
            Chart(
                x="params",
                lines=LINES,
                color="parameterization",
                panel="count",
                looks=style.marks(names, control),
                titles=titles,
                keys=tuple(keys),
                finish=lambda axes, count, rows: _finish(axes, count, rows, judged.unit),
            ),
        ),
        judged=judged,
        height=2.8,
    )


def _finish(axes: Axes, count: Count, rows: pd.DataFrame, unit: str) -> None:
    params = sorted(set(rows.loc[rows["loss_nats"].notna(), "params"]))
    parameter_axis(axes, params, f"parameters, {count} (log scale)")
    axes.set_ylabel(f"loss ({unit})")


def parameter_axis(axes: Axes, params: Sequence[float], label: str) -> None:
    """Make x a log axis with a few round ticks, such as 30k or 1.2M."""
    low, high = min(params) / 1.15, max(params) * 1.15
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [digit * 10.0**power for power in range(14) for digit in (1, 2, 5)]
    inside = [tick for tick in ticks if low <= tick <= high]
    if len(inside) < 2:
        inside = [float(f"{tick:.2g}") for tick in MaxNLocator(3).tick_values(low, high) if low <= tick <= high]
    axes.xaxis.set_major_locator(FixedLocator(inside))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short(x)))
    axes.set_xlabel(label)


def short(number: float) -> str:
    """Return a count in few characters, e.g. `1.2M`."""
    return next((f"{number / unit:.3g}{name}" for unit, name in UNITS if number >= unit), f"{number:g}")


LOSS_PARAMETERS = SweepFigure(
    name="loss-parameters",
    question="How does the loss fall with the number of parameters?",
    infos=lambda results, analysis: {
        "": parameters_block(
            analysis.found("loss_fits"), analysis.found("losses_by_size"), analysis.judged, analysis.control
        )
    },
    draw=draw,
)
