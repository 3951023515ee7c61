"""Trial list: the trials of a sweep with their ids, statuses, shapes and HPs, for `hpxfer plan --trials`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hpxfer.driver.prepared import PreparedSweep
from hpxfer.host.output import aligned
from hpxfer.search.kinds import kind_of
from hpxfer.search.stored import searched_cells
from hpxfer.store import Store
from hpxfer.trial import Trial


def known_trials(prepared: PreparedSweep) -> list[Trial]:
    """Return the trials of a grid; of an adaptive search, those it has and those it would start now."""
    if kind_of(prepared.spec).lists_trials:
        return list(prepared.expansion.trials())
    found: dict[str, Trial] = {}
    for store in (Store.open(prepared.folder, write=False), *prepared.reuse.stores):
        cells = searched_cells(prepared.expansion, store.read_trials().to_pandas())
        found.update((cell.trial.id, cell.trial) for cell in cells if cell.trial.id in prepared.known)
    return list({**found, **{trial.id: trial for trial in prepared.missing}}.values())


def trials_of(prepared: PreparedSweep) -> list[dict[str, Any]]:
    """Return one JSON-ready row per trial. The status of a trial that a run would train is `missing`."""
    shown = tuple(_shown(prepared))
    several = len({(shape.batch_tokens, shape.steps) for shape in prepared.expansion.shapes}) > 1
    return [
        {
            "trial_id": trial.id,
            "status": prepared.known[trial.id].status if trial.id in prepared.known else "missing",
            "shape": trial.shape.label(schedule=several),
            "parameterization": None if trial.parameterization is None else trial.parameterization.label(),
            **{name: trial.hps.get(name) for name in shown},
            "seed": trial.seed,
        }
        for trial in known_trials(prepared)
    ]


def trials_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as an aligned table."""
    if not rows:
        return ""
    # rich.table takes seconds where a sweep has tens of thousands of rows.
    return "\n".join(aligned([tuple(rows[0]), *(tuple(map(_spelled, row.values())) for row in rows)]))


def _shown(prepared: PreparedSweep) -> Iterable[str]:
    """Return the HPs in which the trials differ."""
    names = dict.fromkeys(prepared.spec.grid)
    for arm in prepared.spec.parameterizations:
        names.update(dict.fromkeys(arm.given()))
    for trial in prepared.missing:
        names.update(dict.fromkeys(name for name, _ in trial.hps.multipliers))
    return names


def _spelled(value: Any) -> str:
    if value is None:
        return "any"  # at the base shape, where parameterizations agree
    return f"{value:.6g}" if isinstance(value, float) else str(value)
