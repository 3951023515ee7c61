"""The path of a refine search: the points of a line by the round that asked for them, and how the interval narrowed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpxfer.analysis import Analysis
from hpxfer.figures import style
from hpxfer.figures.kinds import Info, SweepFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import listed, octaves_of
from hpxfer.results import Results
from hpxfer.search.kinds import kind_of
from hpxfer.search.refine import Bracket, MeasuredLine, bracket_of
from hpxfer.search.replay import replayed
from hpxfer.search.rounds import ArmHistory, mean
from hpxfer.search.values import exponent_of
from hpxfer.verdict.loss_grid import NATS, JudgedLoss

MOST_PANELS = 6
SHOWN_RISE = 4.0  # times the rise of the highest point after round 1: the first line may reach far up


@dataclass(frozen=True, kw_only=True)
class RefineRound:
    """One round: the exponents that it asked for with their mean losses (None: diverged), and the interval after it."""

    points: tuple[tuple[float, float | None], ...]
    bracket: Bracket | None


@dataclass(frozen=True, kw_only=True)
class RefinePanel:
    """One HP in one arm."""

    arm: str
    rounds: tuple[RefineRound, ...]
    ended: bool


@dataclass(frozen=True, kw_only=True)
class RefineInfo:
    """The lines of one HP, one panel per arm."""

    title: str
    caption: str
    hp: str
    panels: tuple[RefinePanel, ...]
    judged: JudgedLoss = NATS

    def table(self) -> pd.DataFrame:
        """Return one row per point, with the interval after its round."""
        rows = [
            (panel.arm, number, x, loss, *_ends(asked.bracket))
            for panel in self.panels
            for number, asked in enumerate(panel.rounds, start=1)
            for x, loss in asked.points
        ]
        return pd.DataFrame(
            rows, columns=["arm", "round", f"log2_{self.hp}", "loss_nats", "log2_low", "log2_high"]
        ).rename(columns=self.judged.column)


def _ends(bracket: Bracket | None) -> tuple[float | None, float | None]:
    return (None, None) if bracket is None else (bracket.low, bracket.high)


def refine_info(played: Sequence[ArmHistory], hp: str, judged: JudgedLoss = NATS) -> RefineInfo | str:
    """Return what the figure of one HP shows, or why there is none."""
    panels = tuple(
        _panel(history, hp) for history in played if history.strategy.name == f"refine {hp}" and history.rounds
    )
    if not panels:
        return "no round of it has ended"
    left_out = len(panels) - MOST_PANELS
    return RefineInfo(
        title=f"Refined {hp}: {listed([_result(panel) for panel in panels], 2)}",
        caption="A dot is a point's mean loss over seeds, in the color of the round that asked for it. The bars below "
        "are the interval of the optimum after each round, from the first round on top to the last. An interval "
        "reaches from the best point to the nearest points that are worse by more than two standard errors. A cross "
        "means that a seed diverged." + (f" {left_out} more arms are in the data." if left_out > 0 else ""),
        hp=hp,
        panels=panels,
        judged=judged,
    )


def _panel(played: ArmHistory, hp: str) -> RefinePanel:
    rounds, known = [], {}
    for ended in played.rounds:
        points = []
        for point, losses in zip(ended.round.points, ended.losses, strict=True):
            x = exponent_of(point.get(hp))
            known[x] = losses
            points.append((x, mean(losses) if math.isfinite(mean(losses)) else None))
        line = MeasuredLine(hp=hp, start=ended.round.points[0], given=(), losses=tuple(sorted(known.items())))
        rounds.append(RefineRound(points=tuple(sorted(points)), bracket=bracket_of(line)))
    return RefinePanel(arm=played.strategy.arm.name, rounds=tuple(rounds), ended=played.end is not None)


def _result(panel: RefinePanel) -> str:
    last = panel.rounds[-1].bracket
    if last is None:
        return f"{panel.arm}: everything diverged"
    ends = ["open" if end is None else f"2^{end:g}" for end in (last.low, last.high)]
    return f"{panel.arm} 2^{last.at:g} [{', '.join(ends)}]" + ("" if panel.ended else ", not ended")


def draw_refine(info: RefineInfo) -> Figure:
    """Return the figure: one panel per arm."""
    shown = info.panels[:MOST_PANELS]
    colors = style.ramp(max(len(panel.rounds) for panel in shown))
    with style.look():
        figure, grid = style.panels(info.title, len(shown), height=3.2, foot=0.55)
        for axes, panel in zip(grid, shown, strict=True):
            axes.set_title(style.wrapped(panel.arm, 46))
            _draw_panel(axes, panel, colors)
            axes.set_xlabel(octaves_of(info.hp))
            axes.set_ylabel(f"loss ({info.judged.unit})")
        style.legend_below(figure, list(_handles(colors)), columns=6)
    return figure


def _draw_panel(axes: Axes, panel: RefinePanel, colors: Sequence[str]) -> None:
    known = sorted((x, loss) for asked in panel.rounds for x, loss in asked.points if loss is not None)
    low = min((loss for _, loss in known), default=0.0)
    top = _top(panel, low)
    height = max(top - low, 1e-4)
    x, y = ([row[i] for row in known] for i in range(2))
    axes.plot(x, y, color=INK, alpha=FAINT, linewidth=1.0)
    for number, (asked, color) in enumerate(zip(panel.rounds, colors, strict=False)):
        finished = [(at, loss) for at, loss in asked.points if loss is not None]
        x, y = ([row[i] for row in finished] for i in range(2))
        axes.plot(x, y, color=color, marker="o", linestyle="none", zorder=3)
        for at, loss in asked.points:
            if loss is None:
                axes.plot(at, top, color=color, marker="x", linestyle="none", clip_on=False, zorder=3)
        _draw_bracket(axes, asked.bracket, low - height * (0.12 + 0.07 * number), color)
    axes.set_ylim(low - height * (0.14 + 0.07 * len(panel.rounds)), top + 0.05 * height)
    style.whole_octaves(axes)


def _top(panel: RefinePanel, low: float) -> float:
    """Return the highest loss that is shown. Points of the first line that lie far above the others are left out."""
    first = [loss for _, loss in panel.rounds[0].points if loss is not None]
    later = [loss for asked in panel.rounds[1:] for _, loss in asked.points if loss is not None]
    highest = max([*first, *later], default=1.0)
    return min(highest, low + SHOWN_RISE * (max(later) - low)) if later and max(later) > low else highest


def _draw_bracket(axes: Axes, bracket: Bracket | None, y: float, color: str) -> None:
    """Draw the interval after a round. An open end is an arrow."""
    if bracket is None:
        return
    low, high = bracket.low, bracket.high
    ends = [bracket.at if low is None else low, bracket.at if high is None else high]
    axes.plot(ends, [y, y], color=color, linewidth=2.4, solid_capstyle="butt")
    axes.plot(bracket.at, y, marker="|", color=color, markersize=8, markeredgewidth=2)
    for end, marker in ((low, "<"), (high, ">")):
        if end is None:
            axes.plot(bracket.at, y, marker=marker, color=color, markersize=6)


def _handles(colors: Sequence[str]) -> Iterator[Line2D]:
    for number, color in enumerate(colors, start=1):
        yield Line2D([], [], marker="o", color=color, label=f"round {number}")


def _infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    if kind_of(results.spec).shows != "brackets":
        return {}
    played = replayed(results)
    return {hp: refine_info(played, hp, analysis.judged) for hp in results.spec.grid}


SEARCH_REFINE = SweepFigure(
    name="search-refine", question="How did the search narrow its interval?", infos=_infos, draw=draw_refine
)
