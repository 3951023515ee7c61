"""Loss against parameters: the shapes of all axes, the line in the logarithm with its R^2, and the power law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from hpxfer.analysis.statistics.scaling_fit import COUNTS, Count, LossFit, PowerLaw
from hpxfer.figures import style
from hpxfer.figures.kinds import SweepFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import control_last, listed, why_none, with_interval
from hpxfer.verdict import CONTROL, NATS, JudgedLoss

NOTHING = "no shape has a result at a transferred HP"
TITLE_COUNT: Count = "active"  # the count that the title is about, where there is one
UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, kw_only=True)
class ParametersPanel:
    """One way to count parameters: the fits of all parameterizations, and their power laws where there are any."""

    count: Count
    fits: tuple[LossFit, ...]
    laws: tuple[PowerLaw, ...]


@dataclass(frozen=True, kw_only=True)
class ParametersInfo:
    """Loss against parameters at the transferred HP."""

    title: str
    panels: tuple[ParametersPanel, ...]
    judged: JudgedLoss = NATS
    control: str | None = CONTROL
    caption: str = (
        "Loss at the HP transferred from the base, as a mean over seeds with two standard errors, against the "
        "logarithm of the parameters. Dashed: the least-squares line over all shapes. Dotted: the power law that "
        "saturates at a floor."
    )

    def table(self) -> pd.DataFrame:
        """Return one row per shape, with the fitted losses."""
        rows = []
        for panel in self.panels:
            law_of = {law.parameterization: law for law in panel.laws}
            for fit in panel.fits:
                law = law_of.get(fit.parameterization)
                for point in fit.points:
                    line = fitted(fit, point.params)
                    power = None if law is None else law.loss(point.params)
                    where = (panel.count, fit.parameterization, point.axis, point.shape, point.params)
                    rows.append((*where, point.loss, point.se, line, power, fit.r2))
        columns = ["count", "parameterization", "axis", "shape", "params", "loss_nats", "se_nats"]
        return pd.DataFrame(rows, columns=[*columns, "line_nats", "power_law_nats", "r2"]).rename(
            columns=self.judged.column
        )


def fitted(fit: LossFit, params: float) -> float | None:
    """Return the loss on the line of a fit, or None if there is no line."""
    if fit.slope is None or fit.intercept is None:
        return None
    return fit.intercept + fit.slope * float(np.log2(params))


def parameters_info(
    fits: Sequence[LossFit], laws: Sequence[PowerLaw], judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> ParametersInfo | str:
    """Return what the figure shows, or why there is none."""
    panels = []
    for count in COUNTS:
        of_count = [fit for fit in fits if fit.count == count and fit.points]
        of_count.sort(key=lambda fit: control_last(fit.parameterization, control))
        if of_count:
            kept = tuple(law for law in laws if law.count == count and law.floor is not None)
            panels.append(ParametersPanel(count=count, fits=tuple(of_count), laws=kept))
    with_slope = [panel for panel in panels if any(fit.slope is not None for fit in panel.fits)]
    if not with_slope:
        return why_none((fit.why_not for fit in fits), NOTHING)
    first = next((panel for panel in with_slope if panel.count == TITLE_COUNT), with_slope[0])
    slopes = [
        f"{fit.parameterization} {with_interval(fit.slope, fit.slope_low, fit.slope_high, '+.3f')}"
        + ("" if fit.r2 is None else f" (R2\u00a0{fit.r2:.2f})")
        for fit in first.fits
        if fit.slope is not None
    ]
    title = f"{judged.unit.capitalize()} per doubling of {first.count} parameters: {listed(slopes)}"
    return ParametersInfo(title=title, panels=tuple(panels), judged=judged, control=control)


def draw_parameters(info: ParametersInfo) -> Figure:
    """Return the figure: one panel per way to count."""
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), height=2.8, foot=0.6)
        names = [fit.parameterization for panel in info.panels for fit in panel.fits]
        look_of = style.marks(sorted(set(names), key=lambda name: control_last(name, info.control)), info.control)
        for axes, panel in zip(grid, info.panels, strict=True):
            _draw_panel(axes, panel, look_of)
            axes.set_ylabel(f"loss ({info.judged.unit})")
        handles = [
            Line2D([], [], color=color, marker=marker, linestyle="none", label=name)
            for name, (color, marker) in look_of.items()
        ]
        handles.append(Line2D([], [], color=INK, alpha=FAINT, linestyle="--", label="line in the log"))
        if any(panel.laws for panel in info.panels):
            handles.append(Line2D([], [], color=INK, alpha=FAINT, linestyle=":", label="saturating power law"))
        style.legend_below(figure, handles, columns=4)
    return figure


def _draw_panel(axes: Axes, panel: ParametersPanel, look_of: dict[str, tuple[str, str]]) -> None:
    params = sorted({point.params for fit in panel.fits for point in fit.points})
    for fit in panel.fits:
        color, marker = look_of[fit.parameterization]
        for point in fit.points:
            axes.plot(point.params, point.loss, marker=marker, color=color, markersize=6, linestyle="none", zorder=3)
            style.error_bar(axes, point.params, point.loss, point.se, color)
        if fit.slope is not None:
            ends = _range(fit)
            axes.plot(ends, [fitted(fit, end) or 0.0 for end in ends], color=color, linestyle="--", linewidth=1.3)
    for law in panel.laws:
        x = np.geomspace(*_range(law), 60)
        y = [law.loss(float(count)) or 0.0 for count in x]
        axes.plot(x, y, color=look_of[law.parameterization][0], linestyle=":", linewidth=1.5)
    r2 = [f"{fit.parameterization} R2 {fit.r2:.2f}" for fit in panel.fits if fit.r2 is not None]
    axes.set_title(style.wrapped(listed(r2, 3), 46))
    parameter_axis(axes, params, f"parameters, {panel.count} (log scale)")


def _range(fit: LossFit | PowerLaw) -> tuple[float, float]:
    """Return the range of parameters that a fit was made from. The fit is drawn no further."""
    params = [point.params for point in fit.points]
    return min(params), max(params)


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
        "": parameters_info(
            analysis.found("loss_fits"), analysis.found("power_laws"), analysis.judged, analysis.control
        )
    },
    draw=draw_parameters,
)
