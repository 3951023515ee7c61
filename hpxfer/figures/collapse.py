"""Loss collapse: the curves of all shapes over one another, and beside them how far apart they are against the noise.

One figure shows losses over steps, with marks where the curves part. The other shows normalized losses over fractions
of training (arXiv 2507.02119).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hpxfer.analysis.statistics.collapse import Collapse
from hpxfer.figures import style
from hpxfer.figures.chart import Block, Chart, Line, draw, key
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import along, listed, shape_name, why_none
from hpxfer.verdict import COLLAPSE_SHARE, CONTROL, NATS, JudgedLoss, hp_text, scale_text

NOTHING = "no loss curves"
LEAST = 1e-4  # smallest spread that is shown on the log axis, as a fraction of the largest
TITLE_CHARACTERS = 46  # in a line of a panel's title
# How far apart curves are, and how the step from which they are is marked.
BEYOND, APART = "more than seeds", f"more than {COLLAPSE_SHARE:.0%} of the loss"
PARTING = {BEYOND: ":", APART: "-."}
NOISE = "from seeds alone"
BETWEEN, SEEDS = "between shapes", "between seeds alone"


def collapse_block(
    found: Sequence[Collapse], axis: str, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> Block | str:
    """Return what the figure of losses over steps along one axis shows, or why there is none."""
    of_axis = along(found, axis, control)
    kept = [curves for curves in of_axis if curves.why_not is None and curves.curves]
    if not kept:
        return why_none((curves.why_not for curves in of_axis), NOTHING)
    parts = listed([f"{curves.parameterization} {_parts(curves)}" for curves in kept])
    x, y, spread = "step", f"training loss ({judged.unit})", f"standard deviation ({judged.unit})"
    rows = [
        (axis, curves.parameterization, curve.shape, curve.scale, *point, curve.diverged_step is not None and last)
        for curves in kept
        for curve in curves.curves
        for *point, last in _points(curves.steps, curve.losses, curves.spread_nats, curves.noise_nats)
    ]
    return _block(
        kept,
        rows,
        (x, y, spread),
        title=f"Training losses of {_compared(kept[0])} at one {kept[0].hp} part beyond the seeds' noise: {parts}",
        caption="Compared are the training losses of all shapes at the same step and at the same HP, the one "
        "transferred from the base; each curve is a mean over seeds and windows of steps. Right: the standard "
        "deviation between these curves, and the one that seeds alone would cause. Lines mark the step from which "
        f"shapes differ by more than seeds do, and by more than {COLLAPSE_SHARE:.0%} of the loss. With two seeds the "
        "noise is poorly known, so that only a large difference stands out from it.",
        titles={curves.parameterization: _title(curves) for curves in kept},
        parting={curves.parameterization: _parting(curves) for curves in kept},
    )


def normalized_block(
    found: Sequence[Collapse], axis: str, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> Block | str:
    """Return what the figure of normalized losses along one axis shows, or why there is none."""
    of_axis = along(found, axis, control)
    kept = [curves for curves in of_axis if curves.why_not is None and curves.shares and curves.deviation]
    if not kept:
        return why_none((curves.why_not for curves in of_axis), NOTHING)
    phrases = [
        f"{curves.parameterization} "
        + ("unknown (one seed)" if curves.below_noise is None else f"for {curves.below_noise:.0%} of training")
        for curves in kept
    ]
    floors = dict.fromkeys(
        f"{curves.floor_nats or 0:.3g} {judged.unit} ({curves.floor_from or 'none'})" for curves in kept
    )
    rows = [
        (axis, curves.parameterization, curve.shape, curve.scale, *point, False)
        for curves in kept
        for curve in curves.curves
        for *point, _ in _points(curves.shares, curve.normalized, curves.deviation, curves.noise_floor)
    ]
    return _block(
        kept,
        rows,
        ("share of training", "normalized loss (1 = final)", "relative deviation"),
        title=f"Normalized losses of {_compared(kept[0])} differ by less than seeds do: {listed(phrases)}",
        caption="Compared are the training losses of all shapes at the HP transferred from the base, at the same share "
        "of training, as (loss - floor) / (final loss - floor) (arXiv 2507.02119). Right: the standard deviation "
        "between these curves over their mean, and the one that seeds alone would cause. The floor is "
        f"{', '.join(floors)}.",
        titles={curves.parameterization: f"{_each(curves)}, normalized" for curves in kept},
        parting={},
    )


def _points(
    x: Sequence[float], y: Sequence[float], spread: Sequence[float], noise: Sequence[float]
) -> Iterator[tuple[float, float, float, float | None, bool]]:
    """Yield the points of a curve: x, loss, spread, noise, and whether it is the last one. A curve may end early."""
    num = min(len(x), len(y))
    for i in range(num):
        yield x[i], y[i], spread[i], noise[i] if noise else None, i == num - 1


def _block(
    kept: Sequence[Collapse],
    rows: Sequence[tuple[object, ...]],
    columns: tuple[str, str, str],
    *,
    title: str,
    caption: str,
    titles: Mapping[str, str],
    parting: Mapping[str, Mapping[str, float]],
) -> Block | str:
    """Return the block of both forms: the curves of each parameterization, and how far apart they are beside them."""
    if not rows:
        return NOTHING
    (x, y, spread), scale = columns, kept[0].scale_name
    every = sorted((curve for curves in kept for curve in curves.curves), key=lambda curve: curve.scale)
    color_of = style.scale_colors(curve.scale for curve in every)
    frame = pd.DataFrame(rows, columns=["axis", "arm", "shape", "scale", "x", "loss", "spread", "noise", "cross"])
    # Every shape has the spread beside it, which is drawn once, and where a log axis can show it: normalized curves
    # agree at the end by definition.
    once = ~frame.duplicated(["arm", "x"])
    for name in ("spread", "noise"):
        frame[f"{name} drawn"] = frame[name].where(once & (frame[name].astype(float) > 0)).astype(float)
    spread_color = {curves.parameterization: (style.MARKS[0][0], "") for curves in kept}
    marked = dict.fromkeys(name for marks in parting.values() for name in marks)

    def finish(axes: Axes, arm: str, height: str) -> None:
        for name, step in parting.get(arm, {}).items():
            axes.axvline(step, color=INK, alpha=FAINT, linestyle=PARTING[name], linewidth=1.4)
        style.set_axes(axes, x, height)

    def finish_spread(axes: Axes, arm: str, found: pd.DataFrame) -> None:
        finish(axes, arm, spread)
        heights = found[["spread drawn", "noise drawn"]].to_numpy(float)
        if np.isfinite(heights).any():
            low, high = float(np.nanmin(heights)), float(np.nanmax(heights))
            style.log_losses(axes)
            axes.set_ylim(max(low, LEAST * high) / 1.3, high * 1.3)

    curves_chart = Chart(
        x="x",
        lines=(Line(y="loss", cross="cross", look={"linewidth": 1.5}),),
        color="shape",
        panel="arm",
        looks={curve.shape: (color_of[curve.scale], "") for curve in every},
        names={curve.shape: shape_name(curve.scale, curve.is_base) for curve in every},
        titles=titles,
        legend="panel",
        legend_title=scale,
        finish=lambda axes, arm, _: finish(axes, arm, y),
    )
    noise_look = {"linestyle": "--", "linewidth": 1.4, "color": INK, "alpha": FAINT}
    keys = [Line2D([], [], color=style.MARKS[0][0], label=BETWEEN)]
    keys += [key(SEEDS, linestyle="--")] if frame["noise"].notna().any() else []
    spread_chart = Chart(
        x="x",
        lines=(Line(y="spread drawn", look={"linewidth": 1.7}), Line(y="noise drawn", look=noise_look)),
        color="arm",
        panel="arm",
        looks=spread_color,
        titles={
            curves.parameterization: _spread_title(curves, parting.get(curves.parameterization, {})) for curves in kept
        },
        legend="keys",
        keys=(*keys, *(key(f"apart by {name}", linestyle=PARTING[name]) for name in marked)),
        finish=finish_spread,
    )
    return Block(
        title=title,
        caption=caption + _other_data(kept),
        frame=frame,
        headings={
            "axis": "axis",
            "arm": "parameterization",
            "scale": scale,
            "x": x,
            "loss": y,
            "spread": spread,
            "noise": NOISE,
        },
        charts=(curves_chart, spread_chart),
        height=2.7,
    )


def _other_data(every: Sequence[Collapse]) -> str:
    """Return which shapes are left out for their data, as a sentence after a caption; empty if there are none."""
    names = dict.fromkeys(name for curves in every for name in curves.other_data)
    if not names:
        return ""
    return f" Left out, as training losses on other data are not comparable: {', '.join(names)}."


def _compared(curves: Collapse) -> str:
    """Return which shapes are compared, e.g. `width 32 to 128`."""
    scales = [curve.scale for curve in curves.curves]
    return f"{curves.scale_name} {scale_text(min(scales))} to {scale_text(max(scales))}"


def _parts(curves: Collapse) -> str:
    if curves.why_no_noise is not None or not curves.noise_nats:
        return "unknown (one seed)"
    return "at no step" if curves.parts_at is None else f"from step {curves.parts_at:.0f}"


def _parting(curves: Collapse) -> dict[str, float]:
    """Return how far apart the curves are -> from which step."""
    marks = ((BEYOND, curves.parts_at), (APART, curves.parts_by_share_at))
    return {name: step for name, step in marks if step is not None}


def _each(curves: Collapse) -> str:
    return f"{curves.parameterization}: each {curves.scale_name}"


def _title(curves: Collapse) -> str:
    at = "" if curves.value is None else f" at {curves.hp} {hp_text(curves.value)}"
    return _each(curves) + at + (f", mean of {curves.num_seeds} seeds" if curves.num_seeds > 1 else "")


def _spread_title(curves: Collapse, parting: Mapping[str, float]) -> str:
    num = len([curve for curve in curves.curves if curve.diverged_step is None])
    marks = ", ".join(f"{name} from step {step:.0f}" for name, step in parting.items())
    return style.wrapped(f"how far apart the {num} curves are{f': {marks}' if marks else ''}", TITLE_CHARACTERS)


COLLAPSE = HPFigure(
    name="collapse",
    question="Do the losses of all shapes follow one curve early in training?",
    infos=lambda given: {
        axis: collapse_block(given.analysis.found("collapse"), axis, given.report.judged, given.analysis.control)
        for axis in given.axes
    },
    draw=draw,
    judged_only=True,
)
NORMALIZED_COLLAPSE = HPFigure(
    name="normalized-collapse",
    question="Do the normalized losses of all shapes follow one curve?",
    infos=lambda given: {
        axis: normalized_block(given.analysis.found("collapse"), axis, given.report.judged, given.analysis.control)
        for axis in given.axes
    },
    draw=draw,
    judged_only=True,
)
