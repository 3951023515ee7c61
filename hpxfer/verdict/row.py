"""One shape as a follow-up sees it: its finding, and its losses at every planned HP value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from hpxfer.verdict.findings import Finding, ShapeFinding
from hpxfer.verdict.loss_grid import SeedLosses, ShapeLosses
from hpxfer.verdict.thresholds import NUM_SE
from hpxfer.verdict.tied import lowest_of

SAME_SHARE = 1e-12  # losses with a smaller relative difference count as exactly equal
MISFIT = 3.0  # a scatter of cells about every basin that is this many times that of seeds is no noise


@dataclass(frozen=True, kw_only=True)
class Lack:
    """HP values that the grid lacks at one shape."""

    name: str  # of the shape
    scale: float
    values: tuple[float, ...]
    why: str  # completes the sentence "width 64: HP value 2^-10, ..."


@dataclass(frozen=True, kw_only=True)
class Row:
    """One shape: its finding, and its losses at every planned HP value."""

    name: str
    shape: ShapeFinding
    cells: tuple[SeedLosses, ...]
    noise: float | None  # standard deviation of one seed's loss
    transferred: float | None  # the HP

    @classmethod
    def of(cls, finding: Finding, shape: ShapeFinding, row: ShapeLosses) -> Row:
        """Return the row of one shape of a finding."""
        return cls(
            name=finding.name(shape),
            shape=shape,
            cells=row.cells,
            noise=finding.noise_nats,
            transferred=finding.base_value,
        )

    @property
    def exponents(self) -> list[float]:
        """log2 of every planned HP value, ascending."""
        return [cell.log2 for cell in self.cells]

    @cached_property
    def losses(self) -> list[float | None]:
        """The median loss of every planned HP value: +inf where it diverged, None without a result."""
        return [cell.median for cell in self.cells]

    @cached_property
    def finite(self) -> list[int]:
        """The indices of the cells with a finite loss."""
        return [i for i, loss in enumerate(self.losses) if loss is not None and math.isfinite(loss)]

    @cached_property
    def lowest(self) -> int | None:
        """The index of the cell with the lowest loss; None without a finite loss."""
        if not self.finite:
            return None
        at = lowest_of([self.loss(i) for i in self.finite], [self.exponents[i] for i in self.finite])
        return self.finite[at]

    @property
    def is_constant(self) -> bool:
        """Whether several HP values were measured and all have exactly the same loss."""
        losses = [self.loss(i) for i in self.finite]
        return len(losses) > 1 and max(losses) - min(losses) <= SAME_SHARE * abs(max(losses))

    @property
    def tie(self) -> tuple[float, float] | None:
        """The exponents of the lowest cell and its better neighbor, ascending, if noise does not tell them apart."""
        if self.lowest is None:
            return None
        beside = [i for i in (self.lowest - 1, self.lowest + 1) if i in self.finite]
        second = min(beside, key=self.loss, default=None)
        if second is None or self.loss(second) - self.loss(self.lowest) > NUM_SE * self.se_of_difference(second):
            return None
        low, high = sorted((self.exponents[self.lowest], self.exponents[second]))
        return low, high

    @property
    def is_misfit(self) -> bool:
        """Whether its cells scatter about any basin by more than seeds do."""
        return self.shape.optimum.misfit is not None and self.shape.optimum.misfit >= MISFIT

    @property
    def interval_octaves(self) -> float:
        """The width of the interval of its optimum, infinite if it is open."""
        low, high = self.shape.optimum.low_log2, self.shape.optimum.high_log2
        return math.inf if low is None or high is None else high - low

    def can_run(self, index: int) -> bool:
        """Return whether a cell has trials that another run gives a result."""
        return self.cells[index].num_missing > self.cells[index].num_lost

    def loss(self, index: int) -> float:
        """Return the finite loss of a cell."""
        loss = self.losses[index]
        assert loss is not None
        return loss

    def se_of_difference(self, index: int) -> float:
        """Return the standard error of the loss of a cell minus the lowest one; 0 without a noise floor."""
        if self.noise is None or self.lowest is None:
            return 0.0
        own = self.noise**2
        return math.sqrt(sum(own / len(self.cells[i].finite) for i in (index, self.lowest)))

    def has(self, value: float) -> bool:
        """Return whether an HP value is planned."""
        return any(cell.value == value for cell in self.cells)

    def lacking(self, values: Iterable[float], why: str) -> Lack:
        """Return these HP values as a lack of this shape."""
        return Lack(name=self.name, scale=self.shape.scale, values=tuple(sorted(values)), why=why)
