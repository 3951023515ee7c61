"""Stored trials as a search sees them: how they ended, their HPs, and the arm that each belongs to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hpxfer.scaling.hps import SCALARS, HPs
from hpxfer.scaling.shape import Shape
from hpxfer.search.kinds import kind_of
from hpxfer.search.protocol import Arm, Outcome, arms_of
from hpxfer.search.values import bound_text
from hpxfer.spec import SweepSpec
from hpxfer.store.losses import LOSS_COLUMNS
from hpxfer.store.schema import shape_of_row
from hpxfer.trial import Expansion, Trial, base_hps

if TYPE_CHECKING:
    import pandas as pd


NEAR_END = 0.01  # octaves


class StoredSweep(Protocol):
    """What a replay reads of a sweep's results, see `hpxfer.results.Results`."""

    @property
    def spec(self) -> SweepSpec: ...

    @property
    def expansion(self) -> Expansion: ...

    @property
    def trials(self) -> pd.DataFrame: ...


class StoredCells(StoredSweep, Protocol):
    """What `tuned` reads."""

    @property
    def folder(self) -> Path: ...

    @property
    def cells(self) -> pd.DataFrame: ...


def outcomes_of(trials: pd.DataFrame, loss: str) -> dict[str, Outcome]:
    """Return trial id -> outcome of the stored trials that ended. A failed trial runs again, so it has no outcome."""
    ended = trials[trials["status"] != "failed"]
    columns: Any = (ended[name] for name in ("trial_id", "status", LOSS_COLUMNS[loss], "wall_s", "stack_size"))
    return {
        str(name): Outcome(str(status), _number(value), trial_seconds(_number(wall_s), _number(stack_size)))
        for name, status, value, wall_s, stack_size in zip(*columns, strict=True)
    }


def known_outcomes(found: Mapping[str, tuple[str, float | None, float | None, int | None]]) -> dict[str, Outcome]:
    """Return trial id -> outcome of what `Store.outcomes` gives."""
    return {
        trial_id: Outcome(status, loss, trial_seconds(wall_s, stack_size))
        for trial_id, (status, loss, wall_s, stack_size) in found.items()
    }


def _number(value: Any) -> float | None:
    """Return a stored number, or None if it is missing."""
    return float(value) if value is not None and value == value else None


def trial_seconds(wall_s: float | None, stack_size: float | None) -> float | None:
    """Return the worker seconds of a trial, given its stack's time and number of trials. None if one is missing."""
    return wall_s / stack_size if wall_s is not None and stack_size else None


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
        shape = shape_of_row(row)
        for arm in arms.get(shape, ()):
            trial = arm.trial(hps_of_row(row), int(row["seed"]))
            if trial.id == row["trial_id"] and is_of(expansion, arm.part, trial):
                yield arm, trial, row


def is_of(expansion: Expansion, part: Expansion, trial: Trial) -> bool:
    """Return whether a trial belongs to a part of its sweep: what the search does not vary is as there."""
    if part is expansion:
        return True
    if part.setting_at(trial.shape, trial.parameterization) != trial.setting:
        return False
    hps, base, varied = trial.hps, base_hps(part.spec), kind_of(part.spec).hps(part.spec)
    names = {*SCALARS, *(name for name, _ in (*hps.multipliers, *base.multipliers))}
    return all(hps.get(name) == base.get(name) for name in names.difference(varied))


def is_in_box(spec: SweepSpec, hps: HPs) -> bool:
    """Return whether a point lies between the ends of the grid and has its base value in every other HP."""
    inside = base_hps(spec)
    for name, values in spec.grid.items():
        low, high = values.numbers()[0], values.numbers()[-1]
        if not low <= hps.get(name) <= high:
            return False
        inside = inside.with_value(name, hps.get(name))
    return inside == hps


def box_bounds(spec: SweepSpec, hps: HPs) -> tuple[str, ...]:
    """Return the HPs of the grid whose value is within a hundredth of an octave of an end of the box, as bounds."""
    out = []
    for name, values in spec.grid.items():
        low, high, value = values.numbers()[0], values.numbers()[-1], hps.get(name)
        near = [value > 0 and end > 0 and abs(math.log2(value / end)) < NEAR_END for end in (low, high)]
        if low < high and any(near):
            out.append(bound_text(name, value, is_highest=near[1]))
    return tuple(out)
