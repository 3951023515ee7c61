"""Searches: the best loss so far against trials, and how sure each verdict was against FLOPs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from hpxfer.analysis import Analysis, Found
from hpxfer.figures import style
from hpxfer.figures.chart import Block, Chart, Line, Look, draw, key
from hpxfer.figures.kinds import Info, SweepFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import control_last, each, listed
from hpxfer.host import CONTROL, NATS, JudgedLoss
from hpxfer.results import Results
from hpxfer.search import MOST_DOUBT, ArmPoints, DoubtLook, arm_points, doubt_looks, kind_of

MOST_PANELS = 6
SHOWN_QUANTILE = 0.8  # of the losses: those above are not drawn, as the first points of a search may lie far up
STANDARD_ERRORS = 2.0
LEAST_DOUBT = 1e-4  # smaller doubts are drawn here: no estimate is that sure
DOUBT_TICKS = (LEAST_DOUBT, 1e-3, 1e-2, 1e-1, MOST_DOUBT)


def search_best_block(
    arms: Sequence[ArmPoints],
    found: Found,
    kind: str,
    judged: JudgedLoss = NATS,
    control: str | None = CONTROL,
) -> Block | str:
    """Return what the figure of a search of this kind shows, or why there is none."""
    shapes = list(dict.fromkeys(arm.shape for arm in arms if arm.points))
    if not shapes:
        return "no point has ended with every seed"
    in_order = sorted(arms, key=lambda arm: control_last(arm.parameterization, control))
    rows = [
        (shape, arm.parameterization, point.num_trials, _finite(point.mean), _finite(point.lowest))
        for shape in shapes
        for arm in in_order
        if arm.shape == shape
        for point in arm.points
    ]
    frame = pd.DataFrame(rows, columns=["shape", "parameterization", "num_trials", "loss_nats", "best_nats"])
    shown = shapes[:MOST_PANELS]
    drawn = frame[frame["shape"].isin(shown)]
    equal = {shape: min(arm.num_trials for arm in arms if arm.shape == shape) for shape in shapes}
    looks = style.marks([arm.parameterization for arm in in_order if arm.points and arm.shape in shown], control)
    chart = Chart(
        x="num_trials",
        lines=(
            Line(y="loss_nats", marker="arm", look={"linestyle": "none", "markersize": 3.5, "alpha": 0.45}),
            Line(y="best_nats", look={"linewidth": 1.8, "drawstyle": "steps-post"}),
        ),
        color="parameterization",
        panel="shape",
        looks=looks,
        titles={arm.shape: arm.shape + (" (base)" if arm.is_base else "") for arm in arms},
        finish=lambda axes, shape, rows: _finish_best(axes, rows, looks, equal[shape], judged.unit),
    )
    left_out = len(shapes) - MOST_PANELS
    return Block(
        title=f"{kind}: {listed([_leader(shape, found, judged) for shape in shapes], 2)}",
        caption="A dot is a point's mean loss over seeds, and the line is the lowest loss so far, both over the trials "
        "that had ended. A cross at the top is a point with a diverged seed. Arms of a shape are compared over as many "
        "trials as each of them has had; a dotted line marks this number where an arm has had more. The lowest loss of "
        "many is partly luck." + (f" {left_out} more shapes are in the data." if left_out > 0 else ""),
        frame=frame,
        drawn=drawn,
        charts=(chart,),
        judged=judged,
        foot=0.55,
        legend_columns=3,
    )


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _leader(shape: str, found: Found, judged: JudgedLoss) -> str:
    """Return in words which arm of a shape is ahead."""
    rows = found.frame[(found.frame["shape"] == shape) & found.frame["best_nats"].notna()]
    known = list(each(rows.sort_values("best_nats", kind="stable")))
    if not known:
        return f"nothing finished at {shape}"
    first = known[0]
    if len(known) == 1:
        return f"at {shape} {judged.level(first.best_nats)} after {first.num_trials} trials, at {first.at}"
    behind, se = known[1].behind_nats, known[1].behind_se_nats
    sure = behind > STANDARD_ERRORS * se  # NaN is not
    error = "" if pd.isna(se) else f" +- {se:.2g}"
    ahead = "is ahead of" if sure else "is not surely ahead of"
    by = f"{behind:.2g}{error} {judged.unit}"
    return f"at {shape} {first.parameterization} {ahead} {known[1].parameterization} ({by})"


def _finish_best(axes: Axes, rows: pd.DataFrame, looks: Mapping[str, Look], equal: int, unit: str) -> None:
    losses = rows["loss_nats"].dropna().to_list()
    low, top = min(losses, default=0.0), float(np.quantile(losses, SHOWN_QUANTILE)) if losses else 1.0
    height = max(top - low, 1e-3)
    top += 0.12 * height
    for name, arm in rows[rows["loss_nats"].isna()].groupby("parameterization"):
        at, _ = style.thinned(arm["num_trials"].to_list(), arm["num_trials"].to_list())
        cross = {"marker": "x", "markersize": 5, "linestyle": "none", "clip_on": False}
        axes.plot(at, [top] * len(at), color=looks[str(name)][0], **cross)  # type: ignore[arg-type]
    if equal < rows["num_trials"].max():
        axes.axvline(equal, color=INK, alpha=FAINT, linestyle=":", linewidth=1.2)
    axes.xaxis.set_major_locator(MaxNLocator(style.TICKS, integer=True))
    style.set_axes(axes, "trials of the arm", f"loss ({unit})", y_ends=(low - 0.06 * height, top))


def _best_infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    arms = () if kind_of(results.spec).lists_trials else arm_points(results)  # a grid chooses nothing
    found = analysis.found("search_best")
    return (
        {"": search_best_block(arms, found, results.spec.search.kind, analysis.judged, analysis.control)}
        if arms
        else {}
    )


SEARCH_BEST = SweepFigure(
    name="search-best",
    question="Which arm of the search is ahead at equal budgets?",
    infos=_best_infos,
    draw=draw,
)


def doubt_block(
    looks: Iterable[DoubtLook], error: float, unit: str = "FLOPs", control: str | None = CONTROL
) -> Block | str:
    """Return what the figure of the looks at each verdict shows, or why there is none.

    `unit` is that of what was spent.
    """
    found = list(looks)
    if all(look.doubt == MOST_DOUBT for look in found):
        return "no shape has been compared with the base yet"
    last = {f"{look.parameterization} along {look.axis}": look.verdict for look in found}
    said = [f"{what} {verdict}" for what, verdict in last.items() if verdict not in (None, "undecided")]
    rows = [(look.axis, look.parameterization, look.share_of_grid_flops, look.doubt) for look in found]
    frame = pd.DataFrame(rows, columns=["axis", "parameterization", "share_of_grid_flops", "doubt"])
    spent = float(frame["share_of_grid_flops"].max())
    names = sorted(set(frame["parameterization"]), key=lambda name: control_last(name, control))
    x_ends = 0.0, 1.03 * max(1.0, spent)

    def finish(axes: Axes) -> None:
        axes.axhline(error, color=INK, alpha=FAINT, linestyle="--", linewidth=1.2)
        axes.axvline(1.0, color=INK, alpha=FAINT, linestyle=":", linewidth=1.2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator(DOUBT_TICKS))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda doubt, _: f"{doubt:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        x, y = f"{unit} spent, as a share of the whole grid", "doubt: chance of a wrong verdict"
        style.set_axes(axes, x, y, x_ends=x_ends, y_ends=(0.7 * LEAST_DOUBT, 1.4 * MOST_DOUBT))

    chart = Chart(
        x="share_of_grid_flops",
        lines=(Line(y="doubt", marker="arm", look={"drawstyle": "steps-post", "markersize": 4, "linewidth": 1.5}),),
        color="parameterization",
        panel="axis",
        panels=list(dict.fromkeys(frame["axis"]))[:MOST_PANELS],
        looks=style.marks(names, control),
        keys=(key(f"said below {error:g}", linestyle="--"),),
        finish=lambda axes, *_: finish(axes),
    )
    return Block(
        title=f"After {spent:.0%} of the {unit} of the whole grid: {listed(said, 3) if said else 'nothing is decided'}",
        caption="Doubt is the chance of being wrong if the likelier verdict were said at that moment. It is 0.5 where "
        f"nothing is known. A verdict is said below the dashed line. The {unit} are those of the trials that had "
        "ended, as a share of what the grid of the sweep file takes with all its seeds and parameterizations.",
        frame=frame,
        drawn=frame.assign(doubt=frame["doubt"].clip(lower=LEAST_DOUBT)),
        charts=(chart,),
        foot=0.55,
    )


def _doubt_infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    kind = kind_of(results.spec)
    if kind.lists_trials or kind.tunes != "lines" or results.why_no_line() is not None:
        return {}  # a grid trains in the order that fills the workers: its path says nothing about the grid
    rules = results.rules
    unit = "FLOPs" if results.spec.trainer is None else "tokens"  # see `relative_cost`
    return {"": doubt_block(doubt_looks(results, results.line(), rules), rules.error, unit, rules.control)}


DOUBT = SweepFigure(name="doubt", question="How sure was each verdict, at which cost?", infos=_doubt_infos, draw=draw)
