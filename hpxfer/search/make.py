"""Make: the search that a sweep asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hpxfer.search.grid import GridSearch
from hpxfer.search.protocol import Search
from hpxfer.search.rounds import RoundSearch
from hpxfer.trial import Expansion

Metric = Literal["validation", "final_window"]


def make_search(expansion: Expansion, folder: Path, metric: Metric) -> Search:
    """Return the sweep's search. `folder` is that of its results, `metric` the loss that outcomes hold.

    Only optuna keeps something in the folder, its study; everything else follows from the outcomes.
    """
    if expansion.spec.search.kind == "optuna":
        from hpxfer.search.optuna_search import OptunaSearch

        return OptunaSearch(expansion, folder, metric)
    return round_search(expansion) or GridSearch(expansion)


def round_search(expansion: Expansion) -> RoundSearch | None:
    """Return a search that decides in rounds, which can be replayed from results; None for grid and optuna."""
    # Imported where asked for: a grid, which is the default, needs no sequences.
    match expansion.spec.search.kind:
        case "random":
            from hpxfer.search.random_search import random_search

            return random_search(expansion)
        case "refine":
            from hpxfer.search.refine import refine_search

            return refine_search(expansion)
        case "coordinate":
            from hpxfer.search.coordinate import coordinate_search

            return coordinate_search(expansion)
        case "staged-grid":
            from hpxfer.search.staged_grid import staged_search

            return staged_search(expansion)
    return None
