"""Rounds: the most stacks that a search which decides in rounds may need. Pure counting.

A round waits for the one before it, so its trials share a stack with those of no other round of their arm. How many
rounds there will be, and how full they are, nobody knows before: this counts from above, and the cost of a plan that
is refused for its cost rests on it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache

from hpxfer.scaling.shape import Shape
from hpxfer.search.arms import arms_of
from hpxfer.search.kinds import kind_of
from hpxfer.trial import Expansion

# From the trials of each shape that are asked for together to the most of them in a stack.
Sizes = Callable[[Mapping[Shape, int]], Mapping[Shape, int]]


def packed_at_once(left: Mapping[Shape, int], sizes: Sizes) -> dict[Shape, tuple[int, int]]:
    """Return shape -> how many stacks its trials come in that are all there at once, and the trials of the largest."""
    out = {}
    for shape, most in sizes(left).items():
        number = math.ceil(left[shape] / most)
        out[shape] = (number, math.ceil(left[shape] / number) if number else most)
    return out


def packed_in_rounds(
    expansion: Expansion, left: Mapping[Shape, int], now: Mapping[Shape, int], sizes: Sizes
) -> dict[Shape, tuple[int, int]]:
    """Return shape -> the most stacks that the trials of a search may come in, and the trials of the largest.

    `left` are at most; `now` are those of them that are asked for first.
    """
    seeds, arms = len(expansion.spec.seeds), Counter(arm.shape for arm in arms_of(expansion))
    rounds = {points * seeds: number for points, number in kind_of(expansion.spec).rounds(expansion.spec).items()}
    # Arms of a shape may ask at the same moment.
    together = {shape: min(count, max(now.get(shape, 0), arms[shape] * max(rounds))) for shape, count in left.items()}
    first, out = sizes(now), {}
    for shape, most in sizes(together).items():

        @cache
        def stacks(trials: int, shape: Shape = shape) -> int:
            return math.ceil(trials / sizes({shape: trials})[shape])

        at_once = now.get(shape, 0)
        num_first = math.ceil(at_once / first[shape]) if at_once else 0
        of_all = {trials: number * arms[shape] for trials, number in rounds.items()}
        num_later = most_stacks(left[shape] - at_once, of_all, stacks)
        out[shape] = (min(left[shape], num_first + num_later), min(most, together[shape] or most))
    return out


def most_stacks(later: int, rounds: Mapping[int, int], stacks: Callable[[int], int]) -> int:
    """Return the most stacks that so many trials come in, in some of the `rounds`: trials -> rounds of so many.

    `stacks` says how many stacks so many trials make that are asked for together. Rounds that need the most stacks for
    their trials are taken to come first, until no trial is left for another.
    """
    total = 0
    for trials in sorted(rounds, key=lambda trials: stacks(trials) / trials, reverse=True):
        number = min(rounds[trials], math.ceil(max(0, later) / trials))
        total += number * stacks(trials)
        later -= number * trials
    return total + max(0, later)
