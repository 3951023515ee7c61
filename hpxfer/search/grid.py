"""Grid: every cell of the sweep's grid, all at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import islice

from hpxfer.scaling.shape import Shape
from hpxfer.search.protocol import Outcome, Progress
from hpxfer.trial import Expansion, Trial


class GridSearch:
    """The grid as a search: it decides nothing, so it can ask for all that is missing."""

    def __init__(self, expansion: Expansion) -> None:
        self.expansion = expansion
        self._known: Mapping[str, Outcome] = {}

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """Every trial of the grid, once."""
        return tuple(self.expansion.trials())

    def ask(self, outcomes: Mapping[str, Outcome], out: Collection[str], most: int | None) -> Sequence[Trial]:
        """Return the first `most` trials of the grid that are neither known nor out."""
        self._known = outcomes
        missing = (trial for trial in self.trials if trial.id not in outcomes and trial.id not in out)
        return tuple(islice(missing, most))

    def bound(self) -> Mapping[Shape, int]:
        """Return shape -> its trials."""
        return Counter(trial.shape for trial in self.trials)

    def progress(self) -> Mapping[Shape, Progress]:
        """Return shape -> how many of its trials are done, and how many are not."""
        done = Counter(trial.shape for trial in self.trials if trial.id in self._known)
        return {shape: Progress(done[shape], most - done[shape]) for shape, most in self.bound().items()}

    def why(self) -> str:
        """Return nothing: a grid has nothing to decide."""
        return ""
