"""Cells: where the trials of a search belong in its sweep. The cells of a grid are known before it is run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpxfer.scaling.hps import SCALARS, HPs
from hpxfer.search.kinds import kind_of, make_search
from hpxfer.search.stored import is_of, outcomes_of, stored_trials
from hpxfer.spec import SweepSpec
from hpxfer.trial import Cell, Expansion, Trial, base_hps

if TYPE_CHECKING:
    import pandas as pd


def cells_of(expansion: Expansion, trials: pd.DataFrame) -> Iterator[Cell]:
    """Yield the cells of a sweep. `trials` are the stored ones."""
    if kind_of(expansion.spec).lists_trials:
        return expansion.cells()
    return searched_cells(expansion, trials)


def searched_cells(expansion: Expansion, trials: pd.DataFrame) -> Iterator[Cell]:
    """Yield one cell per trial, axis and line: for the stored trials of the sweep, and for those that come next.

    The line of a trial is the HP in which alone it differs from the base values. A trial without a difference is on
    the line of every HP of the grid. A trial that differs in several HPs is on a line that is named after the search,
    and so is every trial of a search that scans no line.
    """
    found: dict[object, dict[str, Trial]] = {}
    for trial in (*(trial for _, trial, _ in stored_trials(expansion, trials)), *_next(expansion, trials)):
        found.setdefault((trial.parameterization, trial.shape), {}).setdefault(trial.id, trial)
    bases = [(part, base_hps(part.spec)) for part in expansion.parts]
    for (part, base), axis in itertools.product(bases, expansion.axes):
        for point in axis.points:
            for choice in part.choices:
                own = expansion.own_parameterization(choice, point.shape)
                for trial in found.get((own, point.shape), {}).values():
                    for line in lines_of(part.spec, base, trial.hps) if is_of(expansion, part, trial) else ():
                        yield Cell(
                            axis=axis.name,
                            scale_name=axis.scale_name,
                            scale=point.scale,
                            shape=axis.label(point.shape),
                            parameterization=part.label(choice),
                            line=line,
                            trial=trial,
                        )


def lines_of(spec: SweepSpec, base: HPs, hps: HPs) -> tuple[str, ...]:
    """Return the lines that a point of the sweep is on: of the HPs that the search scans a line of.

    `base` holds the base values of the sweep.
    """
    kind = kind_of(spec)
    differ = [name for name in SCALARS if hps.get(name) != base.get(name)]
    differ += sorted(name for name, _ in set(hps.multipliers) ^ set(base.multipliers))
    on = [name for name in spec.grid if set(differ) <= {name} and kind.why_no_line(spec, name) is None]
    return tuple(on) or (spec.search.kind,)


def _next(expansion: Expansion, trials: pd.DataFrame) -> Iterator[Trial]:
    """Yield the trials that the search asks for next, if it can be replayed."""
    kind = kind_of(expansion.spec)
    if kind.replays:
        yield from make_search(expansion).ask(outcomes_of(trials, expansion.spec.judge.loss), ())
