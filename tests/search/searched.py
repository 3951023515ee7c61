"""A results folder that a search on a planted landscape has left, as a driver stores it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hpxfer.results import Results, load_results
from hpxfer.search import Outcome, make_search
from hpxfer.store import Store
from hpxfer.store.losses import LOSS_COLUMNS
from hpxfer.trial import Expansion, Trial
from hpxfer.trial.result import TrialResult

START = datetime(2026, 1, 1, tzinfo=UTC)


def searched(
    expansion: Expansion, land: Callable[[Trial], Outcome], folder: Path, *, at_once: int = 8, most: int | None = None
) -> Results:
    """Return the results of a search that ran to its end, or until so many trials; one ends every second."""
    search = make_search(expansion)
    outcomes: dict[str, Outcome] = {}
    ended: list[tuple[Trial, TrialResult]] = []
    while (asked := search.ask(outcomes, ())[:at_once]) and (most is None or len(ended) < most):
        for trial in asked:
            outcomes[trial.id] = land(trial)
            ended.append((trial, _result(trial, outcomes[trial.id], len(ended), expansion.spec.judge.loss)))
    store = Store.open(folder, write=True)
    store.append(ended)
    store.save_sweep(expansion.spec, expansion.data.digest)
    return load_results(folder)


def _result(trial: Trial, outcome: Outcome, number: int, judged_by: str) -> TrialResult:
    losses = dict.fromkeys(("validation_loss_nats", "final_window_loss_nats", LOSS_COLUMNS[judged_by]), outcome.loss)
    return TrialResult(
        trial_id=trial.id,
        status="finished" if outcome.status == "finished" else "diverged",
        diverged_step=3 if outcome.status == "diverged" else None,
        finished_at=(START + timedelta(seconds=number)).isoformat(),
        **losses,
    )
