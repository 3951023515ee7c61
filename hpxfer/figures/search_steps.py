"""Coordinate's steps: what the best change of each multiplier gained, with its error, and whether it was kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from hpxfer.analysis.search_steps import CoordinateStep
from hpxfer.analysis.thresholds import CONTROL
from hpxfer.figures import style
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.words import listed

ROW_INCHES = 0.3
MOST_BELOW = 1.5  # of the largest gain or threshold: losses far below would hide what matters


@dataclass(frozen=True, kw_only=True)
class SearchStepsInfo:
    """The steps of one parameterization at one shape, a row each: its best ratio, and the others beside it."""

    title: str
    caption: str
    parameterization: str
    steps: tuple[tuple[CoordinateStep, ...], ...]  # the ratios of each step

    def table(self) -> pd.DataFrame:
        """Return a row for each ratio tried."""
        names = ["step", "multiplier", "ratio", "gain_nats", "se_nats", "needed", "diverged", "kept"]
        return pd.DataFrame([{name: getattr(one, name) for name in names} for step in self.steps for one in step])


def steps_names(found: Sequence[CoordinateStep]) -> tuple[tuple[str, str], ...]:
    """Return the (parameterization, shape) that there are steps of."""
    return tuple(dict.fromkeys((one.parameterization, one.shape) for one in found))


def search_steps_info(found: Sequence[CoordinateStep], parameterization: str, shape: str) -> SearchStepsInfo | str:
    """Return what the figure of one arm shows, or why there is none."""
    of_arm = [one for one in found if (one.parameterization, one.shape) == (parameterization, shape)]
    if not of_arm:
        return "no step of it has ended"
    steps = tuple(tuple(one for one in of_arm if one.step == number) for number in sorted({one.step for one in of_arm}))
    kept = [one for one in of_arm if one.kept]
    gained = sum(one.gain_nats or 0.0 for one in kept)
    said = f", {gained:.2g} nats in all: {listed([f'{one.multiplier} x {one.ratio:.4g}' for one in kept])}"
    return SearchStepsInfo(
        title=f"{parameterization} at {shape}: {len(kept)} of {len(steps)} changes won by more than the noise"
        + (said if kept else ""),
        caption=f"Gain over what was kept before, in nats, of the best ratio of each multiplier, with "
        f"{of_arm[0].needed:g} standard errors of the paired difference over seeds; small dots are the other ratios. "
        "Kept where the whole bar lies above zero.",
        parameterization=parameterization,
        steps=steps,
    )


def draw_search_steps(info: SearchStepsInfo) -> Figure:
    """Return the figure: a row a step, the first on top."""
    color, _ = style.marks([info.parameterization], CONTROL)[info.parameterization]
    with style.look():
        figure, (axes,) = style.panels(info.title, 1, height=1.1 + ROW_INCHES * len(info.steps), foot=0.5)
        for row, step in enumerate(info.steps):
            _draw_step(axes, row, step, color)
        axes.axvline(0.0, color=INK, alpha=FAINT, linewidth=1.0)
        axes.set_ylim(len(info.steps) - 0.4, -0.6)
        axes.yaxis.set_major_locator(FixedLocator(range(len(info.steps))))
        axes.set_yticklabels([_label(step) for step in info.steps])
        axes.set_xlim(*_limits(info.steps))
        axes.set_xlabel("gain (nats)")
        figure.legend(handles=list(_handles(color)), loc="outside lower center", ncols=3)
    return figure


def _best(step: Sequence[CoordinateStep]) -> CoordinateStep | None:
    told = [one for one in step if one.gain_nats is not None]
    return max(told, key=lambda one: one.gain_nats or 0.0, default=None)


def _label(step: Sequence[CoordinateStep]) -> str:
    best = _best(step)
    name = step[0].multiplier
    return f"{name}: all diverged" if best is None else f"{name} x {best.ratio:.4g}"


def _draw_step(axes: Axes, row: int, step: Sequence[CoordinateStep], color: str) -> None:
    best = _best(step)
    others = [one.gain_nats for one in step if one.gain_nats is not None and one is not best]
    axes.plot(others, [row] * len(others), marker=".", markersize=5, color=INK, alpha=FAINT, linestyle="none")
    if best is None or best.gain_nats is None:
        return
    if best.se_nats is not None:
        reach = best.needed * best.se_nats
        axes.plot([best.gain_nats - reach, best.gain_nats + reach], [row, row], color=color, linewidth=1.8)
    face = color if best.kept else "none"
    axes.plot(best.gain_nats, row, marker="o", markersize=7, markerfacecolor=face, markeredgecolor=color, zorder=3)


def _limits(steps: Sequence[Sequence[CoordinateStep]]) -> tuple[float, float]:
    """Return ends of the axis that show every bar; what lies far below it is left out."""
    ends = [0.0]
    for step in steps:
        best = _best(step)
        if best is not None and best.gain_nats is not None:
            reach = best.needed * (best.se_nats or 0.0)
            ends += [best.gain_nats - reach, best.gain_nats + reach]
    low, high = min(ends), max(ends)
    others = [one.gain_nats for step in steps for one in step if one.gain_nats is not None]
    room = max(high - low, 1e-4)
    low = max(min([low, *others]), low - MOST_BELOW * room)
    return low - 0.05 * room, high + 0.08 * room


def _handles(color: str) -> Iterator[Line2D]:
    dot = {"marker": "o", "markersize": 7, "linestyle": "none", "markeredgecolor": color}
    yield Line2D([], [], markerfacecolor=color, label="kept", **dot)  # type: ignore[arg-type]
    yield Line2D([], [], markerfacecolor="none", label="rejected", **dot)  # type: ignore[arg-type]
    yield Line2D([], [], marker=".", color=INK, alpha=FAINT, linestyle="none", label="other ratios")
