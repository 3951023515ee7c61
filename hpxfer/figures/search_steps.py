"""Steps of a coordinate search: what the best change of each multiplier gained, and whether it was kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from hpxfer.analysis import Analysis
from hpxfer.analysis.statistics.search_steps import CoordinateStep
from hpxfer.figures import style
from hpxfer.figures.kinds import Info, SweepFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import listed
from hpxfer.results import Results
from hpxfer.verdict.loss import NATS, JudgedLoss
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
        axes.set_xlim(*_limits(info.steps))
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


def _limits(steps: Sequence[Step]) -> tuple[float, float]:
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


def _infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    found = analysis.found("search_steps")
    return {
        f"{label}-{shape}": search_steps_info(found, label, shape, analysis.judged, analysis.control)
        for label, shape in steps_names(found)
    }


SEARCH_STEPS = SweepFigure(
    name="search-steps",
    question="Which constant multipliers won by more than the noise?",
    infos=_infos,
    draw=draw_search_steps,
)
