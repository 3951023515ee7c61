"""Search kinds: the registry of searches, and what a row of it says. A search is added here.

A search is one file with its row, and one line below. `register_search(row)` adds a search from outside the package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hpxfer.errors import HpxferError
from hpxfer.registry import Registry
from hpxfer.search.protocol import Search
from hpxfer.spec import Problem, Section, SweepSpec, WhyNot
from hpxfer.trial import Expansion

if TYPE_CHECKING:
    import pandas as pd

    from hpxfer.search.stored import Searched

Stored = Callable[[], "pd.DataFrame"]  # reads the stored trials of the sweep's folder


def size_of_rounds(spec: SweepSpec) -> int:
    """Return the points of all rounds that an arm may have."""
    return sum(points * number for points, number in spec.search_row.rounds(spec).items())


@dataclass(frozen=True, kw_only=True)
class SearchKind:
    """One kind of search: what a sweep file may say about it, how many trials it needs, and how it is made."""

    name: str
    """The value of `search.kind`."""
    settings: type[Section]
    """The keys of the `search` section that belong to the kind, with their defaults."""
    rounds: Callable[[SweepSpec], Counter[int]]
    """Returns points -> the most rounds of that many points in one arm. The plan counts stacks by it."""
    size: Callable[[SweepSpec], int] = size_of_rounds
    """Returns the most HP points of one arm if no budget limits it."""
    splits_seeds: bool = False
    """Whether a round may train some seeds of a point only. `rounds` then counts trials where it says points."""
    make: Callable[[Expansion, Stored], Search]
    """Returns the search of an expansion, each of whose `arms_of` has base values of its own: `arm.spec`. Only a search
    that starts from foreign trials reads the stored ones."""
    problems: Callable[[SweepSpec, WhyNot], Iterator[Problem]] = lambda spec, why_not: iter(())
    """Yields (key path, what is wrong). The keys of `settings` have been checked one by one."""
    hps: Callable[[SweepSpec], tuple[str, ...]] = lambda spec: tuple(spec.grid)
    """Returns the HPs that the search varies."""
    why_no_line: Callable[[SweepSpec, str], str | None] = lambda spec, hp: None
    """Returns why the search scans no line of an HP, or None if it does."""
    where: Literal["base", "all"] = "all"
    """The shapes that are searched if the file does not say."""
    tunes: Literal["lines", "points"]
    """What the recipe comes from: the fitted minimum of a line, or the best point."""
    fixed_size: bool = False
    """Whether every arm trains exactly as many trials as `size` says."""
    is_box: bool = False
    """Whether points lie anywhere between the ends of the grid, instead of on lines through the base values."""
    lists_trials: bool = False
    """Whether the trials are those of the sweep's grid, all known before the first one is trained."""
    replays: bool = True
    """Whether reports replay the search from the stored losses. It must be a `RoundSearch` and fast."""
    can_stop_early: bool = False
    """Whether trials may stop before their end. Not if a loss at the end of a round decides what comes next."""
    needs_grid: bool = True
    """Whether the sweep must scan an HP in its grid."""
    report: Callable[[Searched], Iterable[Any]] = lambda results: ()
    """Returns what its rounds came to, replayed from the stored losses: the rows of a table, which are frozen
    dataclasses of one class."""
    form: Literal["steps", "heatmaps", "brackets"] | None = None
    """The figure that draws the report."""
    stages: tuple[str, ...] = ()
    """The stages that the figure of heatmaps draws."""
    error: Callable[[SweepSpec], float | None] = lambda spec: None
    """Returns the largest chance of a wrong verdict that the search stops at, and that the report judges with. None is
    the report's own."""
    also_limited: Callable[[SweepSpec], str] = lambda spec: ""
    """Returns in words what limits the search beside the trials of an arm, or nothing."""


SEARCHES: Registry[SearchKind] = Registry(
    "search",
    {
        "grid": "hpxfer.search.grid:GRID",
        "random": "hpxfer.search.random_search:RANDOM",
        "random-pairs": "hpxfer.search.random_pairs:RANDOM_PAIRS",
        "optuna": "hpxfer.search.optuna_search:OPTUNA",
        "refine": "hpxfer.search.refine:REFINE",
        "coordinate": "hpxfer.search.coordinate:COORDINATE",
        "staged-grid": "hpxfer.search.staged_grid:STAGED_GRID",
        "verdict": "hpxfer.search.verdict:VERDICT",
    },
)


def register_search(kind: SearchKind) -> SearchKind:
    """Add a search, which a sweep then names under `search.kind`. Raise HpxferError if the name is taken."""
    return SEARCHES.register(kind)


def kind_of(spec: SweepSpec) -> SearchKind:
    """Return the kind of search that a sweep asks for.

    Results of a search that this process does not know, because a plug-in registered it, are read as stored.
    """
    name = spec.search.kind
    if name in SEARCHES:
        return SEARCHES.get(name)

    def unknown(expansion: Expansion, stored: Stored) -> Search:
        raise HpxferError(f"search.kind: {name} is registered by a plug-in; name it with --plugin")

    return SearchKind(
        name=name, settings=Section, rounds=lambda spec: Counter(), make=unknown, tunes="lines", replays=False
    )


def no_trials() -> pd.DataFrame:
    """Return no stored trials."""
    import pandas as pd

    return pd.DataFrame()


def make_search(expansion: Expansion, stored: Stored = no_trials) -> Search:
    """Return the search that the sweep asks for. `stored` reads the trials that its results folder has."""
    return kind_of(expansion.spec).make(expansion, stored)
