"""The figures of a check: the slope of every quantity over the steps, one panel per role; and losses beside a limit.

The family mlp has those of its papers too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpxfer.coordinates.drawing import (
    BEYOND,
    GRAY,
    MISS,
    PREDICTED,
    UPDATES,
    Line,
    Page,
    Panel,
    draw,
    guides_of,
    has_slope,
    keys,
    scale_colors,
    slopes_of,
    span_of,
    verdict_title,
    whole_numbers,
)
from hpxfer.coordinates.limit_answer import Compared
from hpxfer.coordinates.measure import Fit
from hpxfer.coordinates.mlp.figures import layers_page, papers_page
from hpxfer.coordinates.report import AxisReport, CheckReport

# The palettes of Okabe and Ito, and of Tol, which color-blind readers can distinguish.
COLUMNS = 5
COLORS = {
    "activation": "#0072b2",
    "change": "#000000",
    "effective": "#d55e00",
    "propagating": "#009e73",
    "aggregate init": "#56b4e9",
    "aggregate effective": "#e69f00",
    "aggregate propagating": "#8fce00",
    "gradient": "#cc79a7",
    "gradient / eps": "#999933",
    "weight change": "#882255",
    "decay": "#44aa99",
}
OTHER = "0.3"
THIN = {"linewidth": 0.7, "markersize": 1.5}  # quantities without prediction
KNOWN = {"linewidth": 1.5, "markersize": 3.0}


def figures(report: CheckReport, axis: AxisReport) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) of an axis."""
    yield f"check-{axis.axis}", draw(check_page(report, axis))
    if report.architecture == "mlp":
        yield f"check-{axis.axis}-papers", draw(papers_page(report, axis))
        yield f"check-{axis.axis}-layers", draw(layers_page(report, axis))
    if axis.limit is not None and axis.limit.compared is not None and not axis.limit.compared.diverged:
        yield f"check-{axis.axis}-limit", draw(limit_page(report, axis, axis.limit.compared))


def check_page(report: CheckReport, axis: AxisReport) -> Page:
    """Return the figure of an axis with a panel per role. Predicted slopes are dashed."""
    order = {(judged.role, judged.quantity): index for index, judged in enumerate(axis.judged)}
    fits = [fit for fit in axis.shown if fit.layer is None and has_slope(fit)]
    fits.sort(key=lambda fit: (order[fit.role, fit.quantity], fit.step))
    lines = {
        role: tuple(_of_quantity(name, list(group)) for name, group in groupby(of, lambda fit: fit.quantity))
        for role, of in groupby(fits, key=lambda fit: fit.role)
    }
    every = [line for of_role in lines.values() for line in of_role]
    heights = [y for line in every for y in (*line.y, *line.predicted, *line.least) if y is not None] or [0.0]
    low, high = span_of(heights)
    columns = min(COLUMNS, max(len(lines), 1))

    def panel(at: int, role: str) -> Panel:
        return Panel(
            title=role,
            lines=lines[role],
            guides=guides_of(lines[role], BEYOND),
            x_label=UPDATES if at + columns >= len(lines) else "",
            y_label=f"exponent of {axis.scale_name}" if at % columns == 0 else "",
            finish=finish,
        )

    def finish(axes: Axes, _: Panel) -> None:
        axes.set_ylim(low, high)
        whole_numbers(axes)

    panels = [panel(at, role) for at, role in enumerate(lines)]
    return Page(
        title=verdict_title(report, axis),
        rows=tuple(tuple(panels[at : at + columns]) for at in range(0, len(panels), columns)),
        columns=columns,
        inches=(3.1, 2.3),
        spare=(0.4, 1.1),
        legend=tuple(_handles(every)) if every else (),
        legend_look={"ncols": 6},
        shared=True,
        band=0.12,
        guide={"color": GRAY, "linestyle": "--", "linewidth": 1.1, "zorder": 1},
    )


def _of_quantity(name: str, fits: Sequence[Fit]) -> Line:
    """Return the slopes as the figure of every check shows them: without a band where nothing is predicted."""
    crosses = tuple(fit.step for fit in fits if fit.verdict == "miss")
    more: dict[str, Any] = {"look": KNOWN} if fits[-1].predicted is not None else {"look": THIN, "low": (), "high": ()}
    return slopes_of(name, COLORS.get(name, OTHER), fits, crosses=crosses, **more)


def _handles(lines: Sequence[Line]) -> Iterator[Line2D]:
    names = {line.label for line in lines}
    known = {name: color for name, color in COLORS.items() if name in names}
    yield from keys({**known, **({"other": OTHER} if names.difference(COLORS) else {})})
    yield Line2D([], [], color=GRAY, linestyle="--", label="predicted")
    if any(line.predicted[-1] is None for line in lines):
        yield Line2D([], [], color=GRAY, linewidth=0.7, label="no prediction (thin)")
    if any(line.crosses for line in lines):
        yield Line2D([], [], color=MISS, marker="x", linestyle="none", label="miss")


def limit_page(report: CheckReport, axis: AxisReport, found: Compared) -> Page:
    """Return the figure of the losses beside their limit.

    Left: the loss over updates, one line per width, and the limit. Right: where the means over networks go as the width
    grows, less the limit, with two standard errors.
    """
    answer = axis.limit
    assert answer is not None, "losses are compared in an answer"
    colors, updates = scale_colors(found.widths), tuple(range(len(found.limit)))
    losses = [
        Line(label=f"{width:g}", color=colors[width], x=updates, y=means, errors=errors)
        for width, means, errors in zip(found.widths, found.means, found.errors, strict=True)
    ]
    losses.append(Line(label="limit", color="black", x=updates, y=found.limit, look={"marker": "", **PREDICTED}))
    most = max([abs(offset) + 2 * error for offset, error in zip(found.offsets, found.offset_errors, strict=True)])
    most = max(most, 0.05 * found.scale) * 1.1
    offsets = Line(
        label="",
        color=MISS if answer.missed else "black",
        x=updates,
        y=found.offsets,
        errors=tuple(2 * error for error in found.offset_errors),
        look={"capsize": 3},
    )

    def left(axes: Axes, _: Panel) -> None:
        axes.set_ylim(bottom=0)
        whole_numbers(axes)

    def right(axes: Axes, _: Panel) -> None:
        axes.axhline(0.0, color=GRAY, linewidth=0.7)
        axes.set_ylim(-most, most)
        whole_numbers(axes)

    verdict = {"ok": "losses approach the limit of", "miss": "losses MISS the limit of"}
    says = verdict.get(answer.verdict, "losses may approach the limit of")
    of_seeds, beyond = f"loss, mean over {found.seeds} networks", "extrapolated to infinite width, less the limit"
    return Page(
        title=f"{report.parameterization} along {axis.axis}, {report.optimizer}: {says} {answer.claim}",
        title_size=11,
        rows=(
            (
                Panel(title=of_seeds, lines=tuple(losses), x_label=UPDATES, finish=left),
                Panel(title=beyond, lines=(offsets,), x_label=UPDATES, finish=right),
            ),
        ),
        columns=2,
        inches=(4.2, 3.0),
        spare=(0.0, 0.9),
        legend=(
            *keys({f"{width:g}": color for width, color in colors.items()}),
            Line2D([], [], **PREDICTED, label=f"limit of {answer.claim}"),
        ),
        legend_look={"title": "width"},
    )
