"""Replay: what a search did, from the results that it left. For reports, figures and recipes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import pandas as pd

from hpxfer.scaling.hps import SCALARS, HPs
from hpxfer.search.make import round_search
from hpxfer.search.protocol import Outcome
from hpxfer.search.rounds import Played
from hpxfer.spec import SweepSpec
from hpxfer.store.losses import LOSS_COLUMNS
from hpxfer.trial import Expansion


class Searched(Protocol):
    """What a replay reads of a sweep's results (`hpxfer.results.Results`)."""

    @property
    def spec(self) -> SweepSpec: ...

    @property
    def trials(self) -> pd.DataFrame: ...

    @property
    def expansion(self) -> Expansion: ...


def outcomes_of(trials: pd.DataFrame, loss: str) -> dict[str, Outcome]:
    """Return trial id -> outcome of the stored trials that ended; failed ones run again and are none."""
    ended = trials[trials["status"] != "failed"]
    values: Any = ended[LOSS_COLUMNS[loss]]
    return {
        str(name): Outcome(str(status), None if pd.isna(value) else float(value))
        for name, status, value in zip(ended["trial_id"], ended["status"], values, strict=True)
    }


def hps_of_row(row: Mapping[Any, Any]) -> HPs:
    """Return the HPs of a stored trial."""
    multipliers = tuple(sorted((name, float(value)) for name, value in json.loads(row["multipliers"]).items()))
    return HPs(**{name: float(row[name]) for name in SCALARS}, multipliers=multipliers)


def replayed(results: Searched, outcomes: Mapping[str, Outcome] | None = None) -> tuple[Played, ...]:
    """Return how far each track of the sweep's search has come; () for grid and optuna, which have no rounds."""
    search = round_search(results.expansion)
    if search is None:
        return ()
    return search.play(outcomes_of(results.trials, results.spec.judge.loss) if outcomes is None else outcomes)
