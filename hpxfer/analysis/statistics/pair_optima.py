"""Pairs of a staged grid: the optimum of a whole stage against that of each pair tuned by itself (MSSP, Fig. Q.49)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.search.heatmaps import Heatmap, heatmaps
from hpxfer.search.kinds import kind_of
from hpxfer.search.replay import replayed


@dataclass(frozen=True, kw_only=True)
class PairOptimum:
    """Two dimensions of one stage of one arm."""

    parameterization: str
    shape: str
    stage: str  # broad | fine
    first: str
    second: str
    best_first: float  # of the whole stage
    best_second: float
    alone_first: float  # of the pair, all other dimensions at the center of the grid
    alone_second: float
    differ: bool
    alone_nats: float | None  # the loss there, in the plane through the center; None if the whole plane diverged
    cost_nats: (
        float | None
    )  # what is lost if the other dimensions are tuned after the pair; None if the whole plane diverged


def pair_optima(inputs: Inputs) -> tuple[PairOptimum, ...]:
    """Return every pair of every stage, arm by arm; () for another search."""
    if kind_of(inputs.results.spec).shows != "heatmaps":
        return ()
    return tuple(_optimum(pair) for played in replayed(inputs.results) for pair in heatmaps(played))


def _optimum(pair: Heatmap) -> PairOptimum:
    (x, y), (alone_x, alone_y) = pair.best, pair.in_plane
    alone_nats = pair.at_center[alone_y][alone_x]
    return PairOptimum(
        parameterization=" = ".join(pair.labels),
        shape=pair.shape,
        stage=pair.stage,
        first=pair.x,
        second=pair.y,
        best_first=pair.x_values[x],
        best_second=pair.y_values[y],
        alone_first=pair.x_values[alone_x],
        alone_second=pair.y_values[alone_y],
        differ=pair.best != pair.in_plane,
        alone_nats=_finite(alone_nats),
        cost_nats=_finite(pair.cost_nats) if math.isfinite(alone_nats) else None,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


PAIR_OPTIMA = Statistic(
    name="pair_optima",
    title="A pair tuned by itself against all dimensions together",
    note="best: the values of the stage's best point. alone: the best values with all other dimensions at the center "
    "of the grid, where the stage before ended. cost: what is lost if the other dimensions are tuned after the pair. A "
    "cost within the noise of seeds says nothing.",
    compute=pair_optima,
)
