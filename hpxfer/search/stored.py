"""Stored trials as a search sees them: how they ended, the arm and the cells of each, and the replay of the search."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hpxfer.scaling.hps import SCALARS, HPs
from hpxfer.scaling.shape import Shape
from hpxfer.search.kinds import kind_of, make_search
from hpxfer.search.protocol import Arm, Outcome, arms_of
from hpxfer.search.rounds import ArmStrategy, History, RoundSearch
from hpxfer.search.values import bound_text, ends_of_box
from hpxfer.spec import SweepSpec
from hpxfer.store import LOSS_COLUMNS, shape_of_row
from hpxfer.trial import Cell, Expansion, Trial, base_hps

if TYPE_CHECKING:
    import pandas as pd


NEAR_END = 0.01  # octaves


class Searched(Protocol):
    """What is read of a sweep's results, see `hpxfer.results.Results`."""

    @property
    def folder(self) -> Path: ...
    @property
    def spec(self) -> SweepSpec: ...
    @property
    def expansion(self) -> Expansion: ...
    @property
    def trials(self) -> pd.DataFrame: ...
    @property
    def cells(self) -> pd.DataFrame: ...


def outcomes_of(trials: pd.DataFrame, loss: str) -> dict[str, Outcome]:
    """Return trial id -> outcome of the stored trials that ended. A failed trial runs again, so it has no outcome."""
    ended = trials[trials["status"] != "failed"]
    numbers: Any = (ended[name] for name in (LOSS_COLUMNS[loss], "wall_s", "stack_size"))
    rows = zip(ended["trial_id"], ended["status"], *numbers, strict=True)
    return {str(name): Outcome.of(str(status), *map(_number, values)) for name, status, *values in rows}


def _number(value: Any) -> float | None:
    """Return a stored number, or None if it is missing."""
    return float(value) if value is not None and value == value else None


def hps_of_row(row: Mapping[Any, Any]) -> HPs:
    """Return the HPs of a stored trial."""
    multipliers = tuple(sorted((name, float(value)) for name, value in json.loads(row["multipliers"]).items()))
    return HPs(**{name: float(row[name]) for name in SCALARS}, multipliers=multipliers)


def stored_trials(expansion: Expansion, trials: pd.DataFrame) -> Iterator[tuple[Arm, Trial, Mapping[Any, Any]]]:
    """Yield (arm, trial, row) of the sweep's stored trials: those that have the same id if they are made again."""
    arms: dict[Shape, list[Arm]] = {}
    for arm in arms_of(expansion):
        arms.setdefault(arm.shape, []).append(arm)
    for row in trials.to_dict("records"):
        for arm in arms.get(shape_of_row(row), ()):
            trial = arm.trial(hps_of_row(row), int(row["seed"]))
            if trial.id == row["trial_id"] and is_of(expansion, arm.part, trial):
                yield arm, trial, row


def is_of(expansion: Expansion, part: Expansion, trial: Trial) -> bool:
    """Return whether a trial belongs to a part of its sweep: what the search does not vary is as there."""
    if part is expansion:
        return True
    if part.setting_at(trial.shape, trial.parameterization) != trial.setting:
        return False
    return _differing(trial.hps, base_hps(part.spec)) <= set(kind_of(part.spec).hps(part.spec))


def _differing(hps: HPs, base: HPs) -> set[str]:
    """Return the names of the HPs that are not those of the base."""
    names = {*SCALARS, *(name for name, _ in (*hps.multipliers, *base.multipliers))}
    return {name for name in names if hps.get(name) != base.get(name)}


def is_in_box(spec: SweepSpec, hps: HPs) -> bool:
    """Return whether a point lies between the ends of the grid and has its base value in every other HP."""
    ends = ends_of_box(spec)
    inside = base_hps(spec).with_values({name: hps.get(name) for name in ends})
    return inside == hps and all(low <= hps.get(name) <= high for name, (low, high) in ends.items())


def box_bounds(spec: SweepSpec, hps: HPs) -> tuple[str, ...]:
    """Return the HPs of the grid whose value is within a hundredth of an octave of an end of the box, as bounds."""
    out = []
    for name, (low, high) in ends_of_box(spec).items():
        value = hps.get(name)
        near = [value > 0 and end > 0 and abs(math.log2(value / end)) < NEAR_END for end in (low, high)]
        if low < high and any(near):
            out.append(bound_text(name, value, is_highest=near[1]))
    return tuple(out)


# Cells: where the trials of a search belong in its sweep. The cells of a grid are known before it is run.


def cells_of(expansion: Expansion, trials: pd.DataFrame) -> Iterator[Cell]:
    """Yield the cells of a sweep. `trials` are the stored ones."""
    return expansion.cells() if kind_of(expansion.spec).lists_trials else searched_cells(expansion, trials)


def searched_cells(expansion: Expansion, trials: pd.DataFrame) -> Iterator[Cell]:
    """Yield one cell per trial, axis and line: for the stored trials of the sweep, and for those that come next.

    The line of a trial is the HP in which alone it differs from the base values. A trial without a difference is on
    the line of every HP of the grid. A trial that differs in several HPs is on a line that is named after the search,
    and so is every trial of a search that scans no line.
    """
    next_ones: list[Trial] = []
    if kind_of(expansion.spec).replays:
        next_ones += make_search(expansion).ask(outcomes_of(trials, expansion.spec.judge.loss), ())
    found: dict[object, dict[str, Trial]] = {}
    for trial in (*(trial for _, trial, _ in stored_trials(expansion, trials)), *next_ones):
        found.setdefault((trial.parameterization, trial.shape), {}).setdefault(trial.id, trial)
    bases = [(part, base_hps(part.spec)) for part in expansion.parts]
    for (part, base), axis in itertools.product(bases, expansion.axes):
        for point, choice in itertools.product(axis.points, part.choices):
            own = expansion.own_parameterization(choice, point.shape)
            for trial in found.get((own, point.shape), {}).values():
                for line in _lines_of(part.spec, base, trial.hps) if is_of(expansion, part, trial) else ():
                    yield Cell(
                        axis=axis.name,
                        scale_name=axis.scale_name,
                        scale=point.scale,
                        shape=axis.label(point.shape),
                        parameterization=part.label(choice),
                        line=line,
                        trial=trial,
                    )


def _lines_of(spec: SweepSpec, base: HPs, hps: HPs) -> tuple[str, ...]:
    """Return the lines that a point of the sweep is on: of the HPs that the search scans a line of."""
    kind, differ = kind_of(spec), _differing(hps, base)
    on = [name for name in spec.grid if differ <= {name} and kind.why_no_line(spec, name) is None]
    return tuple(on) or (spec.search.kind,)


def replayed(results: Searched) -> tuple[tuple[ArmStrategy, History], ...]:
    """Return how far the strategies of the sweep's search have come, or () if the search cannot be replayed."""
    search = make_search(results.expansion) if kind_of(results.spec).replays else None
    return search.arms(outcomes_of(results.trials, results.spec.judge.loss)) if isinstance(search, RoundSearch) else ()
