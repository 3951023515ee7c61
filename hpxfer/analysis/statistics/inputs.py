"""What a statistic reads: the results of a sweep, and the estimates behind the verdicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hpxfer.analysis.references import References
from hpxfer.scaling.shape import Shape
from hpxfer.spec.axes import axes_of
from hpxfer.spec.data import own_data
from hpxfer.spec.data_section import DataSpec, PointData
from hpxfer.verdict.report import JudgedLine

if TYPE_CHECKING:
    from hpxfer.results import Results

NO_BASE_VALUE = "no HP was transferred: the base has no optimum"
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """One sweep, as its statistics see it."""

    results: Results  # the cells, trials and curves of the sweep
    loss: str  # the loss that it is judged by: validation | final_window
    lines: tuple[JudgedLine, ...]  # one per HP that the sweep scans, the judged HP first
    references: References = field(default_factory=References)  # what arms are compared with, as far as it is given
    _known: dict[Callable[[Inputs], Any], Any] = field(default_factory=dict)

    @property
    def hp(self) -> str:
        """The judged HP."""
        return self.results.spec.judged_hp

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
