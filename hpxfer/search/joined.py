"""Joined: the searches of a sweep's variants as one search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from hpxfer.scaling.shape import Shape
from hpxfer.search.protocol import Outcome, Progress, Search
from hpxfer.search.rounds import RoundSearch
from hpxfer.trial import Expansion, Trial


def joined(expansion: Expansion, searches: Sequence[Search]) -> Search:
    """Return one search that asks for what each of them asks for, of a sweep with this expansion."""
    rounds = [search for search in searches if isinstance(search, RoundSearch)]
    if len(rounds) == len(searches):
        return RoundSearch(expansion, [strategy for search in rounds for strategy in search.strategies])
    return Joined(searches)


class Joined:
    """Several searches side by side. A trial that several of them want is asked for once."""

    def __init__(self, searches: Sequence[Search]) -> None:
        self._searches = tuple(searches)

    def ask(self, outcomes: Mapping[str, Outcome], running: Collection[str]) -> Sequence[Trial]:
        """Return what one of them asks for."""
        wanted = (trial for search in self._searches for trial in search.ask(outcomes, running))
        return tuple({trial.id: trial for trial in wanted}.values())

    def progress(self) -> Mapping[Shape, Progress]:
        """Return shape -> the sum of their progress. Trials that they share count once for each."""
        done, left = Counter[Shape](), Counter[Shape]()
        for search in self._searches:
            for shape, progress in search.progress().items():
                done[shape] += progress.num_done
                left[shape] += progress.most_left
        return {shape: Progress(done[shape], left[shape]) for shape in done | left}

    def why(self) -> str:
        """Return the decisions of each of them."""
        return "\n".join(text for search in self._searches if (text := search.why()))
