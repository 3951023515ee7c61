"""Random: points of a box, log-uniform, the same in every arm. A larger budget goes on with the same sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from hpxfer.scaling.hps import HPs
from hpxfer.search.arms import arms_of
from hpxfer.search.rounds import End, Losses, Round, RoundSearch, Strategy, Track, lowest_point
from hpxfer.search.values import rounded
from hpxfer.spec import SweepSpec
from hpxfer.spec.search_defaults import num_points, setting
from hpxfer.trial import Expansion, base_hps


def random_search(expansion: Expansion) -> RoundSearch:
    """Return random search over the box of the grid's ends."""
    spec = expansion.spec
    points = tuple(random_points(spec, num_points(spec)))
    trials = len(points) * len(spec.seeds)
    why = f"{len(points)} {setting(spec, 'sequence')} points, log-uniform in {', '.join(spec.grid)}"

    def start(_: End | None) -> Strategy:
        losses: Losses = yield Round(points=points, why=why, whole=False)
        best = lowest_point(list(zip(points, losses, strict=True)))
        return End(why=told(spec, best), best=best)

    return RoundSearch(
        expansion,
        [Track(arm=arm, name="random", start=start, budget=trials, most=trials) for arm in arms_of(expansion)],
    )


def random_points(spec: SweepSpec, count: int) -> Iterator[HPs]:
    """Yield the first `count` points of the sequence that the search's seed starts."""
    start = base_hps(spec)
    ends = [(name, values.numbers()[0], values.numbers()[-1]) for name, values in spec.grid.items()]
    low, high = (np.log2([end[at] for end in ends]) for at in (1, 2))
    for unit in _unit_cube(spec, len(ends), count):
        hps = start
        for (name, least, most), exponent in zip(ends, low + unit * (high - low), strict=True):
            # Rounding must not leave the box.
            hps = hps.with_value(name, min(max(rounded(float(2.0**exponent)), least), most))
        yield hps


def _unit_cube(spec: SweepSpec, dimensions: int, count: int) -> NDArray[np.float64]:
    """Return points of the unit cube; fewer of them are the first of more."""
    seed: Any = setting(spec, "seed")
    if setting(spec, "sequence") == "uniform":
        return np.random.default_rng(seed).random((count, dimensions))
    # A power of two, as Sobol's points are balanced by; the rest is not used.
    sequence = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed))
    out: NDArray[np.float64] = sequence.random_base2((count - 1).bit_length())[:count]
    return out


def told(spec: SweepSpec, best: HPs | None) -> str:
    """Return a best point in words, by what the sweep varies."""
    if best is None:
        return "no point finished with every seed"
    return "best at " + ", ".join(f"{name} {best.get(name):.4g}" for name in spec.grid)
