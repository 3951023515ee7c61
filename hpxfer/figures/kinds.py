"""Kinds of figures: which figures a report has.

A figure is decided as data first: an `Info` with a title (the conclusion), a caption and the table of what is drawn.
Then it is drawn. A kind that has nothing to show gives the reason as text instead of an `Info`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hpxfer.registry import Rows

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from hpxfer.analysis import Analysis, TransferReport
    from hpxfer.results import Results


class Info(Protocol):
    """What a figure shows, decided before anything is drawn."""

    @property
    def title(self) -> str: ...

    @property
    def caption(self) -> str: ...

    def table(self) -> pd.DataFrame: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class HPInput:
    """What a figure about one scanned HP is made from."""

    results: Results | None  # None: the line is that of a table, which only figures of lines are asked for
    analysis: Analysis
    report: TransferReport  # on this HP
    line: pd.DataFrame  # that the report was made from

    @property
    def axes(self) -> list[str]:
        """The axes that the line is on."""
        return sorted(set(self.line["axis"]))


@dataclass(frozen=True, kw_only=True)
class HPFigure:
    """A kind of figure that a report has once per scanned HP and axis, e.g. `regret-lr-width`.

    `infos` returns axis -> what that figure shows, or why there is none. With `judged_only` the figure is drawn for the
    judged HP alone, and its name is that of the axis, e.g. `training-width`. With `under_verdict` the figure of the
    judged HP stands directly under the verdict on its axis. A figure `of_lines` needs no more than the line, the report
    and the statistics of lines, so that a table can feed it.
    """

    name: str  # how the names of its files start
    question: str  # that the figure answers
    infos: Callable[[HPInput], Mapping[str, Info | str]]
    draw: Callable[[Any], Figure]
    judged_only: bool = False
    under_verdict: bool = False
    of_lines: bool = False


@dataclass(frozen=True, kw_only=True)
class SweepFigure:
    """A kind of figure about a sweep as a whole.

    `infos` returns the end of a figure's name -> what the figure shows, or why there is none. An empty end stands for a
    kind with a single figure. An empty mapping says that the kind does not apply to this sweep.
    """

    name: str
    question: str
    infos: Callable[[Results, Analysis], Mapping[str, Info | str]]
    draw: Callable[[Any], Figure]


FigureKind = HPFigure | SweepFigure

# The order is that of a report.
FIGURES: Rows[FigureKind] = Rows(
    "figure",
    {
        "transfer": "hpxfer.figures.transfer:TRANSFER",
        "optimum": "hpxfer.figures.optimum:OPTIMUM",
        "regret": "hpxfer.figures.optimum:REGRET",
        "base-choice": "hpxfer.figures.base_choice:BASE_CHOICE",
        "stability": "hpxfer.figures.stability:STABILITY",
        "training": "hpxfer.figures.training:TRAINING",
        "steps-to-loss": "hpxfer.figures.steps_to_loss:STEPS_TO_LOSS",
        "collapse": "hpxfer.figures.collapse:COLLAPSE",
        "normalized-collapse": "hpxfer.figures.collapse:NORMALIZED_COLLAPSE",
        "balance": "hpxfer.figures.balance:BALANCE",
        "routers": "hpxfer.figures.routers:ROUTERS",
        "surface": "hpxfer.figures.surface:SURFACE",
        "pairs": "hpxfer.figures.surface:PAIRS",
        "search-best": "hpxfer.figures.searches:SEARCH_BEST",
        "search-steps": "hpxfer.figures.search_rounds:SEARCH_STEPS",
        "search-refine": "hpxfer.figures.search_rounds:SEARCH_REFINE",
        "doubt": "hpxfer.figures.searches:DOUBT",
        "search-heatmaps": "hpxfer.figures.search_rounds:SEARCH_HEATMAPS",
        "loss-parameters": "hpxfer.figures.parameters:LOSS_PARAMETERS",
        "experts-size": "hpxfer.figures.experts_size:EXPERTS_SIZE",
        "samples": "hpxfer.figures.samples:SAMPLES",
    },
)
