"""What a statistic reads: the estimates behind the verdicts and, of a sweep, its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hpxfer.analysis.references import References
from hpxfer.scaling.shape import Shape
from hpxfer.spec import DataSpec, PointData, axes_of, own_data
from hpxfer.verdict import JudgedLine, Rules

if TYPE_CHECKING:
    from hpxfer.results import Results

NO_BASE_VALUE = "no HP was transferred: the base has no optimum"
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """One sweep or one table, as its statistics see it."""

    of_sweep: Results | None  # the cells, trials and curves of the sweep; None: a table, see `Statistic.of_lines`
    hp: str  # the judged HP
    loss: str  # the loss that it is judged by: validation | final_window
    lines: tuple[JudgedLine, ...]  # one per HP that is scanned, the judged HP first
    rules: Rules
    references: References = field(default_factory=References)  # what arms are compared with, as far as it is given
    _known: dict[Callable[[Inputs], Any], Any] = field(default_factory=dict)

    @property
    def results(self) -> Results:
        """The results of the sweep, which a statistic of lines must not ask for."""
        assert self.of_sweep is not None, "a table has no trials"
        return self.of_sweep

    @cached_property
    def judged(self) -> JudgedLine | None:
        """The line of the judged HP; None if it cannot be read."""
        return next((line for line in self.lines if line.hp == self.hp), None)

    @cached_property
    def shapes(self) -> dict[tuple[str, str], Shape]:
        """(axis, name of a shape) -> the shape."""
        return {
            (path.name, path.label(point.shape)): point.shape
            for path in axes_of(self.results.spec)
            for point in path.points
        }

    @cached_property
    def _own_data(self) -> dict[Shape, PointData]:
        return own_data(self.results.spec)

    def training_data(self, shape: Shape) -> DataSpec | PointData:
        """Return the data that the runs of a shape train on: its own, or that of the sweep."""
        return self._own_data.get(shape, self.results.spec.data)

    def once(self, compute: Callable[[Inputs], Answer]) -> Answer:
        """Return `compute(self)`, computed once for all statistics that need it."""
        if compute not in self._known:
            self._known[compute] = compute(self)
        return cast(Answer, self._known[compute])
