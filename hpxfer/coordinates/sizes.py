"""Exponents of sizes, and how they combine. A size without an exponent carries the reason."""

from __future__ import annotations

import math

SAME = 1e-6
ZERO = -math.inf  # the exponent of an exact zero
NO_INVERSE = "the features that this is divided by are exactly zero"

# The exponent of a size, or the reason why none is derived.
Size = float | str


def product(*sizes: Size) -> Size:
    """Return the exponent of a product, or the first reason why a factor has none."""
    total = 0.0
    for size in sizes:
        if isinstance(size, str):
            return size
        total += size
    return total


def power_of(size: Size, power: float) -> Size:
    """Return the exponent of a power of a size."""
    if size == ZERO and power < 0:
        return NO_INVERSE
    return size if isinstance(size, str) else size * power


def sum_of(why: str, *sizes: Size) -> Size:
    """Return the exponent of a sum whose parts scale alike. Return `why` there is none if they do not."""
    parts: list[float] = []
    for size in sizes:
        if isinstance(size, str):
            return size
        if size != ZERO:
            parts.append(size)
    if not parts:
        return ZERO
    return parts[0] if max(parts) - min(parts) < SAME else why


def led_by(leader: Size, *others: Size, why: str) -> Size:
    """Return the exponent of a sum in which no part outgrows the leader. Return `why` there is none if one does."""
    if isinstance(leader, str):
        return leader
    for size in others:
        if isinstance(size, str):
            return size
        if size > leader + SAME:
            return why
    return leader


def largest(*sizes: Size) -> Size:
    """Return the largest exponent, or the first reason why a size has none."""
    known: list[float] = []
    for size in sizes:
        if isinstance(size, str):
            return size
        known.append(size)
    return max(known)


def grows(size: Size) -> bool:
    """Return whether a size is known to grow."""
    return not isinstance(size, str) and size > SAME
