"""Replay: what a search did, derived from the results that it left. Reports, figures and recipes read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from hpxfer.search.kinds import kind_of, make_search
from hpxfer.search.protocol import Outcome
from hpxfer.search.rounds import ArmHistory, RoundSearch
from hpxfer.search.stored import StoredSweep, outcomes_of


def replayed(results: StoredSweep, outcomes: Mapping[str, Outcome] | None = None) -> tuple[ArmHistory, ...]:
    """Return how far each strategy of the sweep's search has come, or () if the search cannot be replayed."""
    kind = kind_of(results.spec)
    if not kind.replays:
        return ()
    search = cast(RoundSearch, make_search(results.expansion))
    return search.play(outcomes_of(results.trials, results.spec.judge.loss) if outcomes is None else outcomes)
