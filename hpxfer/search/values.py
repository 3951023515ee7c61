"""Values: the numbers that searches try, rounded so that every machine gets the same bits and the same ids."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

from hpxfer.scaling.hps import HPs
from hpxfer.spec.fields import power_of_two

DIGITS = 6  # an optimum is known to far fewer digits, and libraries differ in far later ones
FRACTIONS = 1024  # an exponent that is a multiple of 1/1024 is not rounded, so that it equals a value of a grid


def rounded(value: float) -> float:
    """Return the value with six digits, or unchanged if it is a power of two."""
    return value if math.frexp(value)[0] == 0.5 else float(f"{value:.{DIGITS}g}")


def at_exponent(exponent: float) -> float:
    """Return 2^exponent: exactly as `{log2: ...}` of a grid gives it if the exponent is short, else rounded."""
    value = power_of_two(exponent)
    return value if (exponent * FRACTIONS).is_integer() else rounded(value)


def exponent_of(value: float) -> float:
    """Return log2 of the value, without the last digits, in which libraries differ."""
    return round(math.log2(value), 10)


def bound_text(name: str, value: float, *, is_highest: bool) -> str:
    """Return that the best value of an HP is the highest or the lowest that was tried, e.g. `init_scale >= 16`."""
    return f"{name} {'>=' if is_highest else '<='} {value:.6g}"


def names_in(entry: str) -> tuple[str, ...]:
    """Return the HPs of an entry of `search.multipliers`: of `a + b`, a and b."""
    return tuple(name.strip() for name in entry.split("+"))


def scaled(hps: HPs, names: Sequence[str], ratio: float) -> HPs:
    """Return the HPs with the named ones multiplied."""
    return _scaled(hps, [(names, ratio)])


def _scaled(hps: HPs, changes: Iterable[tuple[Sequence[str], float]]) -> HPs:
    """Return the HPs after several such changes. A name may stand in more than one of them."""
    values: dict[str, float] = {}
    for names, ratio in changes:
        for name in names:
            values[name] = rounded((values[name] if name in values else hps.get(name)) * ratio)
    return hps.with_values(values)


@dataclass(frozen=True)
class GridAround(Sequence[HPs]):
    """The points of a grid around a center. They are made when they are read: five points in six entries are 15,625."""

    center: HPs
    entries: tuple[str, ...]
    points: int
    ratio: float

    def __len__(self) -> int:
        return int(self.points ** len(self.entries))

    @overload
    def __getitem__(self, index: int) -> HPs: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[HPs, ...]: ...
    def __getitem__(self, index: int | slice) -> HPs | tuple[HPs, ...]:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        steps = zip(self.entries, self.steps(index % len(self)), strict=True)
        return _scaled(self.center, ((names_in(entry), self.ratio**step) for entry, step in steps if step))

    def steps(self, index: int) -> tuple[int, ...]:
        """Return the steps from the center to a point along each entry. The last entry changes fastest."""
        out = []
        for _ in self.entries:
            index, digit = divmod(index, self.points)
            out.append(digit - self.points // 2)
        return tuple(reversed(out))
