"""Grid: every cell of the sweep's grid, all at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from hpxfer.scaling.shape import Shape
from hpxfer.search.kinds import SearchKind, Stored
from hpxfer.search.protocol import Outcome, Progress, buys, countable
from hpxfer.spec import SweepSpec
from hpxfer.spec.fields import Problem, Section, WhyNot
from hpxfer.trial import Expansion, Trial


class GridSettings(Section):
    """A grid has no keys of its own."""


class GridSearch:
    """The grid as a search. It decides nothing, so it asks for all missing trials at once."""

    def __init__(self, expansion: Expansion) -> None:
        self.expansion = expansion
        self._known: Mapping[str, Outcome] = {}

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """Every trial of the grid, once."""
        return tuple(self.expansion.trials())

    def ask(self, outcomes: Mapping[str, Outcome], running: Collection[str]) -> Sequence[Trial]:
        """Return the trials of the grid that have neither ended nor been started."""
        self._known = outcomes
        return tuple(trial for trial in self.trials if trial.id not in outcomes and trial.id not in running)

    def progress(self) -> Mapping[Shape, Progress]:
        """Return shape -> how many of its trials have ended, and how many have not."""
        done = Counter(trial.shape for trial in self.trials if trial.id in self._known)
        total = Counter(trial.shape for trial in self.trials)
        return {shape: Progress(done[shape], most - done[shape]) for shape, most in total.items()}

    def why(self) -> str:
        """Return nothing, because a grid decides nothing."""
        return ""


def grid_size(spec: SweepSpec) -> int:
    """Return the HP points of the grid."""
    sizes = [len(values.numbers()) for values in spec.grid.values()]
    return math.prod(sizes) if spec.product else sum(sizes)


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    yield from buys(spec, grid_size(spec), "the whole grid")
    yield from countable(spec, ("grid",))


def _make(expansion: Expansion, stored: Stored) -> GridSearch:
    return GridSearch(expansion)


GRID = SearchKind(
    name="grid",
    settings=GridSettings,
    problems=_problems,
    size=grid_size,
    rounds=lambda spec: Counter([grid_size(spec)]),
    make=_make,
    tunes="lines",
    fixed_size=True,
    lists_trials=True,
    replays=False,
    can_stop_early=True,
)
