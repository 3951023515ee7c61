"""Refine's path: the points of a line by the round that asked for them, and how its interval narrowed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpxfer.figures import style
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.words import listed
from hpxfer.search.refine import Bracket, Line, bracket_of
from hpxfer.search.rounds import Played, mean
from hpxfer.search.values import exponent_of

MOST_PANELS = 6
SHOWN_RISE = 4.0  # times the rise of the second round's highest point: first lines reach far up


@dataclass(frozen=True, kw_only=True)
class RefineRound:
    """One round: the exponents it asked for, their mean losses (None: diverged), and the interval after it."""

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
    """The lines of one HP, an arm a panel."""

    title: str
    caption: str
    hp: str
    panels: tuple[RefinePanel, ...]

    def table(self) -> pd.DataFrame:
        """Return a row for each point, with the interval after its round."""
        rows = [
            (panel.arm, number, x, loss, *_sides(one.bracket))
            for panel in self.panels
            for number, one in enumerate(panel.rounds, start=1)
            for x, loss in one.points
        ]
        return pd.DataFrame(rows, columns=["arm", "round", f"log2_{self.hp}", "loss_nats", "log2_low", "log2_high"])


def _sides(bracket: Bracket | None) -> tuple[float | None, float | None]:
    return (None, None) if bracket is None else (bracket.low, bracket.high)


def refine_info(played: Sequence[Played], hp: str) -> RefineInfo | str:
    """Return what the figure of one HP shows, or why there is none."""
    panels = tuple(_panel(one, hp) for one in played if one.track.name == f"refine {hp}" and one.turns)
    if not panels:
        return "no round of it has ended"
    left_out = len(panels) - MOST_PANELS
    return RefineInfo(
        title=f"Refined {hp}: {listed([_said(one) for one in panels], 2)}",
        caption="A dot is a point's mean loss over seeds, its color the round that asked for it; the bars below are "
        "the interval of the optimum after each round, the last one at the bottom: from the best point to the nearest "
        "ones that are worse by more than two standard errors. A cross: a seed diverged."
        + (f" {left_out} more arms are in the data." if left_out > 0 else ""),
        hp=hp,
        panels=panels,
    )


def _panel(played: Played, hp: str) -> RefinePanel:
    rounds, known = [], {}
    for turn in played.turns:
        points = []
        for point, losses in zip(turn.round.points, turn.losses, strict=True):
            x = exponent_of(point.get(hp))
            known[x] = losses
            points.append((x, mean(losses) if math.isfinite(mean(losses)) else None))
        line = Line(hp=hp, start=turn.round.points[0], given=(), losses=tuple(sorted(known.items())))
        rounds.append(RefineRound(points=tuple(sorted(points)), bracket=bracket_of(line)))
    return RefinePanel(arm=played.track.arm.name, rounds=tuple(rounds), ended=played.end is not None)


def _said(panel: RefinePanel) -> str:
    last = panel.rounds[-1].bracket
    if last is None:
        return f"{panel.arm}: everything diverged"
    sides = ["open" if side is None else f"2^{side:g}" for side in (last.low, last.high)]
    return f"{panel.arm} 2^{last.at:g} [{', '.join(sides)}]" + ("" if panel.ended else ", not ended")


def draw_refine(info: RefineInfo) -> Figure:
    """Return the figure: a panel an arm."""
    shown = info.panels[:MOST_PANELS]
    most = max(len(one.rounds) for one in shown)
    colors = style.ramp(most)
    with style.look():
        figure, grid = style.panels(info.title, len(shown), height=3.2, foot=0.55)
        for axes, panel in zip(grid, shown, strict=True):
            axes.set_title(style.wrapped(panel.arm, 46))
            _draw_panel(axes, panel, colors)
            axes.set_xlabel(f"log2 {info.hp}")
            axes.set_ylabel("loss (nats)")
        figure.legend(handles=list(_handles(colors)), loc="outside lower center", ncols=min(most, 6))
    return figure


def _draw_panel(axes: Axes, panel: RefinePanel, colors: Sequence[str]) -> None:
    known = sorted((x, loss) for one in panel.rounds for x, loss in one.points if loss is not None)
    low = min((loss for _, loss in known), default=0.0)
    top = _top(panel, low)
    room = max(top - low, 1e-4)
    x, y = ([row[i] for row in known] for i in range(2))
    axes.plot(x, y, color=INK, alpha=FAINT, linewidth=1.0)
    floor = low - room * (0.14 + 0.07 * len(panel.rounds))
    for number, (one, color) in enumerate(zip(panel.rounds, colors, strict=False)):
        told = [(at, loss) for at, loss in one.points if loss is not None]
        x, y = ([row[i] for row in told] for i in range(2))
        axes.plot(x, y, color=color, marker="o", linestyle="none", zorder=3)
        for at, loss in one.points:
            if loss is None:
                axes.plot(at, top, color=color, marker="x", linestyle="none", clip_on=False, zorder=3)
        _draw_bracket(axes, one.bracket, low - room * (0.12 + 0.07 * number), color)
    axes.set_ylim(floor, top + 0.05 * room)
    style.whole_octaves(axes)


def _top(panel: RefinePanel, low: float) -> float:
    """Return the highest loss shown: of the first line, far-away points may be left out of sight."""
    first = [loss for _, loss in panel.rounds[0].points if loss is not None]
    later = [loss for one in panel.rounds[1:] for _, loss in one.points if loss is not None]
    highest = max([*first, *later], default=1.0)
    return min(highest, low + SHOWN_RISE * (max(later) - low)) if later and max(later) > low else highest


def _draw_bracket(axes: Axes, bracket: Bracket | None, y: float, color: str) -> None:
    """Draw the interval after a round; an open side ends in an arrow."""
    if bracket is None:
        return
    low, high = bracket.low, bracket.high
    ends = [bracket.at if low is None else low, bracket.at if high is None else high]
    axes.plot(ends, [y, y], color=color, linewidth=2.4, solid_capstyle="butt")
    axes.plot(bracket.at, y, marker="|", color=color, markersize=8, markeredgewidth=2)
    for side, marker in ((low, "<"), (high, ">")):
        if side is None:
            axes.plot(bracket.at, y, marker=marker, color=color, markersize=6)


def _handles(colors: Sequence[str]) -> Iterator[Line2D]:
    for number, color in enumerate(colors, start=1):
        yield Line2D([], [], marker="o", color=color, label=f"round {number}")
