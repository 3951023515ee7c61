"""Best loss so far against trials, one line per arm, and what each step of a coordinate search gained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator

from hpxfer.analysis import Analysis
from hpxfer.analysis.statistics.search_best import ArmBest, ArmProgress, CoordinateStep, search_progress
from hpxfer.figures import style
from hpxfer.figures.kinds import Info, SweepFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import control_last, listed
from hpxfer.results import Results
from hpxfer.search.kinds import kind_of
from hpxfer.verdict.loss_grid import NATS, JudgedLoss
from hpxfer.verdict.thresholds import CONTROL

ROW_INCHES = 0.3
MOST_BELOW = 1.5  # how far down the axis reaches, in widths of the bars: losses far below would hide the gains
Step = tuple[CoordinateStep, ...]  # the ratios that were tried of one multiplier


@dataclass(frozen=True, kw_only=True)
class SearchStepsInfo:
    """The steps of one parameterization at one shape, one row per step: its best ratio, and the others beside it."""

    title: str
    caption: str
    parameterization: str
    steps: tuple[Step, ...]
    judged: JudgedLoss = NATS
    control: str | None = CONTROL

    def table(self) -> pd.DataFrame:
        """Return one row per ratio that was tried."""
        names = ["step", "multiplier", "ratio", "gain_nats", "se_nats", "needed", "diverged", "kept"]
        return pd.DataFrame(
            [{name: getattr(ratio, name) for name in names} for step in self.steps for ratio in step]
        ).rename(columns=self.judged.column)


def steps_names(found: Sequence[CoordinateStep]) -> tuple[tuple[str, str], ...]:
    """Return each (parameterization, shape) that has steps."""
    return tuple(dict.fromkeys((ratio.parameterization, ratio.shape) for ratio in found))


def search_steps_info(
    found: Sequence[CoordinateStep],
    parameterization: str,
    shape: str,
    judged: JudgedLoss = NATS,
    control: str | None = CONTROL,
) -> SearchStepsInfo | str:
    """Return what the figure of one arm shows, or why there is none."""
    of_arm = [ratio for ratio in found if (ratio.parameterization, ratio.shape) == (parameterization, shape)]
    if not of_arm:
        return "no step of it has ended"
    numbers = sorted({ratio.step for ratio in of_arm})
    steps = tuple(tuple(ratio for ratio in of_arm if ratio.step == number) for number in numbers)
    kept = [ratio for ratio in of_arm if ratio.kept]
    gained = sum(ratio.gain_nats or 0.0 for ratio in kept)
    changes = f", {judged.amount(gained)} in all: {listed([f'{r.multiplier} x {r.ratio:.4g}' for r in kept])}"
    return SearchStepsInfo(
        title=f"{parameterization} at {shape}: {len(kept)} of {len(steps)} changes won by more than the noise"
        + (changes if kept else ""),
        caption=f"Gain in {judged.unit} of the best ratio of each multiplier over what was kept before, with "
        f"{of_arm[0].needed:g} standard errors of the paired difference over seeds. Small dots are the other ratios. A "
        "change is kept where its whole bar lies above zero.",
        parameterization=parameterization,
        steps=steps,
        judged=judged,
        control=control,
    )


def draw_search_steps(info: SearchStepsInfo) -> Figure:
    """Return the figure: one row per step, the first on top."""
    color, _ = style.marks([info.parameterization], info.control)[info.parameterization]
    with style.look():
        figure, (axes,) = style.panels(info.title, 1, height=1.1 + ROW_INCHES * len(info.steps), foot=0.5)
        for row, step in enumerate(info.steps):
            _draw_step(axes, row, step, color)
        axes.axvline(0.0, color=INK, alpha=FAINT, linewidth=1.0)
        axes.set_ylim(len(info.steps) - 0.4, -0.6)
        axes.yaxis.set_major_locator(FixedLocator(range(len(info.steps))))
        axes.set_yticklabels([_label(step) for step in info.steps])
        axes.set_xlim(*_step_limits(info.steps))
        axes.set_xlabel(f"gain ({info.judged.unit})")
        style.legend_below(figure, list(_handles(color)), columns=3)
    return figure


def _best(step: Step) -> CoordinateStep | None:
    known = [ratio for ratio in step if ratio.gain_nats is not None]
    return max(known, key=lambda ratio: ratio.gain_nats or 0.0, default=None)


def _label(step: Step) -> str:
    best = _best(step)
    name = step[0].multiplier
    return f"{name}: all diverged" if best is None else f"{name} x {best.ratio:.4g}"


def _draw_step(axes: Axes, row: int, step: Step, color: str) -> None:
    best = _best(step)
    others = [ratio.gain_nats for ratio in step if ratio.gain_nats is not None and ratio is not best]
    axes.plot(others, [row] * len(others), marker=".", markersize=5, color=INK, alpha=FAINT, linestyle="none")
    if best is None or best.gain_nats is None:
        return
    if best.se_nats is not None:
        error = best.needed * best.se_nats
        axes.plot([best.gain_nats - error, best.gain_nats + error], [row, row], color=color, linewidth=1.8)
    face = color if best.kept else "none"
    axes.plot(best.gain_nats, row, marker="o", markersize=7, markerfacecolor=face, markeredgecolor=color, zorder=3)


def _step_limits(steps: Sequence[Step]) -> tuple[float, float]:
    """Return ends of the axis that show every bar, and other ratios as far as they lie near the bars."""
    ends = [0.0]
    for step in steps:
        best = _best(step)
        if best is not None and best.gain_nats is not None:
            error = best.needed * (best.se_nats or 0.0)
            ends += [best.gain_nats - error, best.gain_nats + error]
    low, high = min(ends), max(ends)
    others = [ratio.gain_nats for step in steps for ratio in step if ratio.gain_nats is not None]
    width = max(high - low, 1e-4)
    low = max(min([low, *others]), low - MOST_BELOW * width)
    return low - 0.05 * width, high + 0.08 * width


def _handles(color: str) -> Iterator[Line2D]:
    dot = {"marker": "o", "markersize": 7, "linestyle": "none", "markeredgecolor": color}
    yield Line2D([], [], markerfacecolor=color, label="kept", **dot)  # type: ignore[arg-type]
    yield Line2D([], [], markerfacecolor="none", label="rejected", **dot)  # type: ignore[arg-type]
    yield Line2D([], [], marker=".", color=INK, alpha=FAINT, linestyle="none", label="other ratios")


def _step_infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    found = analysis.found("search_steps")
    return {
        f"{label}-{shape}": search_steps_info(found, label, shape, analysis.judged, analysis.control)
        for label, shape in steps_names(found)
    }


SEARCH_STEPS = SweepFigure(
    name="search-steps",
    question="Which constant multipliers won by more than the noise?",
    infos=_step_infos,
    draw=draw_search_steps,
)


MOST_PANELS = 6
SHOWN_QUANTILE = 0.8  # of the losses: those above are not drawn, as the first points of a search may lie far up
STANDARD_ERRORS = 2.0


@dataclass(frozen=True, kw_only=True)
class ShapePanel:
    """The arms of one shape."""

    shape: str
    is_base: bool
    equal_trials: int  # that each arm has had
    arms: tuple[ArmProgress, ...]


def _traces(arm: ArmProgress) -> list[tuple[int, float | None, float | None]]:
    """Return (trials, loss, lowest loss so far) for each point. A loss is None if a seed diverged."""
    return [
        (point.num_trials, point.mean if math.isfinite(point.mean) else None, None if best is None else best.mean)
        for point, best in zip(arm.points, arm.best_so_far, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class SearchBestInfo:
    """The searches at all shapes, the base's first."""

    title: str
    caption: str
    panels: tuple[ShapePanel, ...]
    judged: JudgedLoss = NATS
    control: str | None = CONTROL

    def table(self) -> pd.DataFrame:
        """Return one row per point, in the order in which the points ended."""
        rows = [
            (panel.shape, arm.parameterization, *row)
            for panel in self.panels
            for arm in panel.arms
            for row in _traces(arm)
        ]
        return pd.DataFrame(rows, columns=["shape", "parameterization", "num_trials", "loss_nats", "best_nats"]).rename(
            columns=self.judged.column
        )


def search_best_info(
    arms: Sequence[ArmProgress],
    found: Sequence[ArmBest],
    kind: str,
    judged: JudgedLoss = NATS,
    control: str | None = CONTROL,
) -> SearchBestInfo | str:
    """Return what the figure of a search of this kind shows, or why there is none."""
    shapes = dict.fromkeys(arm.shape for arm in arms if arm.points)
    if not shapes:
        return "no point has ended with every seed"
    panels = tuple(_panel([arm for arm in arms if arm.shape == shape], control) for shape in shapes)
    left_out = len(panels) - MOST_PANELS
    return SearchBestInfo(
        title=f"{kind}: {listed([_leader(shape, found, judged) for shape in shapes], 2)}",
        caption="A dot is a point's mean loss over seeds, and the line is the lowest loss so far, both over the trials "
        "that had ended. A cross at the top is a point with a diverged seed. Arms of a shape are compared over as many "
        "trials as each of them has had; a dotted line marks this number where an arm has had more. The lowest loss of "
        "many is partly luck." + (f" {left_out} more shapes are in the data." if left_out > 0 else ""),
        panels=panels,
        judged=judged,
        control=control,
    )


def _panel(arms: Sequence[ArmProgress], control: str | None) -> ShapePanel:
    return ShapePanel(
        shape=arms[0].shape,
        is_base=arms[0].is_base,
        equal_trials=min(arm.num_trials for arm in arms),
        arms=tuple(sorted(arms, key=lambda arm: control_last(arm.parameterization, control))),
    )


def _leader(shape: str, found: Sequence[ArmBest], judged: JudgedLoss) -> str:
    """Return in words which arm of a shape is ahead."""
    known = [arm for arm in found if arm.shape == shape and arm.best_nats is not None]
    known.sort(key=lambda arm: arm.best_nats or 0.0)
    if not known:
        return f"nothing finished at {shape}"
    first = known[0]
    if len(known) == 1:
        best = judged.level(first.best_nats or 0.0)
        return f"at {shape} {best} after {first.num_trials} trials, at {first.at}"
    behind, se = known[1].behind_nats or 0.0, known[1].behind_se_nats
    sure = se is not None and behind > STANDARD_ERRORS * se
    error = "" if se is None else f" +- {se:.2g}"
    ahead = "is ahead of" if sure else "is not surely ahead of"
    by = f"{behind:.2g}{error} {judged.unit}"
    return f"at {shape} {first.parameterization} {ahead} {known[1].parameterization} ({by})"


def draw_search_best(info: SearchBestInfo) -> Figure:
    """Return the figure: one panel per shape."""
    shown = info.panels[:MOST_PANELS]
    there = {arm.parameterization for panel in shown for arm in panel.arms}
    names = sorted(there, key=lambda name: control_last(name, info.control))
    look_of = style.marks(names, info.control)
    with style.look():
        figure, grid = style.panels(info.title, len(shown), height=2.9, foot=0.55)
        handles = {}
        for axes, panel in zip(grid, shown, strict=True):
            axes.set_title(panel.shape + (" (base)" if panel.is_base else ""))
            low, top = _limits(panel)
            for arm in panel.arms:
                handles[arm.parameterization] = _draw_arm(axes, arm, look_of[arm.parameterization], top)
            if panel.equal_trials < max(arm.num_trials for arm in panel.arms):
                axes.axvline(panel.equal_trials, color=INK, alpha=FAINT, linestyle=":", linewidth=1.2)
            axes.set_ylim(low, top)
            axes.xaxis.set_major_locator(MaxNLocator(style.TICKS, integer=True))
            axes.set_xlabel("trials of the arm")
            axes.set_ylabel(f"loss ({info.judged.unit})")
        style.legend_below(figure, [handles[name] for name in names if name in handles], columns=3)
    return figure


def _limits(panel: ShapePanel) -> tuple[float, float]:
    known = [point.mean for arm in panel.arms for point in arm.points if math.isfinite(point.mean)]
    if not known:
        return 0.0, 1.0
    low, top = min(known), float(np.quantile(known, SHOWN_QUANTILE))
    height = max(top - low, 1e-3)
    return low - 0.06 * height, top + 0.12 * height


def _draw_arm(axes: Axes, arm: ArmProgress, mark: tuple[str, str], top: float) -> Line2D:
    """Draw an arm and return its line, for the legend."""
    color, marker = mark
    traces = _traces(arm)
    finished = [(num, loss) for num, loss, _ in traces if loss is not None]
    x, y = style.thinned([num for num, _ in finished], [loss for _, loss in finished])
    axes.plot(x, y, color=color, marker=marker, markersize=3.5, linestyle="none", alpha=0.45)
    diverged = [num for num, loss, _ in traces if loss is None]
    for num in style.thinned(diverged, diverged)[0]:
        axes.plot(num, top, color=color, marker="x", markersize=5, clip_on=False)
    # The lowest loss so far changes at these points, and its line goes on to the last trial.
    corners: list[tuple[int, float]] = []
    for num, _, best in traces:
        if best is not None and (not corners or best < corners[-1][1]):
            corners.append((num, best))
    corners += [(arm.num_trials, best) for _, best in corners[-1:]]
    x, y = ([corner[i] for corner in corners] for i in range(2))
    (line,) = axes.plot(x, y, color=color, linewidth=1.8, drawstyle="steps-post", label=arm.parameterization, zorder=3)
    return line


def _infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    if kind_of(results.spec).lists_trials:  # a grid chooses nothing
        return {}
    arms, found = search_progress(results), analysis.found("search_best")
    return (
        {"": search_best_info(arms, found, results.spec.search.kind, analysis.judged, analysis.control)} if arms else {}
    )


SEARCH_BEST = SweepFigure(
    name="search-best",
    question="Which arm of the search is ahead at equal budgets?",
    infos=_infos,
    draw=draw_search_best,
)
