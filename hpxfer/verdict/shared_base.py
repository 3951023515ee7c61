"""Shared bases: arms and axes whose trials at the base are the same trials have one base, with all of its losses.

At the base, most parameterizations are one model. A sweep trains it once, and a table of runs lists it once per arm.
Some rows may lack there what others have, such as a seed. What one row knows of a base holds for all of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from hpxfer.verdict.loss_grid import LossGrid, SeedLosses, ShapeLosses

# So many losses must be equal to the last digit, and none different, where no ids say that trials are the same.
ENOUGH_EQUAL = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """The grids of arms that share a base, and of arms that share one with these.

    `rows` are their different shapes, each with its key. A base comes before the shapes of all arms.
    """

    grids: tuple[LossGrid, ...]
    rows: dict[Hashable, ShapeLosses]

    @property
    def num_bases(self) -> int:
        """The number of bases, which are the first rows."""
        return sum(row.is_base for row in self.rows.values())

    @property
    def arms(self) -> list[str]:
        """The arm of each row, empty for a base, which belongs to all arms."""
        return ["" if row.is_base else row.parameterization for row in self.rows.values()]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Known:
    """What a row knows of a base: the loss of each value and seed that has a result, and the ids of trials."""

    loss_of: dict[tuple[float, int], float]
    trials: frozenset[tuple[float, int, str]]

    @classmethod
    def of(cls, row: ShapeLosses) -> _Known:
        cells = (*row.cells, *row.off_axis)
        return cls(
            loss_of={(cell.value, seed): loss for cell in cells for seed, loss in cell.by_seed.items()},
            trials=frozenset((cell.value, *trial) for cell in cells for trial in cell.trials),
        )

    def is_same(self, other: _Known) -> bool:
        """Return whether both hold the same trials: no loss differs, and ids are the same or enough losses are."""
        common = self.loss_of.keys() & other.loss_of.keys()
        if any(self.loss_of[at] != other.loss_of[at] for at in common):
            return False
        return bool(self.trials & other.trials) or sum(math.isfinite(self.loss_of[at]) for at in common) >= ENOUGH_EQUAL


def groups_of(grids: Sequence[LossGrid]) -> tuple[Group, ...]:
    """Return the grids by the bases that they share, in the order of the first grid of each group."""
    shared = with_shared_bases(grids)
    links: dict[Hashable, Hashable] = {}
    for grid in shared:
        for row in grid.rows:
            if row.is_base:
                _join(links, grid.parameterization, key_of(row))
    members: dict[Hashable, list[LossGrid]] = defaultdict(list)
    for grid in shared:
        members[_root(links, grid.parameterization)].append(grid)
    return tuple(Group(grids=tuple(found), rows=_rows(found)) for found in members.values())


def key_of(row: ShapeLosses) -> Hashable:
    """Return what tells shapes apart: a base is the same in every arm and on every axis that has its trials."""
    where = () if row.is_base else (row.parameterization, row.axis, row.scale, row.shape)
    return (*where, row.cells)


def with_shared_bases(grids: Sequence[LossGrid]) -> tuple[LossGrid, ...]:
    """Return the grids with the losses of all rows of the same base in each of these rows."""
    bases = [row for grid in grids for row in grid.rows if row.is_base]
    known = [_Known.of(row) for row in bases]
    having: dict[Hashable, list[int]] = defaultdict(list)  # rows that have one result or one trial in common
    links: dict[Hashable, Hashable] = {}
    for i, row in enumerate(known):
        facts = {*row.loss_of.items(), *row.trials}
        for j in dict.fromkeys(j for fact in facts for j in having[fact]):
            if _root(links, i) != _root(links, j) and row.is_same(known[j]):
                _join(links, i, j)
        for fact in facts:
            having[fact].append(i)
    parts: dict[Hashable, list[ShapeLosses]] = defaultdict(list)
    for i, base in enumerate(bases):
        parts[_root(links, i)].append(base)
    whole = {
        id(row): replace(row, cells=cells, off_axis=off_axis)
        for found in parts.values()
        if len({(row.cells, row.off_axis) for row in found}) > 1
        for cells, off_axis in [(_merged(row.cells for row in found), _merged(row.off_axis for row in found))]
        for row in found
    }
    return tuple(replace(grid, rows=tuple(whole.get(id(row), row) for row in grid.rows)) for grid in grids)


def _rows(grids: Iterable[LossGrid]) -> dict[Hashable, ShapeLosses]:
    found: dict[Hashable, ShapeLosses] = {}
    for row in sorted((row for grid in grids for row in grid.rows), key=lambda row: not row.is_base):
        found.setdefault(key_of(row), row)
    return found


def _merged(rows: Iterable[tuple[SeedLosses, ...]]) -> tuple[SeedLosses, ...]:
    """Return the cells of the rows of one base, ascending, each with the results of all of them."""
    by_value: dict[float, list[SeedLosses]] = defaultdict(list)
    for cells in rows:
        for cell in cells:
            by_value[cell.value].append(cell)
    return tuple(_merged_cell(by_value[value]) for value in sorted(by_value))


def _merged_cell(cells: Sequence[SeedLosses]) -> SeedLosses:
    loss_of = {seed: loss for cell in cells for seed, loss in cell.by_seed.items()}
    trials = tuple(sorted({trial for cell in cells for trial in cell.trials}))
    planned = max(len({seed for seed, _ in trials}), *(len(cell.losses) + cell.num_missing for cell in cells))
    missing = max(planned - len(loss_of), 0)
    seeds = tuple(sorted(loss_of))
    return SeedLosses(
        value=cells[0].value,
        seeds=seeds,
        losses=tuple(loss_of[seed] for seed in seeds),
        num_missing=missing,
        num_lost=min(missing, max(cell.num_lost for cell in cells)),
        trials=trials,
    )


def _root(links: dict[Hashable, Hashable], item: Hashable) -> Hashable:
    while (above := links.get(item, item)) != item:
        item = above
    return item


def _join(links: dict[Hashable, Hashable], one: Hashable, other: Hashable) -> None:
    links[_root(links, one)] = _root(links, other)
