"""Loss against parameters: the shapes of all axes, the line in the logarithm with its R^2, and the power law."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from hpxfer.analysis.statistics.scaling_fit import COUNTS, Count, LossFit, PowerLaw
from hpxfer.figures import style
from hpxfer.figures.chart import Block, Chart, Line, draw, key
from hpxfer.figures.kinds import SweepFigure
from hpxfer.figures.text import control_last, listed, why_none, with_interval
from hpxfer.verdict import CONTROL, NATS, JudgedLoss

NOTHING = "no shape has a result at a transferred HP"
TITLE_COUNT: Count = "active"  # the count that the title is about, where there is one
UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "k"))
LAW_POINTS = 60  # of a power law as it is drawn
LINES = (
    Line(y="loss_nats", se="se_nats", marker="arm", look={"linestyle": "none", "markersize": 6}),
    Line(y="line_nats", look={"linestyle": "--", "linewidth": 1.3}),
    Line(y="power_law_nats", look={"linestyle": ":", "linewidth": 1.5}),
)
Key = tuple[Count, str]  # of a law: how parameters are counted, and the parameterization


def fitted(fit: LossFit, params: float) -> float | None:
    """Return the loss on the line of a fit, or None if there is no line."""
    if fit.slope is None or fit.intercept is None:
        return None
    return fit.intercept + fit.slope * float(np.log2(params))


def parameters_block(
    fits: Sequence[LossFit], laws: Sequence[PowerLaw], judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> Block | str:
    """Return what the figure shows, or why there is none."""
    kept = [fit for fit in fits if fit.points]
    kept.sort(key=lambda fit: (COUNTS.index(fit.count), control_last(fit.parameterization, control)))
    with_slope = [fit for fit in kept if fit.slope is not None]
    if not with_slope:
        return why_none((fit.why_not for fit in fits), NOTHING)
    counts = [fit.count for fit in with_slope]
    count = TITLE_COUNT if TITLE_COUNT in counts else counts[0]
    slopes = [
        f"{fit.parameterization} {with_interval(fit.slope, fit.slope_low, fit.slope_high, '+.3f')}"
        + ("" if fit.r2 is None else f" (R2\u00a0{fit.r2:.2f})")
        for fit in with_slope
        if fit.slope is not None and fit.count == count
    ]
    law_of = {(law.count, law.parameterization): law for law in laws if law.floor is not None}
    columns = ["count", "parameterization", "axis", "shape", "params", "loss_nats", "se_nats"]
    columns += ["line_nats", "power_law_nats", "r2"]
    rows = [row for fit in kept for row in _rows(fit, law_of)]
    # A law bends between shapes, so that more points of it are drawn.
    bent = [row for fit in kept for row in _curve(fit, law_of)]
    names = sorted({fit.parameterization for fit in kept}, key=lambda name: control_last(name, control))
    titles = {
        count: style.wrapped(
            listed(
                [
                    f"{fit.parameterization} R2 {fit.r2:.2f}"
                    for fit in kept
                    if fit.count == count and fit.r2 is not None
                ],
                3,
            ),
            46,
        )
        for count in COUNTS
    }
    keys = [key("line in the log", linestyle="--")]
    keys += [key("saturating power law", linestyle=":")] if bent else []
    return Block(
        title=f"{judged.unit.capitalize()} per doubling of {count} parameters: {listed(slopes)}",
        caption="Loss at the HP transferred from the base, as a mean over seeds with two standard errors, against the "
        "logarithm of the parameters. Dashed: the least-squares line over all shapes. Dotted: the power law that "
        "saturates at a floor.",
        frame=pd.DataFrame(rows, columns=columns),
        drawn=pd.DataFrame([*rows, *bent], columns=columns),
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


def _rows(fit: LossFit, law_of: Mapping[Key, PowerLaw]) -> Iterator[dict[str, object]]:
    """Yield a row per shape, with the fitted losses."""
    law = law_of.get((fit.count, fit.parameterization))
    for point in fit.points:
        yield {
            "count": fit.count,
            "parameterization": fit.parameterization,
            "axis": point.axis,
            "shape": point.shape,
            "params": point.params,
            "loss_nats": point.loss,
            "se_nats": point.se,
            "r2": fit.r2,
            "line_nats": fitted(fit, point.params),
            "power_law_nats": None if law is None else law.loss(point.params),
        }


def _curve(fit: LossFit, law_of: Mapping[Key, PowerLaw]) -> Iterator[dict[str, object]]:
    if (law := law_of.get((fit.count, fit.parameterization))) is not None:
        params = [point.params for point in law.points]
        for at in np.geomspace(min(params), max(params), LAW_POINTS).tolist():
            where = {"count": fit.count, "parameterization": fit.parameterization}
            yield {**where, "params": at, "power_law_nats": law.loss(at)}


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
            analysis.found("loss_fits"), analysis.found("power_laws"), analysis.judged, analysis.control
        )
    },
    draw=draw,
)
