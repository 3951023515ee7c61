"""Rounds: the most stacks that a search in rounds may need. It only counts.

A round waits for the one before it, so its trials share stacks only with the same round of their arm. The number of
rounds and their sizes are not known in advance. This is an upper bound, and `--max-gpu-hours` checks it.
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

# Maps the trials of each shape that run together to the most of them in one stack.
Sizes = Callable[[Mapping[Shape, int]], Mapping[Shape, int]]


def packed_at_once(left: Mapping[Shape, int], sizes: Sizes) -> dict[Shape, tuple[int, int]]:
    """Return shape -> the number of stacks if all its trials run together, and the trials of the largest stack."""
    out = {}
    for shape, most in sizes(left).items():
        number = math.ceil(left[shape] / most)
        out[shape] = (number, math.ceil(left[shape] / number) if number else most)
    return out


def packed_in_rounds(
    expansion: Expansion, left: Mapping[Shape, int], now: Mapping[Shape, int], sizes: Sizes
) -> dict[Shape, tuple[int, int]]:
    """Return shape -> the most stacks that the trials of a search may need, and the trials of the largest stack.

    `left` are upper bounds. `now` are the trials among them that are asked for first.
    """
    spec, arms = expansion.spec, Counter(arm.shape for arm in arms_of(expansion))
    kind = kind_of(spec)
    seeds = 1 if kind.splits_seeds else len(spec.seeds)
    rounds = {points * seeds: number for points, number in kind.rounds(spec).items()}
    # Arms of one shape may ask at the same moment.
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
    """Return the most stacks that this many trials need in some of the `rounds`, which map trials -> rounds of that
    size.

    `stacks` returns how many stacks a round of so many trials makes. The bound fills the rounds that need the most
    stacks per trial first, until no trial is left.
    """
    total = 0
    for trials in sorted(rounds, key=lambda trials: stacks(trials) / trials, reverse=True):
        number = min(rounds[trials], math.ceil(max(0, later) / trials))
        total += number * stacks(trials)
        later -= number * trials
    return total + max(0, later)
