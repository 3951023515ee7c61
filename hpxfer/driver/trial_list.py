"""The trials of a sweep as a list: what each is called, whether it is done, and where it stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hpxfer.driver.prepared import PreparedSweep
from hpxfer.search.cells import searched_cells
from hpxfer.store import Store
from hpxfer.trial import Trial


def known_trials(job: PreparedSweep) -> list[Trial]:
    """Return the sweep's trials: those of its grid or, of a search that chooses, what it has and would start now."""
    if job.spec.search.kind == "grid":
        return list(job.expansion.trials())
    found: dict[str, Trial] = {}
    for store in (Store.open(job.folder, write=False), *job.reuse.stores):
        cells = searched_cells(job.expansion, store.read_trials().to_pandas())
        found.update((cell.trial.id, cell.trial) for cell in cells if cell.trial.id in job.known)
    return list({**found, **{trial.id: trial for trial in job.missing}}.values())


def trials_of(job: PreparedSweep) -> list[dict[str, Any]]:
    """Return a JSON-ready row for each trial; `status` is missing for one that a run would train."""
    shown = tuple(_shown(job))
    several = len({(shape.batch_tokens, shape.steps) for shape in job.expansion.shapes}) > 1
    return [
        {
            "trial_id": trial.id,
            "status": job.known[trial.id].status if trial.id in job.known else "missing",
            "shape": trial.shape.label(schedule=several),
            "parameterization": None if trial.parameterization is None else trial.parameterization.label(),
            **{name: trial.hps.get(name) for name in shown},
            "seed": trial.seed,
        }
        for trial in known_trials(job)
    ]


def trials_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as an aligned table."""
    if not rows:
        return ""
    # Not a table of rich, whose time is felt where a sweep has tens of thousands of rows.
    cells = [tuple(rows[0]), *(tuple(map(_spelled, row.values())) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def _shown(job: PreparedSweep) -> Iterable[str]:
    """Return the HPs that tell the trials apart."""
    names = dict.fromkeys(job.spec.grid)
    for trial in job.missing:
        names.update(dict.fromkeys(name for name, _ in trial.hps.multipliers))
    return names


def _spelled(value: Any) -> str:
    if value is None:
        return "any"  # at the base shape, where parameterizations agree
    return f"{value:.6g}" if isinstance(value, float) else str(value)
