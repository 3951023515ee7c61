"""The trials of a sweep as a list: what each is called, whether it is done, and where it stands."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from hpxfer.driver.job import Job
from hpxfer.search.cells import searched_cells
from hpxfer.store import Store
from hpxfer.trial import Trial


def known_trials(job: Job) -> list[Trial]:
    """Return the sweep's trials: those of its grid or, of a search that chooses, what it has and would start now."""
    if job.spec.search.kind == "grid":
        return list(job.expansion.trials())
    found: dict[str, Trial] = {}
    for store in (Store.open(job.folder, write=False), *job.reuse.stores):
        cells = searched_cells(job.expansion, store.read_trials().to_pandas())
        found.update((cell.trial.id, cell.trial) for cell in cells if cell.trial.id in job.known)
    return list({**found, **{trial.id: trial for trial in job.missing}}.values())


def trials_of(job: Job) -> list[dict[str, Any]]:
    """Return a JSON-ready row for each trial; `status` is missing for one that a run would train."""
    several = len({(shape.batch_tokens, shape.steps) for shape in job.expansion.shapes}) > 1
    return [
        {
            "trial_id": trial.id,
            "status": job.known[trial.id].status if trial.id in job.known else "missing",
            "shape": trial.shape.label(schedule=several),
            "parameterization": None if trial.parameterization is None else trial.parameterization.label(),
            **{name: trial.hps.get(name) for name in _shown(job)},
            "seed": trial.seed,
        }
        for trial in known_trials(job)
    ]


def trials_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as an aligned table."""
    table = Table(box=None, pad_edge=False, header_style="")
    for name in rows[0] if rows else ():
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*(_spelled(value) for value in row.values()))
    out = io.StringIO()
    Console(file=out, width=1000, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _shown(job: Job) -> Iterable[str]:
    """Return the HPs that tell the trials apart."""
    names = dict.fromkeys(job.spec.grid)
    for trial in job.missing:
        names.update(dict.fromkeys(name for name, _ in trial.hps.multipliers))
    return names


def _spelled(value: Any) -> str:
    if value is None:
        return "any"  # at the base shape, where parameterizations agree
    return f"{value:.6g}" if isinstance(value, float) else str(value)
