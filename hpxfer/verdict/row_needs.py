"""What the grid lacks at one shape, and the values that would fill it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median

from hpxfer.verdict.findings import Addition, Finding, ShapeFinding
from hpxfer.verdict.loss_grid import SeedLosses, ShapeLosses
from hpxfer.verdict.thresholds import MIN_POINTS, NUM_SE
from hpxfer.verdict.tied import lowest_of

MAX_STEPS = 3  # values beyond an edge per follow-up
NEAR_OCTAVES = 2.0  # cells farther from the lowest one hardly move the estimate of an optimum
FLAT_OCTAVES = 8.0  # over so many octaves without a basin, the HP does not matter or the noise is too large
NOT_NOISE = 2.0  # an interval this many times as wide as noise makes it is not the fault of noise
RISE_SE = 3.0  # a rise of more standard errors is no noise, at the end of a row that noise alone makes long
EDGE_GAP = 0.4  # octaves between the best value and one that diverges or has no loss, which are halved once more


def values_wanted(lacks: Sequence[Lack]) -> Addition:
    """Return the addition for shapes that lack values for the same reason: one grid serves them all."""
    values = tuple(sorted({value for lack in lacks for value in lack.values}))
    names = ", ".join(lack.name for lack in lacks)
    text = f"HP {_values_text(values)} at {names}, {lacks[0].why}"
    return Addition(text=text, values=values, scales=tuple(lack.scale for lack in lacks))


def _values_text(values: Sequence[float]) -> str:
    return f"{'value' if len(values) == 1 else 'values'} {', '.join(map(value_text, values))}"


def why_hopeless(row: Row) -> str | None:
    """Return why no cell shows an optimum at this shape; None if one may."""
    if row.is_constant:
        return f"{row.name}: every HP value has exactly the same loss, so the HP may have no effect there"
    if row.noise is None:
        return None  # one seed does not tell what noise is
    octaves = row.exponents[-1] - row.exponents[0] if row.cells else 0.0
    risen = any(_has_risen(row, upper=upper) for upper in (False, True)) if row.finite else True
    if len(row.finite) >= MIN_POINTS and octaves >= FLAT_OCTAVES and not risen:
        return f"{row.name}: over {octaves:g} octaves the loss does not bend by more than seeds differ"
    return None


def why_lost(row: Row) -> str | None:
    """Return why losses that no run can have leave the verdict open; None if they do not."""
    lost = [i for i, loss in enumerate(row.losses) if loss is None and not row.can_run(i)]
    for i in lost:
        if row.cells[i].value == row.transferred:
            return f"{row.name}: {value_text(row.transferred)}, the transferred HP, ended without a loss"
        if row.shape.is_base and row.lowest is not None and abs(i - row.lowest) == 1:
            return f"{row.name}: {value_text(row.cells[i].value)}, next to the best HP, ended without a loss"
    return None


def transferred_lacking(row: Row) -> Lack | None:
    """Return the transferred HP where this shape does not have it among its values; None where it has."""
    if row.transferred is None or row.has(row.transferred):
        return None
    return row.lacking((row.transferred,), "the transferred HP, which was not run there")


def values_lacking(row: Row) -> Iterator[Lack]:
    """Yield the new HP values that one shape lacks. Every planned cell that counts has a result."""
    if not row.cells:
        return
    if len(row.finite) < MIN_POINTS:
        yield _until_three(row)
        return
    for upper in _open_sides(row):
        values = beyond(row.exponents, _steps_beyond(row, upper=upper), upper=upper)
        yield row.lacking(values, f"beyond the {'upper' if upper else 'lower'} edge of the grid")
    if row.shape.optimum.kind == "at_divergence" and (found := _toward(row, math.inf)) is not None:
        yield row.lacking((found[0],), "between the best one and the one that diverges")
    if (found := _toward(row, None)) is not None:
        yield row.lacking((found[0],), f"for a smaller range, as {value_text(found[1])} ended without a loss")


def values_to_see_rise(row: Row) -> Iterator[Lack]:
    """Yield the values beyond an end at which the loss has not been seen to rise, although the optimum is inside."""
    if len(row.finite) < MIN_POINTS or row.exponents[-1] - row.exponents[0] >= FLAT_OCTAVES:
        return
    for upper in (False, True):
        if not _has_risen(row, upper=upper):
            values = beyond(row.exponents, _steps_beyond(row, upper=upper), upper=upper)
            yield row.lacking(
                values, f"beyond the {'upper' if upper else 'lower'} edge, where the loss has hardly risen"
            )


def value_between_ties(row: Row) -> Lack | None:
    """Return the value between the lowest cell and a neighbor that noise does not tell from it; None if all differ."""
    if row.tie is None or (value := between(*row.tie, row.exponents)) is None:
        return None
    low, high = (value_text(2.0**exponent) for exponent in row.tie)
    return row.lacking((value,), f"as {low} and {high} tie")


def cells_to_run_again(row: Row) -> Addition | None:
    """Return the cells on which the verdict rests and that a further run gives a result; None if there are none."""
    lost = _without_result(row)
    if not lost:
        return None
    values = tuple(row.cells[i].value for i in lost)
    text = f"the trials without a result of HP {_values_text(values)} at {row.name}"
    return Addition(text=text, values=values, scales=(row.shape.scale,))


def _without_result(row: Row) -> list[int]:
    """Return the cells without a result on which the verdict rests.

    These are the transferred HP, the cells around the lowest one, and all cells if fewer than three have a finite loss.
    Of runs of others, all count at the transferred HP.
    Around the lowest one a cell also counts if less than half of its seeds have a result.
    """
    missing = [i for i, loss in enumerate(row.losses) if loss is None and row.can_run(i)]
    if row.lowest is None or len(row.finite) < MIN_POINTS:
        return missing
    at = row.exponents[row.lowest]
    found = {i for i in missing if row.cells[i].value == row.transferred or abs(row.exponents[i] - at) <= NEAR_OCTAVES}
    for direction in (-1, 1):
        i = row.lowest + direction
        while i in missing:
            found.add(i)
            i += direction
    if row.shape.transferred_missing:
        found |= {i for i, cell in enumerate(row.cells) if cell.value == row.transferred}
    thin = [i for i in row.finite if abs(i - row.lowest) <= 1 and len(row.cells[i].losses) < row.cells[i].num_missing]
    return sorted({*found, *(i for i in thin if row.can_run(i))})


def _until_three(row: Row) -> Lack:
    """Return the values that a basin lacks to have three finite losses: below what diverges, else on both sides."""
    if any(loss == math.inf for loss in row.losses):
        values = beyond(row.exponents, MIN_POINTS - len(row.finite), upper=False)
        return row.lacking(values, f"as fewer than {MIN_POINTS} values do not diverge")
    values = (*beyond(row.exponents, 1, upper=False), *beyond(row.exponents, 1, upper=True))
    return row.lacking(values, f"as a basin needs {MIN_POINTS} values or more")


def _open_sides(row: Row) -> list[bool]:
    """Return the sides on which a better HP may lie beyond the grid, False for below and True for above.

    A side is closed if its last value has no loss, or one that is above the lowest one by more than noise can make it:
    where the interval of the optimum is open all the same, noise is to blame, and not the grid.
    """
    optimum = row.shape.optimum
    edges = {False: "lower_edge", True: "upper_edge"}
    ends = {False: optimum.low_log2, True: optimum.high_log2}
    unknown = [upper for upper in (False, True) if optimum.kind == "none" or (row.noise and ends[upper] is None)]
    found = [upper for upper in (False, True) if optimum.kind == edges[upper] or upper in unknown]
    return [upper for upper in found if not _has_risen(row, upper=upper)]


def _has_risen(row: Row, *, upper: bool) -> bool:
    """Return whether the last value on a side diverged or is worse than the lowest one by more than noise."""
    at = -1 if upper else 0
    if row.losses[at] == math.inf or (upper and row.losses[at] is None):
        return True  # what ends without a loss is next to what diverges
    end = row.finite[at]
    assert row.lowest is not None
    rise = row.loss(end) - row.loss(row.lowest)
    return row.noise is not None and end != row.lowest and rise > RISE_SE * row.se_of_difference(end)


def _steps_beyond(row: Row, *, upper: bool) -> int:
    """Return how many values beyond an edge bracket the lowest point of the parabola through the last three cells."""
    outer, mid, inner = row.finite[::-1][:3] if upper else row.finite[:3]
    sign = 1.0 if upper else -1.0
    x = [sign * (row.exponents[i] - row.exponents[outer]) for i in (outer, mid, inner)]  # 0, then negative
    slope_out = (row.loss(outer) - row.loss(mid)) / (x[0] - x[1])
    slope_in = (row.loss(mid) - row.loss(inner)) / (x[1] - x[2])
    bend = (slope_out - slope_in) / (x[0] - x[2])
    noise = NUM_SE * row.se_of_difference(mid)
    if bend <= noise / (x[0] - x[2]) ** 2:
        return 2 if row.loss(mid) - row.loss(outer) > noise else 1
    lowest = (x[0] + x[1]) / 2 - slope_out / (2 * bend)
    # Half a step further, so that the loss is seen to rise again.
    return min(max(math.ceil(lowest / step_at(row.exponents, upper=upper) + 0.5), 1), MAX_STEPS)


def _toward(row: Row, loss: float | None) -> tuple[float, float] | None:
    """Return the value between the lowest cell and a neighbor with this loss, and the neighbor's; None without room."""
    for beside in () if row.lowest is None else (row.lowest + 1, row.lowest - 1):
        assert row.lowest is not None
        if 0 <= beside < len(row.losses) and row.losses[beside] == loss:
            low, high = sorted((row.exponents[row.lowest], row.exponents[beside]))
            value = between(low, high, row.exponents, least=EDGE_GAP)
            return None if value is None else (value, row.cells[beside].value)
    return None


def values_to_sharpen(row: Row) -> Lack | None:
    """Return the values next to the lowest cell that narrow its optimum where seeds do not; None without room."""
    if row.lowest is None:
        return None
    beside = [i for i in (row.lowest - 1, row.lowest + 1) if i in row.finite]
    at = row.exponents[row.lowest]
    gaps = [sorted((at, row.exponents[i])) for i in beside]
    found = [between(low, high, row.exponents) for low, high in gaps]
    values = [value for value in found if value is not None]
    return row.lacking(values, "next to the best one, to place the optimum") if values else None


def seeds_cannot_mend(row: Row) -> bool:
    """Return whether the interval of an optimum is wider than the noise of seeds makes it."""
    if row.is_misfit:
        return True
    optimum = row.shape.optimum
    low, high, at = optimum.low_log2, optimum.high_log2, row.lowest
    if (
        low is None
        or high is None
        or at is None
        or row.noise is None
        or at - 1 not in row.finite
        or at + 1 not in row.finite
    ):
        return False
    left, here, right = (row.loss(i) for i in (at - 1, at, at + 1))
    step = (row.exponents[at + 1] - row.exponents[at - 1]) / 2
    bend = left - 2 * here + right
    if bend <= 0:
        return False
    off = (left - right) / (2 * bend)  # of the lowest point of the parabola from the lowest cell, in steps
    se = row.noise / math.sqrt(len(row.cells[at].finite))
    noise_part = NUM_SE * step * se * math.sqrt(2 + 24 * off**2) / (2 * bend)
    return (high - low) / 2 > NOT_NOISE * noise_part


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


# The HP values that a follow-up proposes: on the lattice of the grid, and simple numbers elsewhere. Pure.
#
# A grid of powers of two gets powers of two: whole steps beyond its ends and halves of its gaps. A grid of other
# numbers, e.g. 0.001, 0.003, 0.01, gets numbers with as few digits as the place allows.

# Two cells that are closer than this, in octaves, say about an optimum what more seeds at one of them would say.
MIN_GAP = 0.7
FRACTIONS = 1024  # exponents that are multiples of 1/1024 are those of a grid of powers of two
# How far a simple number may lie from where it is proposed, as a share of the gap.
OFF_SHARE = 0.1
MAX_DIGITS = 6


def step_at(exponents: Sequence[float], *, upper: bool) -> float:
    """Return the step in octaves by which a row of ascending exponents is extended beyond one end.

    It is the gap at that end. A gap that was halved is narrower than most: then the step is the median gap.
    """
    gaps = [high - low for low, high in pairwise(exponents)]
    if not gaps:
        return 1.0
    return max(gaps[-1] if upper else gaps[0], median(gaps))


def beyond(exponents: Sequence[float], number: int, *, upper: bool) -> tuple[float, ...]:
    """Return so many HP values beyond one end of a row of ascending exponents, ascending."""
    step = step_at(exponents, upper=upper)
    start = exponents[-1] if upper else exponents[0]
    found = (start + (k if upper else -k) * step for k in range(1, number + 1))
    return tuple(sorted(proposed(exponent, exponents, step) for exponent in found))


def between(low: float, high: float, exponents: Sequence[float], least: float = MIN_GAP) -> float | None:
    """Return the HP value halfway between two exponents of a row; None if their gap is less than `least` octaves."""
    if high - low < least:
        return None
    return proposed((low + high) / 2, exponents, high - low)


def proposed(exponent: float, exponents: Sequence[float], gap: float) -> float:
    """Return the HP value at an exponent: exactly there among powers of two, else a simple number close to it."""
    if all(_is_short(other) for other in (*exponents, exponent)):
        return float(2.0 ** (round(exponent * FRACTIONS) / FRACTIONS))
    value = 2.0**exponent
    for digits in range(MAX_DIGITS):
        simple = float(f"{value:.{digits}e}")
        if abs(math.log2(simple) - exponent) <= OFF_SHARE * gap:
            break
    return simple


def value_text(value: float) -> str:
    """Return an HP value as a report writes it: `2^-6.5` for a power of two of few digits, else `0.003`."""
    exponent = math.log2(value)
    return f"2^{exponent:g}" if _is_short(exponent) else f"{value:.6g}"


def _is_short(exponent: float) -> bool:
    return math.isclose(exponent * FRACTIONS, round(exponent * FRACTIONS), abs_tol=1e-6)
