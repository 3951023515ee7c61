"""Loss collapse: the curves of all shapes over one another, and beside them how far apart they are against the noise.

One figure shows losses over steps, with marks where the curves part. The other shows normalized losses over fractions
of training (arXiv 2507.02119).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hpxfer.analysis import Found
from hpxfer.analysis.statistics.collapse import parts
from hpxfer.figures import style
from hpxfer.figures.chart import LATE, Block, Chart, Line, draw, key
from hpxfer.figures.kinds import HPFigure, HPInput
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import each, listed, rows_of, shape_name, why_no_rows
from hpxfer.host import CONTROL, NATS, JudgedLoss, hp_text, scale_text
from hpxfer.verdict.thresholds import COLLAPSE_SHARE

NOTHING = "no loss curves"
MIDDLE = (
    "Middle: the loss minus that of the base at the same seeds, with a band of two standard errors. Its height is that "
    "of all but the first tenth of training."
)
NAMES = {"step": "x", "loss_nats": "loss", "spread_nats": "spread", "noise_nats": "noise"}
NAMES["difference_nats"] = "difference"
LEAST = 1e-4  # smallest spread that is shown on the log axis, as a fraction of the largest
TITLE_CHARACTERS = 30  # in a line of a panel's title
# How far apart curves are, and how the step from which they are is marked.
BEYOND, APART = "more than seeds", f"more than {COLLAPSE_SHARE:.0%} of the loss"
PARTING = {BEYOND: ":", APART: "-."}
BETWEEN, SEEDS = "between shapes", "between seeds alone"


def collapse_block(
    found: Found, curves: Found, axis: str, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> Block | str:
    """Return what the figure of losses over steps along one axis shows, or why there is none."""
    numbers, rows = rows_of(found, axis, control), rows_of(curves, axis, control)
    if rows.empty:
        return why_no_rows(found, axis, NOTHING)
    said = listed([f"{row.parameterization} {parts(row)}" for _, row in numbers.iterrows()])
    return _block(
        numbers,
        rows.rename(columns=NAMES).assign(low=_away(rows, -2), high=_away(rows, 2)),
        ("step", f"training loss ({judged.unit})", f"standard deviation ({judged.unit})"),
        rows,
        title=f"Training losses of {_compared(numbers, rows)} at one {numbers['hp'].iloc[0]} part beyond the seeds' "
        f"noise: {said}",
        caption="Compared are the training losses of all shapes at the same step and at the same HP, the one "
        "transferred from the base; each curve is a mean over seeds and windows of steps.",
        right="Right: the standard deviation between these curves, and the one that seeds alone would cause. Lines "
        f"mark the step from which shapes differ by more than seeds do, and by more than {COLLAPSE_SHARE:.0%} of the "
        "loss. With two seeds the noise is poorly known, so that only a large difference stands out from it.",
        titles={row.parameterization: _title(row) for _, row in numbers.iterrows()},
        parting={row.parameterization: _parting(row) for _, row in numbers.iterrows()},
        judged=judged,
    )


def normalized_block(
    found: Found, curves: Found, axis: str, judged: JudgedLoss = NATS, control: str | None = CONTROL
) -> Block | str:
    """Return what the figure of normalized losses along one axis shows, or why there is none."""
    rows = rows_of(curves, axis, control)
    numbers = rows_of(found, axis, control)
    numbers = numbers[numbers["parameterization"].isin(rows["parameterization"])]
    if rows.empty:
        return why_no_rows(found, axis, NOTHING)
    phrases = [
        f"{row.parameterization} "
        + ("unknown (one seed)" if pd.isna(row.below_noise) else f"for {row.below_noise:.0%} of training")
        for _, row in numbers.iterrows()
    ]
    floors = dict.fromkeys(f"{row.floor_nats:.3g} {judged.unit} ({row.floor_from})" for _, row in numbers.iterrows())
    names = {"share": "x", "normalized_loss": "loss", "deviation": "spread", "noise_floor": "noise"}
    return _block(
        numbers,
        rows.rename(columns=names).assign(diverged=False),
        ("share of training", "normalized loss (1 = final)", "relative deviation"),
        rows,
        title=f"Normalized losses of {_compared(numbers, rows)} differ by less than seeds do: {listed(phrases)}",
        caption="Compared are the training losses of all shapes at the HP transferred from the base, at the same share "
        "of training, as (loss - floor) / (final loss - floor) (arXiv 2507.02119). The floor is "
        f"{', '.join(floors)}.",
        right="Right: the standard deviation between these curves over their mean, and the one that seeds alone would "
        "cause.",
        titles={row.parameterization: f"{_each(row)}, normalized" for _, row in numbers.iterrows()},
        parting={},
        judged=judged,
    )


def _block(
    numbers: pd.DataFrame,
    points: pd.DataFrame,
    labels: tuple[str, str, str],
    frame: pd.DataFrame,
    *,
    title: str,
    caption: str,
    right: str,
    titles: Mapping[str, str],
    parting: Mapping[str, Mapping[str, float]],
    judged: JudgedLoss,
) -> Block:
    """Return the block of both forms: the curves of each parameterization, and how far apart they are beside them.

    Curves that are nowhere apart have nothing beside them. `right` says in the caption how to read it. `points` are
    the rows of `frame` with the columns x, loss, spread, noise and diverged.
    """
    (x, y, spread), scale = labels, numbers["scale_name"].iloc[0]
    shapes = points.drop_duplicates("shape").sort_values("scale", kind="stable")
    color_of = style.scale_colors(shapes["scale"])
    # Every shape has the spread beside it, which is drawn once, and where a log axis can show it: normalized curves
    # agree at the end by definition.
    once = ~points.duplicated(["parameterization", "x"])
    heights = {name: points[name].astype(float) for name in ("spread", "noise")}
    drawn = points.assign(**{name: values.where(once & (values > 0)) for name, values in heights.items()})
    is_spread = bool(drawn[["spread", "noise"]].notna().any(axis=None))
    marked = dict.fromkeys(name for marks in parting.values() for name in marks)

    def finish(axes: Axes, arm: str, height: str) -> None:
        for name, step in parting.get(arm, {}).items():
            axes.axvline(step, color=INK, alpha=FAINT, linestyle=PARTING[name], linewidth=1.4)
        style.set_axes(axes, x, height)

    def finish_spread(axes: Axes, arm: str, found: pd.DataFrame) -> None:
        finish(axes, arm, spread)
        heights = found[["spread", "noise"]].to_numpy(float)
        if np.isfinite(heights).any():
            low, high = float(np.nanmin(heights)), float(np.nanmax(heights))
            style.log_losses(axes)
            axes.set_ylim(max(low, LEAST * high) / 1.3, high * 1.3)

    def finish_difference(axes: Axes, arm: str, found: pd.DataFrame) -> None:
        finish(axes, arm, f"difference ({judged.unit})")
        late = found.loc[found["x"] >= found["x"].max() / LATE, ["low", "high"]].astype(float)
        low, high = float(late.min().min()), float(late.max().max())
        margin = 0.05 * (high - low) or LEAST
        axes.set_ylim(low - margin, high + margin)

    curves_chart = Chart(
        x="x",
        lines=(Line(y="loss", cross="diverged", look={"linewidth": 1.5}),),
        color="shape",
        panel="parameterization",
        looks={row.shape: (color_of[row.scale], "") for row in each(shapes)},
        names={row.shape: shape_name(row.scale, row.is_base) for row in each(shapes)},
        titles=titles,
        legend="panel",
        legend_title=scale,
        finish=lambda axes, arm, _: finish(axes, arm, y),
    )
    is_over = "difference" in points and bool((points["difference"].notna() & ~points["is_base"].astype(bool)).any())
    to_base = replace(
        curves_chart,
        lines=(Line(y="difference", low="low", high="high", look={"linewidth": 1.5}),),
        titles=dict.fromkeys(titles, "difference to the base"),
        legend="keys",
        finish=finish_difference,
    )
    noise_look = {"linestyle": "--", "linewidth": 1.4, "color": INK, "alpha": FAINT}
    keys = [Line2D([], [], color=style.MARKS[0][0], label=BETWEEN)]
    keys += [key(SEEDS, linestyle="--")] if points["noise"].notna().any() else []
    spread_chart = Chart(
        x="x",
        lines=(Line(y="spread", look={"linewidth": 1.7}), Line(y="noise", look=noise_look)),
        color="parameterization",
        panel="parameterization",
        looks=dict.fromkeys(titles, (style.MARKS[0][0], "")),
        titles={
            row.parameterization: _spread_title(row, parting.get(row.parameterization, {})) for row in each(numbers)
        },
        legend="keys",
        keys=(*keys, *(key(f"apart by {name}", linestyle=PARTING[name]) for name in marked)),
        finish=finish_spread,
    )
    other_data = ", ".join(dict.fromkeys(numbers["other_data"].dropna()))
    if other_data:
        caption += f" Left out, as training losses on other data are not comparable: {other_data}."
    return Block(
        title=title,
        caption=" ".join([caption, *([MIDDLE] if is_over else []), *([right] if is_spread else [])]),
        frame=frame,
        drawn=drawn,
        charts=(curves_chart, *([to_base] if is_over else []), *([spread_chart] if is_spread else [])),
        judged=judged,
        height=2.7,
    )


def _compared(numbers: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Return which shapes are compared, e.g. `width 32 to 128`."""
    first = rows[rows["parameterization"] == numbers["parameterization"].iloc[0]]
    return f"{numbers['scale_name'].iloc[0]} {scale_text(first['scale'].min())} to {scale_text(first['scale'].max())}"


def _away(rows: pd.DataFrame, errors: float) -> pd.Series:
    """Return an end of the band about the difference to the base, which has no width with one seed."""
    return rows["difference_nats"].astype(float) + errors * rows["difference_se"].astype(float).fillna(0.0)


def _parting(row: pd.Series) -> dict[str, float]:
    """Return how far apart the curves are -> from which step."""
    marks = ((BEYOND, row["parts_at"]), (APART, row["parts_by_share_at"]))
    return {name: step for name, step in marks if not pd.isna(step)}


def _each(row: pd.Series) -> str:
    return f"{row['parameterization']}: each {row['scale_name']}"


def _title(row: pd.Series) -> str:
    seeds = f", mean of {row['num_seeds']} seeds" if row["num_seeds"] > 1 else ""
    return style.wrapped(f"{_each(row)} at {row['hp']} {hp_text(row['value'])}{seeds}", TITLE_CHARACTERS)


def _spread_title(row: Any, parting: Mapping[str, float]) -> str:
    marks = ", ".join(f"{name} from step {step:.0f}" for name, step in parting.items())
    return style.wrapped(
        f"how far apart the {row.num_shapes} curves are{f': {marks}' if marks else ''}", TITLE_CHARACTERS
    )


def _of(given: HPInput, axis: str, block: Callable[..., Block | str], curves: str) -> Block | str:
    found = given.analysis.found
    return block(found("collapse"), found(curves), axis, given.report.judged, given.analysis.control)


COLLAPSE = HPFigure(
    name="collapse",
    question="Do the losses of all shapes follow one curve early in training?",
    infos=lambda given: {axis: _of(given, axis, collapse_block, "collapse_curves") for axis in given.axes},
    draw=draw,
    judged_only=True,
)
NORMALIZED_COLLAPSE = HPFigure(
    name="normalized-collapse",
    question="Do the normalized losses of all shapes follow one curve?",
    infos=lambda given: {axis: _of(given, axis, normalized_block, "normalized_curves") for axis in given.axes},
    draw=draw,
    judged_only=True,
)
