"""Lacks: what the losses of one shape lack for a verdict, and the HP values that would fill it.

A grid of powers of two gets powers of two: whole steps beyond its ends and halves of its gaps. A grid of other numbers,
e.g. 0.001, 0.003, 0.01, gets numbers with as few digits as the place allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median

import numpy as np

from hpxfer.host import FRACTIONS, is_short, value_text
from hpxfer.intervals import lowest_of
from hpxfer.verdict.findings import Finding, ShapeFinding
from hpxfer.verdict.loss_grid import SeedLosses
from hpxfer.verdict.thresholds import MIN_POINTS, NUM_SE

MAX_STEPS = 3  # values beyond an edge per follow-up
NEAR_OCTAVES = 2.0  # cells farther from the lowest one hardly move the estimate of an optimum
FLAT_OCTAVES = 8.0  # over so many octaves without a basin, the HP does not matter or the noise is too large
RISE_SE = 3.0  # a rise of more standard errors is no noise, at the end of a row that noise alone makes long
MIN_GAP = 0.7  # octaves: two cells that are closer say about an optimum what more seeds at one of them would say
EDGE_GAP = 0.4  # octaves between the best value and one that diverges or has no loss, which are halved once more
SAME_SHARE = 1e-12  # losses with a smaller relative difference count as exactly equal
OFF_SHARE = 0.1  # how far a simple number may lie from where it is proposed, as a share of the gap
MAX_DIGITS = 6

# HP values that the grid lacks at a shape, and why, which completes the sentence `HP value 2^-10 at width 64, ...`.
Lack = tuple["Row", Sequence[float], str]


def step_at(exponents: Sequence[float], *, upper: bool) -> float:
    """Return the step in octaves by which a row of ascending exponents is extended beyond one end.

    It is the gap at that end. A gap that was halved is narrower than most: then the step is the median gap.
    """
    gaps = [high - low for low, high in pairwise(exponents)]
    return max(gaps[-1 if upper else 0], median(gaps)) if gaps else 1.0


def beyond(exponents: Sequence[float], number: int, *, upper: bool) -> tuple[float, ...]:
    """Return so many HP values beyond one end of a row of ascending exponents, ascending."""
    step = step_at(exponents, upper=upper)
    start, outward = (exponents[-1], step) if upper else (exponents[0], -step)
    return tuple(sorted(_proposed(start + k * outward, exponents, step) for k in range(1, number + 1)))


def between(one: float, other: float, exponents: Sequence[float], least: float = MIN_GAP) -> tuple[float, ...]:
    """Return the HP value halfway between two exponents of a row; none if their gap is less than `least` octaves."""
    gap = abs(other - one)
    return () if gap < least else (_proposed((one + other) / 2, exponents, gap),)


def _proposed(exponent: float, exponents: Sequence[float], gap: float) -> float:
    """Return the HP value at an exponent: exactly there among powers of two, else a simple number close to it."""
    if all(map(is_short, (*exponents, exponent))):
        return float(2.0 ** (round(exponent * FRACTIONS) / FRACTIONS))
    simple = (float(f"{2.0**exponent:.{digits}e}") for digits in range(MAX_DIGITS))
    close = (value for value in simple if abs(math.log2(value) - exponent) <= OFF_SHARE * gap)
    return next(close, float(f"{2.0**exponent:.{MAX_DIGITS - 1}e}"))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One shape of a finding, and its losses at every planned HP value. Cells go by their index."""

    finding: Finding
    shape: ShapeFinding
    cells: tuple[SeedLosses, ...]

    @property
    def name(self) -> str:
        return self.finding.name(self.shape)

    @cached_property
    def exponents(self) -> list[float]:
        """log2 of every planned HP value, ascending."""
        return [cell.log2 for cell in self.cells]

    @cached_property
    def finite(self) -> dict[int, float]:
        """The median loss of each cell that has a finite one."""
        medians = ((i, cell.median) for i, cell in enumerate(self.cells))
        return {i: loss for i, loss in medians if loss is not None and loss < math.inf}

    @cached_property
    def lowest(self) -> int | None:
        """The cell with the lowest loss; None without a finite loss."""
        at = [self.exponents[i] for i in self.finite]
        return list(self.finite)[lowest_of(list(self.finite.values()), at)] if at else None

    @property
    def beside(self) -> list[int]:
        """The neighbors of the lowest cell."""
        return [i for i in range(len(self.cells)) if self.steps_off(i) == 1]

    def steps_off(self, i: int) -> float:
        """Return how many cells a cell is away from the lowest one."""
        return math.inf if self.lowest is None else abs(i - self.lowest)

    def halfway(self, i: int, least: float = MIN_GAP) -> tuple[float, ...]:
        """Return the HP value between the lowest cell and a neighbor; none if there is no room."""
        assert self.lowest is not None
        return between(self.exponents[self.lowest], self.exponents[i], self.exponents, least)

    def can_run(self, i: int) -> bool:
        """Return whether a cell has trials that another run gives a result."""
        return self.cells[i].num_missing > self.cells[i].num_lost

    def is_transferred(self, i: int) -> bool:
        """Return whether a cell is that of the transferred HP."""
        return self.cells[i].value == self.finding.base_value

    def se(self, i: int) -> float:
        """Return the standard error of the loss of a cell minus the lowest one; 0 without a noise floor."""
        nums = [len(self.cells[k].finite) for k in (i, self.lowest) if k is not None]
        return (self.finding.noise_nats or 0.0) * math.sqrt(sum(1 / num for num in nums))

    def rise(self, i: int) -> float:
        """Return by how much the finite loss of a cell lies above the lowest one."""
        return self.finite[i] - min(self.finite.values())

    def has_risen(self, *, upper: bool) -> bool:
        """Return whether the last value on a side diverged or is worse than the lowest one by more than noise."""
        last, end = (self.cells[-1], max(self.finite)) if upper else (self.cells[0], min(self.finite))
        if last.censored or (upper and not last.losses):
            return True  # what ends without a loss is next to what diverges
        return self.finding.noise_nats is not None and end != self.lowest and self.rise(end) > RISE_SE * self.se(end)


def without_result(row: Row) -> list[float]:
    """Return the HP values without a result on which the verdict rests, and which a further run gives one.

    These are the transferred HP, the cells around the lowest one, and all cells if fewer than three have a finite loss.
    Of runs of others, all count at the transferred HP.
    Beside the lowest one a cell also counts if less than half of its seeds have a result.
    """

    def counts(i: int) -> bool:
        cell = row.cells[i]
        if row.is_transferred(i) and row.shape.transferred_missing:
            return True
        if not row.can_run(i) or len(cell.losses) >= cell.num_missing:
            return False
        if row.steps_off(i) <= 1:
            return True
        is_near = abs(row.exponents[i] - row.exponents[row.lowest or 0]) <= NEAR_OCTAVES
        return not cell.losses and (len(row.finite) < MIN_POINTS or row.is_transferred(i) or is_near)

    return [cell.value for i, cell in enumerate(row.cells) if counts(i)]


def why_hopeless(row: Row) -> str | None:
    """Return why no cell shows an optimum at this shape; None if one may."""
    losses = list(row.finite.values())
    if len(losses) > 1 and max(losses) - min(losses) <= SAME_SHARE * abs(max(losses)):
        return f"{row.name}: every HP value has exactly the same loss, so the HP may have no effect there"
    if row.finding.noise_nats is None or len(losses) < MIN_POINTS:
        return None  # one seed does not tell what noise is
    octaves = row.exponents[-1] - row.exponents[0]
    if octaves >= FLAT_OCTAVES and not any(row.has_risen(upper=upper) for upper in (False, True)):
        return f"{row.name}: over {octaves:g} octaves the loss does not bend by more than seeds differ"
    return None


def why_lost(row: Row) -> str | None:
    """Return why losses that no run can have leave the verdict open; None if they do not."""
    for i, cell in enumerate(row.cells):
        is_beside = row.shape.is_base and i in row.beside
        if not cell.losses and not row.can_run(i) and (row.is_transferred(i) or is_beside):
            what = "the transferred HP" if row.is_transferred(i) else "next to the best HP"
            return f"{row.name}: {value_text(cell.value)}, {what}, ended without a loss"
    return None


def values_lacking(row: Row) -> Iterator[Lack]:
    """Yield the new HP values that one shape lacks. Every planned cell that counts has a result."""
    if not row.cells:
        return
    if (lacking := MIN_POINTS - len(row.finite)) > 0:
        if any(cell.censored for cell in row.cells):
            values = beyond(row.exponents, lacking, upper=False)
            yield row, values, f"as fewer than {MIN_POINTS} values do not diverge"
        else:
            values = tuple(value for upper in (False, True) for value in beyond(row.exponents, 1, upper=upper))
            yield row, values, f"as a basin needs {MIN_POINTS} values or more"
        return
    # A better HP may lie beyond a side where the loss was not seen to rise, unless an interval ends inside the grid:
    # where the interval is open although the loss has risen, noise is to blame, and not the grid.
    optimum = row.shape.optimum
    ends = (("lower_edge", optimum.low_log2), ("upper_edge", optimum.high_log2))
    open_ = [optimum.kind in (edge, "none") or (row.finding.noise_nats and end is None) for edge, end in ends]
    for upper, side in ((False, "lower"), (True, "upper")):
        if open_[upper] and not row.has_risen(upper=upper):
            values = beyond(row.exponents, _steps_beyond(row, upper=upper), upper=upper)
            yield row, values, f"beyond the {side} edge of the grid"
    for i in row.beside:
        why = "for a smaller range, as {} ended without a loss" if not row.cells[i].losses else ""
        if optimum.kind == "at_divergence" and row.cells[i].censored:
            why = "between the best one and {}, which diverges"
        if why and (values := row.halfway(i, EDGE_GAP)):
            yield row, values, why.format(value_text(row.cells[i].value))


def _steps_beyond(row: Row, *, upper: bool) -> int:
    """Return how many values beyond an edge bracket the lowest point of the parabola through the last three cells."""
    ends = list(row.finite)[::-1][:3] if upper else list(row.finite)[:3]
    x = [abs(row.exponents[i] - row.exponents[ends[-1]]) for i in ends]  # octaves outward from the innermost
    bend, slope, _ = map(float, np.polyfit(x, [row.rise(i) for i in ends], 2))
    noise = NUM_SE * row.se(ends[1])
    if bend <= noise / x[0] ** 2:
        return 2 if row.rise(ends[1]) - row.rise(ends[0]) > noise else 1
    # Half a step further than the lowest point, so that the loss is seen to rise again.
    steps = (-slope / (2 * bend) - x[0]) / step_at(row.exponents, upper=upper) + 0.5
    return min(max(math.ceil(steps), 1), MAX_STEPS)


def beside_best(row: Row, *, if_tied: bool) -> Iterator[Lack]:
    """Yield the values next to the lowest cell that place its optimum; `if_tied`, that beside one that noise hides."""
    found, why = [i for i in row.beside if i in row.finite], "next to the best one, to place the optimum"
    if if_tied:
        found = [i for i in sorted(found, key=row.rise)[:1] if row.rise(i) <= NUM_SE * row.se(i)]
        why = f"as {' and '.join(value_text(row.cells[i].value) for i in sorted((*found, row.lowest or 0)))} tie"
    if values := [value for i in found for value in row.halfway(i)]:
        yield row, values, why
