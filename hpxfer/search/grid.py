"""Grid: every cell of the sweep's grid, all at once. It decides nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property

from hpxfer.scaling.shape import Shape
from hpxfer.search.checks import buys, countable
from hpxfer.search.kinds import SearchKind
from hpxfer.search.rounds import End, History, RoundSearch, Trials
from hpxfer.spec import Problem, Section, SweepSpec, WhyNot
from hpxfer.trial import Expansion, Trial


class GridSettings(Section):
    """A grid has no keys of its own."""


class WholeGrid:
    """One round of every trial of the grid, each once."""

    after = None

    def __init__(self, expansion: Expansion) -> None:
        self.expansion = expansion

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        return tuple(self.expansion.trials())

    @cached_property
    def bounds(self) -> Mapping[Shape, int]:
        return Counter(trial.shape for trial in self.trials)

    def play(self, history: History, before: End | None) -> Trials:
        yield self.trials


def grid_size(spec: SweepSpec) -> int:
    """Return the HP points of the grid."""
    sizes = [len(values.numbers()) for values in spec.grid.values()]
    return math.prod(sizes) if spec.product else sum(sizes)


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    yield from buys(spec, grid_size(spec), "the whole grid")
    yield from countable(spec, ("grid",))


GRID = SearchKind(
    name="grid",
    settings=GridSettings,
    problems=_problems,
    rounds=lambda spec: Counter([grid_size(spec)]),
    make=lambda expansion, stored: RoundSearch([WholeGrid(expansion)]),
    tunes="lines",
    fixed_size=True,
    lists_trials=True,
    replays=False,
    can_stop_early=True,
)
