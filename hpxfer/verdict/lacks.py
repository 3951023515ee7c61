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

from hpxfer.host import FRACTIONS, is_short, value_text
from hpxfer.numbers import lowest_of
from hpxfer.verdict.findings import Finding, ShapeFinding
from hpxfer.verdict.loss_grid import SeedLosses
from hpxfer.verdict.thresholds import MIN_POINTS, NUM_SE

MAX_STEPS = 3  # values beyond an edge per follow-up
NEAR_OCTAVES = 2.0  # cells farther from the lowest one hardly move the estimate of an optimum
FLAT_OCTAVES = 8.0  # over so many octaves without a basin, the HP does not matter or the noise is too large
NOT_NOISE = 2.0  # an interval this many times as wide as noise makes it is not the fault of noise
RISE_SE = 3.0  # a rise of more standard errors is no noise, at the end of a row that noise alone makes long
MIN_GAP = 0.7  # octaves: two cells that are closer say about an optimum what more seeds at one of them would say
EDGE_GAP = 0.4  # octaves between the best value and one that diverges or has no loss, which are halved once more
SAME_SHARE = 1e-12  # losses with a smaller relative difference count as exactly equal
MISFIT = 3.0  # a scatter of cells about every basin that is this many times that of seeds is no noise
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


def between(low: float, high: float, exponents: Sequence[float], least: float = MIN_GAP) -> float | None:
    """Return the HP value halfway between two exponents of a row; None if their gap is less than `least` octaves."""
    return None if high - low < least else _proposed((low + high) / 2, exponents, high - low)


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
    def losses(self) -> list[float | None]:
        """The median loss of every planned HP value: +inf where it diverged, None without a result."""
        return [cell.median for cell in self.cells]

    @cached_property
    def finite(self) -> dict[int, float]:
        """The loss of each cell that has a finite one."""
        return {i: loss for i, loss in enumerate(self.losses) if loss is not None and math.isfinite(loss)}

    @cached_property
    def lowest(self) -> int | None:
        """The cell with the lowest loss; None without a finite loss."""
        if not self.finite:
            return None
        return list(self.finite)[lowest_of(list(self.finite.values()), [self.exponents[i] for i in self.finite])]

    @property
    def beside(self) -> list[int]:
        """The neighbors of the lowest cell."""
        if self.lowest is None:
            return []
        return [i for i in (self.lowest - 1, self.lowest + 1) if 0 <= i < len(self.cells)]

    @property
    def is_misfit(self) -> bool:
        """Whether its cells scatter about any basin by more than seeds do."""
        return self.shape.optimum.misfit is not None and self.shape.optimum.misfit >= MISFIT

    @property
    def interval_octaves(self) -> float:
        """The width of the interval of its optimum, infinite if it is open."""
        low, high = self.shape.optimum.low_log2, self.shape.optimum.high_log2
        return math.inf if low is None or high is None else high - low

    def halfway(self, i: int, least: float = MIN_GAP) -> float | None:
        """Return the HP value between the lowest cell and a neighbor; None if there is no room."""
        assert self.lowest is not None
        low, high = sorted((self.exponents[self.lowest], self.exponents[i]))
        return between(low, high, self.exponents, least)

    def can_run(self, i: int) -> bool:
        """Return whether a cell has trials that another run gives a result."""
        return self.cells[i].num_missing > self.cells[i].num_lost

    def is_transferred(self, i: int) -> bool:
        """Return whether a cell is that of the transferred HP."""
        return self.cells[i].value == self.finding.base_value

    def se(self, i: int) -> float:
        """Return the standard error of the loss of a cell minus the lowest one; 0 without a noise floor."""
        if self.finding.noise_nats is None or self.lowest is None:
            return 0.0
        own = self.finding.noise_nats**2
        return math.sqrt(sum(own / len(self.cells[k].finite) for k in (i, self.lowest)))

    def rise(self, i: int) -> float:
        """Return by how much the finite loss of a cell lies above the lowest one."""
        assert self.lowest is not None
        return self.finite[i] - self.finite[self.lowest]

    def has_risen(self, *, upper: bool) -> bool:
        """Return whether the last value on a side diverged or is worse than the lowest one by more than noise."""
        last = self.losses[-1 if upper else 0]
        if last == math.inf or (upper and last is None):
            return True  # what ends without a loss is next to what diverges
        end = list(self.finite)[-1 if upper else 0]
        return self.finding.noise_nats is not None and end != self.lowest and self.rise(end) > RISE_SE * self.se(end)


def without_result(row: Row) -> list[float]:
    """Return the HP values without a result on which the verdict rests, and which a further run gives one.

    These are the transferred HP, the cells around the lowest one, and all cells if fewer than three have a finite loss.
    Of runs of others, all count at the transferred HP.
    Around the lowest one a cell also counts if less than half of its seeds have a result.
    """
    found = {i for i, loss in enumerate(row.losses) if loss is None and row.can_run(i)}
    at, x = row.lowest, row.exponents
    if at is not None and len(row.finite) >= MIN_POINTS:
        missing = found
        found = {i for i in missing if row.is_transferred(i) or abs(x[i] - x[at]) <= NEAR_OCTAVES}
        for direction in (-1, 1):
            i = at + direction
            while i in missing:
                found.add(i)
                i += direction
        if row.shape.transferred_missing:
            found |= {i for i in range(len(x)) if row.is_transferred(i)}
        thin = (i for i in row.finite if abs(i - at) <= 1 and len(row.cells[i].losses) < row.cells[i].num_missing)
        found |= set(filter(row.can_run, thin))
    return [row.cells[i].value for i in sorted(found)]


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
    for i in (i for i, loss in enumerate(row.losses) if loss is None and not row.can_run(i)):
        start, end = f"{row.name}: {value_text(row.cells[i].value)}", "ended without a loss"
        if row.is_transferred(i):
            return f"{start}, the transferred HP, {end}"
        if row.shape.is_base and i in row.beside:
            return f"{start}, next to the best HP, {end}"
    return None


def values_lacking(row: Row) -> Iterator[Lack]:
    """Yield the new HP values that one shape lacks. Every planned cell that counts has a result."""
    if not row.cells:
        return
    if (lacking := MIN_POINTS - len(row.finite)) > 0:
        if math.inf in row.losses:
            values = beyond(row.exponents, lacking, upper=False)
            yield row, values, f"as fewer than {MIN_POINTS} values do not diverge"
        else:
            values = tuple(value for upper in (False, True) for value in beyond(row.exponents, 1, upper=upper))
            yield row, values, f"as a basin needs {MIN_POINTS} values or more"
        return
    # A better HP may lie beyond a side where the loss was not seen to rise, unless an interval ends inside the grid:
    # where the interval is open although the loss has risen, noise is to blame, and not the grid.
    optimum = row.shape.optimum
    for upper, edge, end in ((False, "lower_edge", optimum.low_log2), (True, "upper_edge", optimum.high_log2)):
        is_open = optimum.kind in (edge, "none") or (row.finding.noise_nats and end is None)
        if is_open and not row.has_risen(upper=upper):
            yield _beyond_edge(row, " of the grid", upper=upper)
    if optimum.kind == "at_divergence":
        yield from _toward(row, math.inf, "between the best one and the one that diverges")
    yield from _toward(row, None, "for a smaller range, as {} ended without a loss")


def _toward(row: Row, loss: float | None, why: str) -> Iterator[Lack]:
    """Yield the value between the lowest cell and the neighbor with this loss, the upper one of two; `why` names it."""
    for i in [i for i in reversed(row.beside) if row.losses[i] == loss][:1]:
        if (value := row.halfway(i, EDGE_GAP)) is not None:
            yield row, (value,), why.format(value_text(row.cells[i].value))


def to_see_rise(row: Row) -> Iterator[Lack]:
    """Yield the values beyond an end at which the loss has not been seen to rise, although the optimum is inside."""
    if len(row.finite) >= MIN_POINTS and row.exponents[-1] - row.exponents[0] < FLAT_OCTAVES:
        for upper in (False, True):
            if not row.has_risen(upper=upper):
                yield _beyond_edge(row, ", where the loss has hardly risen", upper=upper)


def _beyond_edge(row: Row, which: str, *, upper: bool) -> Lack:
    values = beyond(row.exponents, _steps_beyond(row, upper=upper), upper=upper)
    return row, values, f"beyond the {'upper' if upper else 'lower'} edge{which}"


def _steps_beyond(row: Row, *, upper: bool) -> int:
    """Return how many values beyond an edge bracket the lowest point of the parabola through the last three cells."""
    outer, mid, inner = list(row.finite)[::-1][:3] if upper else list(row.finite)[:3]
    sign = 1.0 if upper else -1.0
    x = [sign * (row.exponents[i] - row.exponents[outer]) for i in (outer, mid, inner)]  # 0, then negative
    slope_out = (row.finite[outer] - row.finite[mid]) / (x[0] - x[1])
    slope_in = (row.finite[mid] - row.finite[inner]) / (x[1] - x[2])
    bend = (slope_out - slope_in) / (x[0] - x[2])
    noise = NUM_SE * row.se(mid)
    if bend <= noise / (x[0] - x[2]) ** 2:
        return 2 if row.finite[mid] - row.finite[outer] > noise else 1
    lowest = (x[0] + x[1]) / 2 - slope_out / (2 * bend)
    # Half a step further, so that the loss is seen to rise again.
    return min(max(math.ceil(lowest / step_at(row.exponents, upper=upper) + 0.5), 1), MAX_STEPS)


def between_ties(row: Row) -> Iterator[Lack]:
    """Yield the value between the lowest cell and a neighbor that noise does not tell from it."""
    second = min((i for i in row.beside if i in row.finite), key=row.rise, default=None)
    if second is None or row.lowest is None or row.rise(second) > NUM_SE * row.se(second):
        return
    if (value := row.halfway(second)) is not None:
        low, high = (value_text(2.0 ** row.exponents[i]) for i in sorted((second, row.lowest)))
        yield row, (value,), f"as {low} and {high} tie"


def to_sharpen(row: Row) -> Iterator[Lack]:
    """Yield the values next to the lowest cell that narrow its optimum where seeds do not, if there is room."""
    found = (row.halfway(i) for i in row.beside if i in row.finite)
    if values := [value for value in found if value is not None]:
        yield row, values, "next to the best one, to place the optimum"


def seeds_cannot_mend(row: Row) -> bool:
    """Return whether the interval of an optimum is wider than the noise of seeds makes it."""
    if row.is_misfit:
        return True
    at, noise = row.lowest, row.finding.noise_nats
    if math.isinf(row.interval_octaves) or at is None or noise is None or not {at - 1, at + 1} <= row.finite.keys():
        return False
    left, here, right = (row.finite[i] for i in (at - 1, at, at + 1))
    step = (row.exponents[at + 1] - row.exponents[at - 1]) / 2
    bend = left - 2 * here + right
    if bend <= 0:
        return False
    off = (left - right) / (2 * bend)  # of the lowest point of the parabola from the lowest cell, in steps
    se = noise / math.sqrt(len(row.cells[at].finite))
    noise_part = NUM_SE * step * se * math.sqrt(2 + 24 * off**2) / (2 * bend)
    return row.interval_octaves / 2 > NOT_NOISE * noise_part
