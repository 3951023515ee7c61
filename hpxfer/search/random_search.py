"""Random: points of a box, log-uniform, the same in every arm. A larger budget continues the same sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

import numpy as np

from hpxfer.scaling.hps import HPs
from hpxfer.search.checks import buys, countable, on_log_scale
from hpxfer.search.kinds import SearchKind, Stored
from hpxfer.search.protocol import Arm
from hpxfer.search.rounds import End, Points, Round, RoundSearch, lowest_point, search_each_arm
from hpxfer.search.values import SeedLosses, ends_of_box, in_box, values_text
from hpxfer.spec import Count, CountOrNone, Problem, Section, SweepSpec, WhyNot
from hpxfer.trial import Expansion, base_hps


class RandomSettings(Section):
    """The keys of a random search."""

    points: Count | None = None
    """random and random-pairs: the random HP points per arm. Each point is trained with every seed. The
    default of random is what the budget buys."""
    sequence: Literal["sobol", "uniform"] = "sobol"
    """random and random-pairs: how the points are drawn."""
    seed: CountOrNone = 0
    """random, random-pairs and optuna: the seed of the search itself."""


def num_points(spec: SweepSpec) -> int:
    """Return the HP points of an arm: as given, or as many as the budget buys."""
    return spec.search.settings(RandomSettings).points or (spec.search.budget or 0) // len(spec.seeds)


def random_search(expansion: Expansion, stored: Stored) -> RoundSearch:
    """Return random search over the box between the ends of the grid."""
    spec, count = expansion.spec, num_points(expansion.spec)
    why = f"{count} {spec.search.settings(RandomSettings).sequence} points, log-uniform in {', '.join(spec.grid)}"

    def points(arm: Arm) -> Points:
        tried = tuple(random_points(arm.spec, count))
        losses = yield Round(points=tried, why=why, whole=False)
        return best_of(spec, list(zip(tried, losses, strict=True)))

    return search_each_arm(expansion, "random", points)


def best_of(spec: SweepSpec, known: list[tuple[HPs, SeedLosses]]) -> End:
    """Return the end of a search in a box, with the best of the points that are known."""
    best = lowest_point(known)
    why = f"best at {values_text(spec.grid, best)}" if best else "no point finished with every seed"
    return End(why=why, best=best)


def random_points(spec: SweepSpec, count: int) -> Iterator[HPs]:
    """Yield the first `count` points of the sequence that the search's seed starts: a longer one starts so, too."""
    settings, start, box = spec.search.settings(RandomSettings), base_hps(spec), ends_of_box(spec)
    rng = np.random.default_rng(settings.seed)
    if settings.sequence == "uniform":
        units = rng.random((count, len(box)))
    else:
        from scipy.stats import qmc  # slow to import

        # Sobol's points are balanced in powers of two. The points beyond `count` are not used.
        units = qmc.Sobol(len(box), scramble=True, rng=rng).random_base2((count - 1).bit_length())[:count]
    low, high = np.log2(list(box.values())).T
    for exponents in low + units * (high - low):
        values = zip(box, map(float, 2.0**exponents), strict=True)
        yield start.with_values({hp: in_box(value, box[hp]) for hp, value in values})


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
    if all(low == high for low, high in ends_of_box(spec).values()):
        yield ("grid",), "must have an HP with two ends to draw from, got one value each"
    yield from on_log_scale(spec)


RANDOM = SearchKind(
    name="random",
    settings=RandomSettings,
    problems=_problems,
    rounds=lambda spec: Counter([num_points(spec)]),
    make=random_search,
    why_no_line=box_without_lines,
    tunes="points",
    fixed_size=True,
    is_box=True,
    can_stop_early=True,
)
