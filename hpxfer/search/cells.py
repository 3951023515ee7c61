"""Cells: where the trials of a search lie in its sweep. Those of a grid are known before, these come out of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from hpxfer.scaling.hps import SCALARS, HPs
from hpxfer.scaling.shape import Shape
from hpxfer.search.arms import Arm, arms_of
from hpxfer.search.make import round_search
from hpxfer.search.replay import hps_of_row, outcomes_of
from hpxfer.search.values import names_in
from hpxfer.spec import SweepSpec
from hpxfer.store import SHAPE_COLUMNS
from hpxfer.trial import Cell, Expansion, Trial, base_hps


def searched_cells(expansion: Expansion, trials: pd.DataFrame) -> Iterator[Cell]:
    """Yield a cell for each place of each trial: the stored ones that are the sweep's, and those that come next.

    A stored trial is the sweep's if its row, made a trial again, hashes to its id. Its line is the HP in which alone it
    differs from the base values, each of them if it differs in none, and the kind of the search if it differs in more.
    """
    found = _by_place(expansion, trials)
    for path in expansion.paths:
        for point in path.points:
            for choice in expansion.choices:
                own = expansion.own_parameterization(choice, point.shape)
                for trial in found.get((own, point.shape), ()):
                    for line in lines_of(expansion.spec, trial.hps):
                        yield Cell(
                            axis=path.name,
                            scale_name=path.scale_name,
                            scale=point.scale,
                            shape=path.label(point.shape),
                            parameterization=choice.label(),
                            line=line,
                            trial=trial,
                        )


def searched_hps(spec: SweepSpec) -> tuple[str, ...]:
    """Return the HPs that the sweep varies: those of its grid, then those that its search multiplies."""
    names = (name for entry in spec.search.multipliers or () for name in names_in(entry))
    return tuple(dict.fromkeys([*spec.grid, *names]))


def lines_of(spec: SweepSpec, hps: HPs) -> tuple[str, ...]:
    """Return the lines that a point of the sweep is on."""
    base = base_hps(spec)
    differ = [name for name in SCALARS if hps.get(name) != base.get(name)]
    differ += sorted(name for name, _ in set(hps.multipliers) ^ set(base.multipliers))
    on = [name for name in spec.grid if set(differ) <= {name}]
    return tuple(on) or (spec.search.kind,)


def _by_place(expansion: Expansion, trials: pd.DataFrame) -> dict[tuple[Any, Shape], list[Trial]]:
    """Return (own parameterization, shape) -> its trials, in the order of the store, then those that come next."""
    out: dict[tuple[Any, Shape], dict[str, Trial]] = {}
    arms: dict[Shape, list[Arm]] = {}
    for one in arms_of(expansion):
        arms.setdefault(one.shape, []).append(one)
    for row in trials.to_dict("records"):
        shape = Shape(**{name: int(row[name]) for name in SHAPE_COLUMNS})
        for arm in arms.get(shape, ()):
            trial = expansion.trial(arm.choice, shape, hps_of_row(row), int(row["seed"]))
            if trial.id == row["trial_id"]:
                out.setdefault((trial.parameterization, shape), {})[trial.id] = trial
    search = round_search(expansion)
    coming = () if search is None else search.ask(outcomes_of(trials, expansion.spec.judge.loss), (), None)
    for trial in coming:
        out.setdefault((trial.parameterization, trial.shape), {}).setdefault(trial.id, trial)
    return {place: list(found.values()) for place, found in out.items()}
