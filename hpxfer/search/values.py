"""Values that searches try, rounded so that every machine gets the same bits and ids, and gains between them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpxfer.scaling.hps import HPs
from hpxfer.spec import SweepSpec, power_of_two

SeedLosses = tuple[float, ...]  # of one point, in the order of the sweep's seeds; +inf diverged
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


def end_steps(values: tuple[float, ...]) -> tuple[float, float]:
    """Return the steps of a line at its lower and its upper end in octaves, or one octave if it has one value."""
    logs = [math.log2(value) for value in values]
    return (logs[1] - logs[0], logs[-1] - logs[-2]) if len(logs) > 1 else (1.0, 1.0)


def ends_of_box(spec: SweepSpec) -> dict[str, tuple[float, float]]:
    """Return HP -> the ends of its range in the grid."""
    return {name: (values.numbers()[0], values.numbers()[-1]) for name, values in spec.grid.items()}


def in_box(value: float, ends: tuple[float, float]) -> float:
    """Return the value rounded, between the ends: rounding must not leave the box."""
    return min(max(rounded(value), ends[0]), ends[1])


def bound_text(name: str, value: float, *, is_highest: bool) -> str:
    """Return that the best value of an HP is the highest or the lowest that was tried, e.g. `init_scale >= 16`."""
    return f"{name} {'>=' if is_highest else '<='} {value:.6g}"


def values_text(names: Iterable[str], hps: HPs | None) -> str:
    """Return e.g. `lr 0.01, init_scale 2`, or nothing without HPs. The HPs of an entry `a + b` have one value."""
    return "" if hps is None else ", ".join(f"{name} {hps.get(names_in(name)[0]):.4g}" for name in names)


def names_in(entry: str) -> tuple[str, ...]:
    """Return the HPs of an entry of `search.multipliers`: of `a + b`, a and b."""
    return tuple(name.strip() for name in entry.split("+"))


def scaled(hps: HPs, *changes: tuple[str, float]) -> HPs:
    """Return the HPs with those of each entry multiplied by its ratio. An HP may stand in several entries."""
    values: dict[str, float] = {}
    for entry, ratio in changes:
        for name in names_in(entry):
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

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(len(self))[index])
        steps = zip(self.entries, self.steps(range(len(self))[index]), strict=True)
        return scaled(self.center, *((entry, self.ratio**step) for entry, step in steps if step))

    def steps(self, index: int) -> tuple[int, ...]:
        """Return the steps from the center to a point along each entry. The last entry changes fastest."""
        powers = (self.points**power for power in reversed(range(len(self.entries))))
        return tuple(index // power % self.points - self.points // 2 for power in powers)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """By how much a point's loss lies below another's, in nats: the mean over the seeds and its standard error."""

    mean: float  # +inf if only the other point diverged, -inf if only this one did, NaN if both
    error: float  # NaN with one seed, or if one diverged

    def beats(self, noise: float) -> bool:
        """Return whether the gain exceeds `noise` standard errors. With one seed its sign decides."""
        if not math.isfinite(self.mean):
            return self.mean == math.inf
        return self.mean > 0 and (math.isnan(self.error) or self.mean > noise * self.error)


def gain(old: SeedLosses, new: SeedLosses) -> Gain:
    """Return the gain of `new` over `old`, seed by seed."""
    old_is_lost, new_is_lost = (not all(map(math.isfinite, losses)) for losses in (old, new))
    if old_is_lost or new_is_lost:
        both = old_is_lost and new_is_lost
        return Gain(mean=math.nan if both else math.inf if old_is_lost else -math.inf, error=math.nan)
    apart = [before - after for before, after in zip(old, new, strict=True)]
    error = statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
    return Gain(mean=math.fsum(apart) / len(apart), error=error)


def pooled(found: Sequence[Gain], beside: Sequence[Gain]) -> list[Gain]:
    """Return the gains. An error is raised to the median error of the gains `beside` them.

    The spread of two or three seeds is a bad estimate: by luck it may be nearly zero.
    """
    known = [neighbor.error for neighbor in beside if not math.isnan(neighbor.error)]
    least = statistics.median(known) if known else 0.0
    return [each if math.isnan(each.error) else replace(each, error=max(each.error, least)) for each in found]
