"""A results folder that a search on a planted landscape has left, as a driver stores it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from landscape import Ran, run

from hpxfer.results import Results, load_results
from hpxfer.search import Outcome
from hpxfer.store import Store
from hpxfer.store.losses import LOSS_COLUMNS
from hpxfer.trial import Expansion, Trial
from hpxfer.trial.result import TrialResult

START = datetime(2026, 1, 1, tzinfo=UTC)


def searched(
    expansion: Expansion, land: Callable[[Trial], Outcome], folder: Path, *, at_once: int = 8, most: int | None = None
) -> Results:
    """Return the results of a search that ran to its end, or until so many trials."""
    return stored(expansion, run(expansion, land, at_once=at_once, stop_after=most), folder)


def stored(expansion: Expansion, ran: Ran, folder: Path) -> Results:
    """Return the results of what a run of a search came to. A trial ends every second; without an outcome it failed."""
    columns = ("validation_loss_nats", "final_window_loss_nats", LOSS_COLUMNS[expansion.spec.judge.loss])
    ended = []
    for number, trial in enumerate(ran.trials.values()):
        outcome = ran.outcomes.get(trial.id, Outcome("failed"))
        result = TrialResult(
            trial_id=trial.id,
            status=outcome.status,  # type: ignore[arg-type]
            diverged_step=3 if outcome.status == "diverged" else None,
            finished_at=(START + timedelta(seconds=number)).isoformat(),
            **dict.fromkeys(columns, outcome.loss),
        )
        ended.append((trial, result))
    store = Store.open(folder, write=True)
    store.append(ended)
    store.save_sweep(expansion.spec, expansion.data.digest)
    return load_results(folder)
