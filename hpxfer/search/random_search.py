"""Random: points of a box, log-uniform, the same in every arm. A larger budget continues the same sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hpxfer.scaling.hps import HPs
from hpxfer.search.kinds import SearchKind, Stored
from hpxfer.search.protocol import Arm, buys, countable, on_log_scale
from hpxfer.search.rounds import End, Losses, Round, RoundSearch, Strategy, lowest_point, search_each_arm
from hpxfer.search.values import rounded
from hpxfer.spec import SweepSpec
from hpxfer.spec.fields import Count, CountOrNone, Problem, Section, WhyNot
from hpxfer.trial import Expansion, base_hps


class RandomSettings(Section):
    """The keys of a random search."""

    points: Count | None = None
    """random: the HP points per arm. Each point is trained with every seed. The default is what the budget buys."""
    sequence: Literal["sobol", "uniform"] = "sobol"
    """random: how the points are drawn."""
    seed: CountOrNone = 0
    """random and optuna: the seed of the search itself."""


def num_points(spec: SweepSpec) -> int:
    """Return the HP points of an arm: as given, or as many as the budget buys."""
    return spec.search.settings(RandomSettings).points or (spec.search.budget or 0) // len(spec.seeds)


def random_search(expansion: Expansion, stored: Stored) -> RoundSearch:
    """Return random search over the box between the ends of the grid."""
    spec = expansion.spec
    count = num_points(spec)
    sequence = spec.search.settings(RandomSettings).sequence
    why = f"{count} {sequence} points, log-uniform in {', '.join(spec.grid)}"

    def strategy(arm: Arm) -> Strategy:
        points = tuple(random_points(arm.spec, count))
        losses: Losses = yield Round(points=points, why=why, whole=False)
        best = lowest_point(list(zip(points, losses, strict=True)))
        return End(why=best_in_words(spec, best), best=best)

    return search_each_arm(expansion, "random", strategy, count)


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
    """Return points of the unit cube. A shorter sequence is the start of a longer one."""
    settings = spec.search.settings(RandomSettings)
    if settings.sequence == "uniform":
        return np.random.default_rng(settings.seed).random((count, dimensions))
    from scipy.stats import qmc  # slow to import

    # Sobol's points are balanced in powers of two. The points beyond `count` are not used.
    sequence = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(settings.seed))
    out: NDArray[np.float64] = sequence.random_base2((count - 1).bit_length())[:count]
    return out


def best_in_words(spec: SweepSpec, best: HPs | None) -> str:
    """Return the values of a best point, for the HPs of the grid."""
    if best is None:
        return "no point finished with every seed"
    return "best at " + ", ".join(f"{name} {best.get(name):.4g}" for name in spec.grid)


def box_without_lines(spec: SweepSpec, hp: str) -> str | None:
    """Return why the points of a box hold no line of `hp`, or None if they do."""
    if len(spec.grid) > 1 and hp in spec.grid:
        return f"the points of {spec.search.kind} differ in every HP of the grid: there is no line of {hp} to judge"
    return None


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    points = spec.search.settings(RandomSettings).points
    if (points is None) == (spec.search.budget is None):
        got = "none" if points is None else "both"
        yield ("search",), f"random needs one of points and budget (trials per arm, seeds counted), got {got}"
        return
    yield from buys(spec, 1, "a point with every seed")
    yield from countable(spec, ("search", "budget" if points is None else "points"))
    if all(len(values.numbers()) == 1 for values in spec.grid.values()):
        yield ("grid",), "must have an HP with two ends to draw from, got one value each; give one of them two"
    yield from on_log_scale(spec)


RANDOM = SearchKind(
    name="random",
    settings=RandomSettings,
    problems=_problems,
    size=num_points,
    rounds=lambda spec: Counter([num_points(spec)]),
    make=random_search,
    why_no_line=box_without_lines,
    tunes="points",
    fixed_size=True,
    is_box=True,
    can_stop_early=True,
)
