"""HP values: how they are written, and those that a follow-up proposes on the lattice of a grid. Pure.

A grid of powers of two gets powers of two: whole steps beyond its ends and halves of its gaps. A grid of other numbers,
e.g. 0.001, 0.003, 0.01, gets numbers with as few digits as the place allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

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
