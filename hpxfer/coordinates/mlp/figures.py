"""The figures of the papers on the family mlp.

papers    as MSSP, Figures Q.18 to Q.43: sizes and exponents over the steps, one line per scale, role or piece
layers    as Why Routers Freeze, Figures 3 to 6: sizes against the scale, one line per step
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from hpxfer.coordinates.drawing import (
    BEYOND,
    GRAY,
    MISS,
    PREDICTED,
    UPDATES,
    Guides,
    Line,
    Page,
    Panel,
    guides_of,
    has_slope,
    keys,
    log_sizes,
    scale_colors,
    slopes_of,
    span_of,
    step_colors,
    verdict_title,
    whole_numbers,
)
from hpxfer.coordinates.measure import Fit
from hpxfer.coordinates.mlp.measures import ACCURACY, LOSS, PROBE
from hpxfer.coordinates.report import AxisReport, CheckReport

Finish = Callable[[Axes, Panel], object]
Asked = tuple[str, str, str, str, str]  # label, color and style of a line, and its role and quantity

# The layout of MSSP.
ROLES = {
    "embedding": ("#999933", "input"),
    "router": ("#d55e00", "router"),
    "expert_in": ("#0072b2", "expert in"),
    "expert_out": ("#009e73", "expert out"),
    "readout": ("#cc79a7", "readout"),
}
FORWARD = ("A1", "A2", "A3", "D")
BACKWARD = ("A4", "A5", "A6", "E")
PIECE_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
SUFFIX_STYLES = {"": "-", ".1": ":", ".2": "-"}  # through the initial readout, and through its update
MIN_RATIO = 3.0  # of the limits of a size, so that noise of a few percent looks flat
MOST_EXPONENT = 4.0  # a noisy slope beyond this would flatten all others
HEADROOM = 0.35  # of a panel of exponents, above its lines: there the legend covers nothing
LEGEND: dict[str, Any] = {
    "fontsize": 6.5,
    "frameon": False,
    "loc": "upper center",
    "ncols": 5,
    "handlelength": 1.0,
    "columnspacing": 0.7,
}
ENTROPY = "entropy_of_all"

# The layout of Why Routers Freeze. Title -> role, quantity of the change, quantity of the activation.
LAYERS = {
    "input features h1": ("embedding", "change", "activation"),
    "router logits": ("router", "change", "logits"),
    "gates": ("router", "gate: change", "gate"),
    "single experts": ("expert_out", "change", "activation"),
    "experts' sum h3": ("expert_out", "h3: change", "h3"),
    "output f": ("readout", "change", "activation"),
}
LAYER_RATIO = 10.0


def papers_page(report: CheckReport, axis: AxisReport) -> Page:
    """Return the figure in the layout of MSSP. A panel without a line is left out.

    Row 1 has the loss, the accuracy, what the last features moved by, and the router's logits. Rows 2 and 3 have the
    exponents of propagating and effective updates, of the pieces of both passes, and of gradients. The last column adds
    the router's entropy and gradients in units of eps, which Why Routers Freeze speaks of. Row 4 has the sizes behind
    the exponents, at the largest scale.
    """
    whole = [fit for fit in axis.shown if fit.layer is None]
    last_block = max((fit.layer for fit in axis.fits if fit.layer is not None), default=None)
    last = [fit for fit in axis.shown if fit.layer == last_block]
    colors = scale_colors(axis.scales)
    by_scale, by_role = partial(_by_scale, report.steps, colors), partial(_exponents, report.steps, whole)
    at_largest = partial(_largest, report.steps, whole, f"{axis.scale_name} {max(axis.scales):g}")
    sizes, share = partial(log_sizes, min_ratio=MIN_RATIO), lambda axes, _: axes.set_ylim(-0.04, 1.04)
    of_sum, of_input = (
        _pieces("expert_out", "h3", FORWARD, ("",)),
        _pieces("expert_in", "df/dh1", BACKWARD, (".1", ".2")),
    )
    rows = (
        (
            by_scale("training loss (probe)", _values(axis, LOSS, PROBE)),
            by_scale("accuracy (probe)", _values(axis, ACCURACY, PROBE), share),
            by_scale("RMS of the change of the last features", _sizes(last, "expert_out", "h3: change"), sizes),
            by_scale("RMS of the router's logits", _sizes(whole, "router", "logits"), sizes),
        ),
        (
            by_role("propagating update", _by_role("propagating", "propagating")),
            # The input of the input layer never moves, so that its change is its effective update.
            by_role("effective update", _by_role("effective", "change")),
            by_role("effective update / input", _by_role("effective / input", "change")),
            by_scale("router entropy / log M", _values(axis, ENTROPY, "router")),
        ),
        (
            by_role("forward: pieces of the experts' sum", of_sum, least=2),  # a single piece is no decomposition
            by_role("backward: pieces of df/dh1", of_input, least=2),
            by_role("gradient", _by_role("gradient", "gradient")),
            by_role("gradient / eps (Adam)", _by_role("gradient / eps", "gradient / eps")),
        ),
        (
            at_largest("propagating update", _by_role("propagating", "propagating")),
            at_largest("effective update", _by_role("effective", "change")),
            at_largest("forward: pieces of the experts' sum", of_sum, least=2),
            at_largest("backward: pieces of df/dh1", of_input, least=2),
        ),
    )
    legend = keys({f"{scale:g}": color for scale, color in colors.items()})
    return Page(
        title=verdict_title(report, axis),
        rows=tuple(kept for row in rows if (kept := tuple(panel for panel in row if panel.lines))),
        columns=4,
        inches=(3.5, 2.7),
        spare=(0.0, 0.9),
        legend=(*legend, Line2D([], [], **PREDICTED, label="predicted exponent, where it is not 0")),
        legend_look={"title": axis.scale_name},
    )


def _values(axis: AxisReport, name: str, role: str) -> Iterator[tuple[int, float, float]]:
    """Yield (step, scale, value) of a measure."""
    own = (each for each in axis.measures if (each.measure, each.role, each.layer) == (name, role, None))
    yield from ((each.step, *at) for each in own for at in zip(each.scales, each.values, strict=True))


def _sizes(fits: Sequence[Fit], role: str, quantity: str) -> Iterator[tuple[int, float, float]]:
    """Yield (step, scale, size) of a quantity, without exact zeros."""
    own = (fit for fit in fits if (fit.role, fit.quantity) == (role, quantity))
    yield from ((fit.step, *at) for fit in own for at in zip(fit.scales, fit.magnitudes, strict=True) if at[1])


def _by_role(quantity: str, of_input: str) -> list[Asked]:
    """Return one line per role. `of_input` is that of the input layer."""
    return [
        (label, color, "-", role, of_input if role == "embedding" else quantity)
        for role, (color, label) in ROLES.items()
    ]


def _pieces(role: str, of: str, names: Sequence[str], suffixes: Sequence[str]) -> list[Asked]:
    """Return one line per piece of a sum."""
    return [
        (f"{name}{suffix}", color, SUFFIX_STYLES[suffix], role, f"{of}: {name}{suffix}")
        for name, color in zip(names, PIECE_COLORS, strict=True)
        for suffix in suffixes
    ]


def _by_scale(
    steps: int,
    colors: Mapping[float, str],
    title: str,
    found: Iterable[tuple[int, float, float]],
    finish: Finish | None = None,
) -> Panel:
    """Return a panel over the steps with one line per scale."""
    series: dict[float, dict[int, float]] = {scale: {} for scale in colors}
    for step, scale, value in sorted(found):
        if math.isfinite(value):
            series[scale][step] = value
    lines = [
        Line(label=f"{scale:g}", color=colors[scale], x=tuple(of), y=tuple(of.values()), look=_thin(steps, len(of)))
        for scale, of in series.items()
        if of
    ]
    return _over_steps(steps, title, lines, finish)


def _exponents(steps: int, fits: Sequence[Fit], title: str, asked: Sequence[Asked], *, least: int = 1) -> Panel:
    """Return a panel of exponents over the steps. Fewer lines than `least` are none."""
    lines = []
    for label, color, style, role, quantity in asked:
        own = sorted(
            (fit for fit in fits if (fit.role, fit.quantity) == (role, quantity) and has_slope(fit)),
            key=lambda fit: fit.step,
        )
        if own:
            lines.append(slopes_of(label, color, own, look={"linestyle": style, **_thin(steps, len(own))}))
    guides = guides_of(lines, _beyond(steps))
    guides = tuple(each for each in guides if each[1][0])  # zero has a line of its own

    def finish(axes: Axes, panel: Panel) -> None:
        heights = [y for line in panel.lines for y in line.y if abs(y) <= MOST_EXPONENT]
        low, high = span_of([*heights, *(y for _, (y, _) in panel.guides), 0.0])
        axes.set_ylim(low, high + HEADROOM * (high - low))
        axes.axhline(0.0, color=GRAY, linewidth=0.7, zorder=1)
        axes.legend(**LEGEND)

    return _over_steps(steps, f"exponent: {title}", lines if len(lines) >= least else [], finish, guides)


def _largest(
    steps: int, fits: Sequence[Fit], where: str, title: str, asked: Sequence[Asked], *, least: int = 1
) -> Panel:
    """Return a panel of sizes over the steps at the largest scale. Fewer lines than `least` are none."""
    lines = []
    for label, color, style, role, quantity in asked:
        last = {step: size for step, _, size in sorted(_sizes(fits, role, quantity)) if math.isfinite(size)}
        if last:
            look = {"linestyle": style, **_thin(steps, len(last))}
            lines.append(Line(label=label, color=color, x=tuple(last), y=tuple(last.values()), look=look))

    def finish(axes: Axes, panel: Panel) -> None:
        log_sizes(axes, panel, MIN_RATIO)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** HEADROOM)
        axes.legend(**LEGEND)

    return _over_steps(steps, f"RMS at {where}: {title}", lines if len(lines) >= least else [], finish)


def _over_steps(steps: int, title: str, lines: Sequence[Line], finish: Finish | None, guides: Guides = ()) -> Panel:
    def ended(axes: Axes, panel: Panel) -> None:
        axes.set_xlim(-1.2 * _beyond(steps), steps + 1.2 * _beyond(steps))
        whole_numbers(axes)
        if finish is not None:
            finish(axes, panel)

    return Panel(title=title, lines=tuple(lines), guides=guides, x_label=UPDATES, finish=ended)


def _beyond(steps: int) -> float:
    return max(BEYOND, 0.03 * steps)


def _thin(steps: int, num: int) -> dict[str, Any]:
    return {"linewidth": 1.4, "marker": "o" if steps <= 10 or num == 1 else "", "markersize": 2.5}


def layers_page(report: CheckReport, axis: AxisReport) -> Page:
    """Return the figure of sizes against the scale: the change since the start above, the activation below.

    A title names the slope at the last step with its interval, and a dashed line has the slope that is predicted there.
    """
    steps = shown_steps(report.steps)
    fits = [fit for fit in axis.shown if fit.layer is None]
    colors = step_colors((0, *steps))
    scales = tuple(sorted(axis.scales))

    def row(what: str, at: int, steps: Sequence[int], x_label: str) -> tuple[Panel, ...]:
        panels = (
            _layer(name, fits, of[0], of[at], {step: colors[step] for step in steps}, scales)
            for name, of in LAYERS.items()
        )
        return tuple(
            replace(panel, x_label=x_label, y_label="" if i else what, label_size=9) for i, panel in enumerate(panels)
        )

    legend = keys({f"{step}": color for step, color in colors.items()})
    return Page(
        title=verdict_title(report, axis),
        rows=(row("RMS of the change", 1, steps, ""), row("RMS", 2, (0, *steps), axis.scale_name)),
        columns=len(LAYERS),
        inches=(2.75, 2.6),
        spare=(0.0, 1.0),
        legend=(*legend, Line2D([], [], **PREDICTED, label="predicted slope at the last step")),
        legend_look={"title": UPDATES},
    )


def shown_steps(last: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... and the last step."""
    powers = [2**power for power in range(last.bit_length()) if 2**power < last]
    return (*powers, last)


def _layer(
    name: str, fits: Sequence[Fit], role: str, quantity: str, colors: Mapping[int, str], scales: Sequence[float]
) -> Panel:
    own = {fit.step: fit for fit in fits if (fit.role, fit.quantity) == (role, quantity)}
    lines = []
    for step, color in colors.items():
        points = [] if step not in own else list(zip(own[step].scales, own[step].magnitudes, strict=True))
        if known := [(scale, size) for scale, size in points if size > 0 and math.isfinite(size)]:
            x, y = zip(*known, strict=True)
            lines.append(Line(label=f"{step}", color=color, x=x, y=y))
    last = own.get(max(colors))
    slope = _slope_text(last)

    def finish(axes: Axes, panel: Panel) -> None:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(list(scales)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(scales[0] / 1.15, scales[-1] * 1.15)
        log_sizes(axes, panel, LAYER_RATIO)
        if not panel.lines:
            axes.text(0.5, 0.5, slope, transform=axes.transAxes, ha="center", va="center", fontsize=8, color=GRAY)

    missed = last is not None and last.verdict == "miss"
    return Panel(
        title=f"{name}\n{slope}",
        title_look={"fontsize": 8.5, "color": MISS if missed else "black"},
        lines=tuple(lines),
        guides=_guide(last),
        finish=finish,
    )


def _slope_text(fit: Fit | None) -> str:
    if fit is None:
        return "not measured"
    if not any(fit.magnitudes):
        return "exactly zero"
    if fit.slope is None or fit.low is None or fit.high is None:
        return "no slope"
    return f"slope {fit.slope:+.2f} [{fit.low:+.2f}, {fit.high:+.2f}]"


def _guide(fit: Fit | None) -> Guides:
    """Return the ends (scales, sizes) of a line of the predicted slope through the middle of the points."""
    if fit is None or fit.slope is None or fit.predicted is None:
        return ()
    kept = [(scale, size) for scale, size in zip(fit.scales, fit.magnitudes, strict=True) if size > 0]
    x, y = np.mean(np.log(kept), axis=0)
    first, last = (math.exp(y + fit.predicted * (math.log(end) - x)) for end, _ in (kept[0], kept[-1]))
    return (((kept[0][0], kept[-1][0]), (first, last)),)
