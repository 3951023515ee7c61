"""HP values that differ only in how they were written count as one: 0.000977, 9.766e-4 and 2^-10 are one LR."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hpxfer.errors import HpxferError, cut
from hpxfer.outside.runs import Read, Run, place

TOLERANCE = 0.02  # octaves
NEAR = 0.1  # octaves: no grid is so fine, and two such values are perhaps one


def joined_values(read: Read, tolerance: float = TOLERANCE) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """Return the runs with one value for all that lie within `tolerance` octaves, and what was joined, in words.

    The most frequent spelling stands for all. Raises HpxferError for values that form a chain longer than `tolerance`,
    because nothing says which of them are one.
    """
    if not (math.isfinite(tolerance) and 0 <= tolerance < 1):
        raise HpxferError(f"--tolerance: must be a number of octaves from 0 to below 1, got {tolerance}; 0 joins none")
    of_hp: dict[str, list[Run]] = {}
    for run in read.runs:
        of_hp.setdefault(run.hp, []).append(run)
    stands_for: dict[tuple[str, float], float] = {}
    notes = []
    for hp, runs in of_hp.items():
        counts = Counter(run.value for run in runs)
        groups = _groups(sorted(value for value in counts if value > 0), tolerance)
        for group in groups:
            if math.log2(group[-1] / group[0]) > tolerance:
                raise _chain(read, hp, group, tolerance)
            best = max(group, key=lambda value: (counts[value], -len(repr(value)), -value))
            stands_for |= {(hp, value): best for value in group}
        if len(groups) < (num := sum(value > 0 for value in counts)):
            notes.append(f"{num} spellings of {hp} are {len(groups)} values, within {tolerance:g} octaves each")
        if len(groups) > 2 and all(other[0] - one[0] == 1 for one, other in pairwise(groups)):
            ends = f"{groups[0][0]:g} to {groups[-1][0]:g}"
            notes.append(f"{hp} is {ends} in steps of one; if these are exponents, name the column log2_{hp}")
        for one, other in pairwise(groups):
            if tolerance > 0 and (apart := math.log2(other[0] / one[-1])) < NEAR:
                two = f"{one[-1]:g} and {other[0]:g} are two values of {hp}, {apart:.2g} octaves apart"
                notes.append(f"{two}; if they are one, --tolerance {NEAR:g} joins them")
                break
    joined = tuple(replace(run, value=stands_for.get((run.hp, run.value), run.value)) for run in read.runs)
    return joined, tuple(notes)


def _groups(values: Sequence[float], tolerance: float) -> list[list[float]]:
    """Return ascending values in groups whose neighbors are at most `tolerance` octaves apart."""
    groups: list[list[float]] = []
    for value in values:
        if groups and tolerance > 0 and math.log2(value / groups[-1][-1]) <= tolerance:
            groups[-1].append(value)
        else:
            groups.append([value])
    return groups


def _chain(read: Read, hp: str, group: Sequence[float], tolerance: float) -> HpxferError:
    row = next(run.row for run in read.runs if run.hp == hp and run.value == group[1])
    listed = cut(", ".join(f"{value:g}" for value in group))
    return HpxferError(
        f"{place(read.where, row, 'value', read.columns)}: values of {hp} must be one within {tolerance:g} octaves or "
        f"further apart, got the chain {listed}; round them, or give --tolerance 0 if all of them differ"
    )
