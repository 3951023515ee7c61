"""Rounds of a search, as its report has them: steps of a coordinate search, refined lines, heatmaps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, product
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from hpxfer.analysis import Analysis
from hpxfer.figures import style
from hpxfer.figures.cells import Cells, top_rise
from hpxfer.figures.chart import Block, Chart, Line, draw, key
from hpxfer.figures.kinds import Info, SweepFigure
from hpxfer.figures.searches import MOST_PANELS
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import each, listed, octaves_of
from hpxfer.host import CONTROL, NATS, JudgedLoss
from hpxfer.results import Results
from hpxfer.search import HeatmapCell, RefinedPoint, arms_of, kind_of

ROW_INCHES = 0.3
MOST_BELOW = 1.5  # how far down the axis reaches, in widths of the bars: losses far below would hide the gains
SHOWN_RISE = 4.0  # times the rise of the highest point after round 1: the first line may reach far up
# White within black, so that the square shows on cells of any color and around a star.
_SQUARES = (("#000000", 3.2), ("#ffffff", 1.6))
_SQUARE_SIZE = 17
_SQUARE = {"marker": "s", "markersize": 9, "markerfacecolor": "none", "markeredgecolor": INK, "linestyle": "none"}
_COLORS = {
    "lowest_nats": "the lowest mean loss over seeds, over all values of the other dimensions.",
    "through_best_nats": "the mean loss over seeds, with all other dimensions at the best point of the whole grid. A "
    "cross means that a seed diverged.",
}

_OF_GRIDS = (
    "Star: the best point of the whole grid. Square: the best point with all other dimensions at the grid's center, "
    "where the stage before ended, which is where tuning the pair alone would end. Its cost is how far the lowest loss "
    "at the square lies above the best. A cost within the noise of seeds says nothing. A larger cost says that the "
    "dimensions have to be tuned together."
)
_OF_PLANES = (
    "Color: the mean loss over seeds, with all other dimensions at the best random point. A cross means that a seed "
    "diverged. Star: the best random point. Square: the lowest point of the plane. A difference within the noise of "
    "seeds says nothing. A larger one says that the random search did not end at an optimum."
)


def _groups(rows: Sequence[Any], key: Callable[[Any], Any]) -> list[tuple[Any, list[Any]]]:
    """Return (key, rows) of the rows that follow each other with the same key."""
    return [(name, list(of)) for name, of in groupby(rows, key=key)]


def _frame(rows: Sequence[Any], columns: Sequence[str]) -> pd.DataFrame:
    """Return these fields of the rows of a report."""
    return pd.DataFrame([[getattr(row, name) for name in columns] for row in rows], columns=list(columns))


def search_steps_block(steps: pd.DataFrame, judged: JudgedLoss = NATS, control: str | None = CONTROL) -> Block:
    """Return what the figure of one arm's steps shows: a row per step with its best ratio, the first on top."""
    first, kept = steps.iloc[0], steps[steps["kept"].astype(bool)]
    name, changed = first["parameterization"], listed([f"{row.multiplier} x {row.ratio:.4g}" for row in each(kept)])
    changes = f", {judged.amount(kept['gain_nats'].sum())} in all: {changed}"
    color, _ = style.marks([name], control)[name]
    dot = {"marker": "o", "markersize": 7, "linestyle": "none", "markeredgecolor": color}
    handles = (
        Line2D([], [], markerfacecolor=color, label="kept", **dot),  # type: ignore[arg-type]
        Line2D([], [], markerfacecolor="none", label="rejected", **dot),  # type: ignore[arg-type]
        key("other ratios", marker=".", linestyle="none"),
    )
    chart = Chart(
        x="gain_nats",
        lines=(),
        color="multiplier",
        looks={},
        legend="keys",
        keys=handles,
        finish=lambda axes, *_: _draw_steps(axes, steps, color, judged.unit),
    )
    return Block(
        title=f"{name} at {first['shape']}: {len(kept)} of {steps['step'].max()} changes won by more than the noise"
        f"{changes if len(kept) else ''}",
        caption=f"Gain in {judged.unit} of the best ratio of each multiplier over what was kept before, with "
        f"{first['needed']:g} standard errors of the paired difference over seeds. Small dots are the other ratios. A "
        "change is kept where its whole bar lies above zero.",
        frame=steps,
        charts=(chart,),
        judged=judged,
        height=1.1 + ROW_INCHES * steps["step"].nunique(),
        foot=0.5,
        legend_columns=3,
    )


def _draw_steps(axes: Axes, every: pd.DataFrame, color: str, unit: str) -> None:
    ends, labels = [0.0], []
    for row, (_, step) in enumerate(every.groupby("step", sort=False)):
        known = step[step["gain_nats"].notna()].astype({"gain_nats": float})
        if known.empty:
            labels.append(f"{step['multiplier'].iloc[0]}: all diverged")
            continue
        best = int(known["gain_nats"].to_numpy().argmax())
        top = known.iloc[best]
        labels.append(f"{top['multiplier']} x {top['ratio']:.4g}")
        others = known["gain_nats"].drop(known.index[best])
        axes.plot(others, [row] * len(others), marker=".", markersize=5, color=INK, alpha=FAINT, linestyle="none")
        has_error = not pd.isna(top["se_nats"])
        error = top["needed"] * top["se_nats"] if has_error else 0.0
        ends += [top["gain_nats"] - error, top["gain_nats"] + error]
        if has_error:
            axes.plot(ends[-2:], [row, row], color=color, linewidth=1.8)
        dot = {"marker": "o", "markersize": 7, "markerfacecolor": color if top["kept"] else "none"}
        axes.plot(top["gain_nats"], row, markeredgecolor=color, zorder=3, **dot)  # type: ignore[arg-type]
    axes.axvline(0.0, color=INK, alpha=FAINT, linewidth=1.0)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.yaxis.set_major_locator(FixedLocator(range(len(labels))))
    axes.set_yticklabels(labels)
    # The ends show every bar, and other ratios as far as they lie near the bars.
    low, high = min(ends), max(ends)
    width = max(high - low, 1e-4)
    low = max(min(low, every["gain_nats"].min()), low - MOST_BELOW * width)
    axes.set_xlim(low - 0.05 * width, high + 0.08 * width)
    axes.set_xlabel(f"gain ({unit})")


def _step_infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    by_arm = analysis.found("search_steps").frame.groupby(["parameterization", "shape"], sort=False)
    return {
        f"{name}-{shape}": search_steps_block(rows, analysis.judged, analysis.control) for (name, shape), rows in by_arm
    }


SEARCH_STEPS = SweepFigure(
    name="search-steps",
    question="Which constant multipliers won by more than the noise?",
    infos=_step_infos,
    draw=draw,
)


def refine_block(points: Sequence[RefinedPoint], hp: str, judged: JudgedLoss = NATS) -> Block | str:
    """Return what the figure of one HP's lines shows, or why there is none."""
    rows = [point for point in points if point.hp == hp]
    if not rows:
        return "no round of it has ended"
    arms = _groups(rows, lambda point: point.arm)
    last = [of[-1] for _, of in arms]
    left_out = len(last) - MOST_PANELS
    frame = _frame(rows, ("arm", "round", "log2_value", "loss_nats", "log2_low", "log2_high"))
    of_arm = dict(arms[:MOST_PANELS])
    colors = style.ramp(max(of[-1].round for of in of_arm.values()))
    chart = Chart(
        x="log2_value",
        lines=(Line(y="loss_nats", marker="o", look={"linestyle": "none", "markersize": 6}),),
        color="round",
        panel="arm",
        panels=list(of_arm),
        looks={number: (color, "o") for number, color in enumerate(colors, start=1)},
        names={number: f"round {number}" for number in range(1, len(colors) + 1)},
        titles={arm: style.wrapped(arm, 46) for arm in of_arm},
        finish=lambda axes, arm, _: _finish_refined(axes, of_arm[arm], colors, hp, judged.unit),
    )
    return Block(
        title=f"Refined {hp}: {listed([_interval(point) for point in last], 2)}",
        caption="A dot is a point's mean loss over seeds, in the color of the round that asked for it. The bars below "
        "are the interval of the optimum after each round, from the first round on top to the last. An interval "
        "reaches from the best point to the nearest points that are worse by more than two standard errors. A cross "
        "means that a seed diverged." + (f" {left_out} more arms are in the data." if left_out > 0 else ""),
        frame=frame.rename(columns={"log2_value": f"log2_{hp}"}),
        drawn=frame,
        charts=(chart,),
        judged=judged,
        height=3.2,
        foot=0.55,
        legend_columns=6,
    )


def _interval(last: RefinedPoint) -> str:
    if last.log2_best is None:
        return f"{last.arm}: everything diverged"
    ends = ["open" if end is None else f"2^{end:g}" for end in (last.log2_low, last.log2_high)]
    return f"{last.arm} 2^{last.log2_best:g} [{', '.join(ends)}]" + ("" if last.ended else ", not ended")


def _finish_refined(axes: Axes, points: Sequence[RefinedPoint], colors: Sequence[str], hp: str, unit: str) -> None:
    """Draw the line through all points, those that diverged on top, and the intervals below."""
    known = sorted((point.log2_value, point.loss_nats, point.round) for point in points if point.loss_nats is not None)
    losses, later = [loss for _, loss, _ in known], [loss for _, loss, number in known if number > 1]
    low, top = min(losses, default=0.0), max(losses, default=1.0)
    if later and max(later) > low:
        # Points of the first line that lie far above the others are left out.
        top = min(top, low + SHOWN_RISE * (max(later) - low))
    height = max(top - low, 1e-4)
    axes.plot([at for at, _, _ in known], losses, color=INK, alpha=FAINT, linewidth=1.0)
    rounds = _groups(points, lambda point: point.round)
    for (number, asked), color in zip(rounds, colors, strict=False):
        for point in asked:
            if point.loss_nats is None:
                axes.plot(point.log2_value, top, color=color, marker="x", linestyle="none", clip_on=False, zorder=3)
        _draw_bracket(axes, asked[0], low - height * (0.05 + 0.07 * number), color)
    axes.set_ylim(low - height * (0.14 + 0.07 * len(rounds)), top + 0.05 * height)
    style.whole_octaves(axes)
    style.set_axes(axes, octaves_of(hp), f"loss ({unit})")


def _draw_bracket(axes: Axes, after: RefinedPoint, y: float, color: str) -> None:
    """Draw the interval after a round. An open end is an arrow."""
    if (at := after.log2_best) is None:
        return
    sides = (after.log2_low, after.log2_high)
    ends = [at if side is None else side for side in sides]
    axes.plot(ends, [y, y], color=color, linewidth=2.4, solid_capstyle="butt")
    axes.plot(at, y, marker="|", color=color, markersize=8, markeredgewidth=2)
    for side, marker in zip(sides, "<>", strict=True):
        if side is None:
            axes.plot(at, y, marker=marker, color=color, markersize=6)


def _report(results: Results, form: str) -> tuple[Any, ...] | None:
    """Return the rows of the search's report if it has this form."""
    kind = kind_of(results.spec)
    return tuple(kind.report(results)) if kind.form == form else None


def _refine_blocks(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    points = _report(results, "brackets")
    return {} if points is None else {hp: refine_block(points, hp, analysis.judged) for hp in results.spec.grid}


SEARCH_REFINE = SweepFigure(
    name="search-refine", question="How did the search narrow its interval?", infos=_refine_blocks, draw=draw
)


def heatmaps_block(cells: Sequence[HeatmapCell], view: str = "lowest_nats", judged: JudgedLoss = NATS) -> Block | str:
    """Return what a figure of one stage of one arm shows, or why there is none. `view` is the loss that colors it."""
    if not cells:
        return "the stage has one dimension, or is not over yet"
    best = [cell for cell in cells if cell.is_best]
    level = best[0].lowest_nats or 0.0
    alone = [cell for cell in cells if cell.is_best_at_center]
    are_planes = cells[0].stage == "pairs"
    values = dict.fromkeys(pair for cell in best for pair in ((cell.x, cell.x_value), (cell.y, cell.y_value)))
    planes = ", planes through its best point" if view == "through_best_nats" else ""
    grid = "planes around the best random point" if are_planes else f"{cells[0].stage} grid{planes}"
    said = _lower_in_planes(best, alone, judged) if are_planes else _cost_alone(alone, level, judged)
    columns = ("arm", "stage", "x", "y", "x_value", "y_value", "lowest_nats", "through_best_nats", "at_center_nats")
    frame = _frame(cells, columns)
    pairs = [pair for pair, _ in _groups(cells, lambda cell: (cell.x, cell.y))]
    number = {pair: i for i, pair in enumerate(pairs)}
    drawn = frame.assign(
        panel=[number[cell.x, cell.y] for cell in cells],
        log2_x=[math.log2(cell.x_value) for cell in cells],
        log2_y=[math.log2(cell.y_value) for cell in cells],
        rise=frame[view].astype(float) - level,
    )
    chart = Cells(
        x="log2_x",
        y="log2_y",
        rise="rise",
        panel="panel",
        titles={},
        star="best random point" if are_planes else "best of all",
        stars={i: _at(cell for cell in best if (cell.x, cell.y) == pair) for pair, i in number.items()},
        keys=(Line2D([], [], label="best of the pair alone", **_SQUARE),),  # type: ignore[arg-type]
        top=top_rise(drawn["rise"].dropna()),
        judged=judged,
        finish=lambda axes, i, _: _finish_pair(axes, [c for c in alone if (c.x, c.y) == pairs[i]]),
    )
    return Block(
        title=f"{cells[0].arm}, {grid}: best at "
        + ", ".join(f"{name} {value:.3g}" for name, value in values)
        + f" ({judged.level(level)}); {said}",
        caption=_OF_PLANES if are_planes else f"Color: {_COLORS[view]} {_OF_GRIDS}",
        frame=frame,
        drawn=drawn,
        charts=(chart,),
        judged=judged,
        columns=2 if len(pairs) < 3 else 3,
        height=2.6,
        foot=0.55,
        legend_columns=5,
    )


def _cost_alone(alone: Sequence[HeatmapCell], level: float, judged: JudgedLoss) -> str:
    """Return in words what tuning a pair by itself costs, over the lowest loss of the grid."""
    worst = max(alone, key=lambda cell: math.inf if cell.lowest_nats is None else cell.lowest_nats)
    cost = math.inf if worst.lowest_nats is None else worst.lowest_nats - level
    share = f"{cost / depth:.1%}; " if (depth := abs(level)) else ""
    at_most = f"at most {judged.amount(cost)} ({share}{worst.x} with {worst.y})" if cost > 0 else "nothing"
    return f"a pair tuned by itself costs {at_most}"


def _lower_in_planes(best: Sequence[HeatmapCell], alone: Sequence[HeatmapCell], judged: JudgedLoss) -> str:
    """Return in words in how many planes another point is lower than the point in their middle."""
    gains = [(a.lowest_nats or 0.0) - (b.lowest_nats or 0.0) for a, b in zip(best, alone, strict=True)]
    lower, most = sum(gain > 0 for gain in gains), max(range(len(gains)), key=gains.__getitem__)
    said = f"in {lower} of {len(gains)} pairs another point is lower"
    pair = f"{alone[most].x} with {alone[most].y}"
    return f"{said}, by at most {judged.amount(gains[most])} ({pair})" if lower else said


def _at(cells: Iterable[HeatmapCell]) -> list[tuple[float, float]]:
    return [(math.log2(cell.x_value), math.log2(cell.y_value)) for cell in cells]


def _finish_pair(axes: Axes, alone: Sequence[HeatmapCell]) -> None:
    """Mark the cells at which tuning the pair alone would end."""
    for center, (color, width) in product(_at(alone), _SQUARES):
        edge = {"markeredgecolor": color, "markeredgewidth": width}
        axes.plot(*center, marker="s", markersize=_SQUARE_SIZE, markerfacecolor="none", zorder=4, **edge)  # type: ignore[arg-type]
    style.set_axes(axes, octaves_of(alone[0].x), octaves_of(alone[0].y))


def _heatmap_infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    found = _report(results, "heatmaps")
    out: dict[str, Info | str] = {}
    if found is None:
        return out
    for arm, stage in product((arm.name for arm in arms_of(results.expansion)), kind_of(results.spec).stages):
        cells = [cell for cell in found if (cell.arm, cell.stage) == (arm, stage)]
        name = f"{arm}-{stage}"
        out[name] = heatmaps_block(cells, judged=analysis.judged)
        if (
            stage != "pairs" and len({(cell.x, cell.y) for cell in cells}) > 1
        ):  # with two dimensions there is one plane, and it is all
            out[f"{name}-planes"] = heatmaps_block(cells, "through_best_nats", analysis.judged)
    return out


SEARCH_HEATMAPS = SweepFigure(
    name="search-heatmaps",
    question="Do the dimensions of a staged grid have to be tuned together?",
    infos=_heatmap_infos,
    draw=draw,
)
