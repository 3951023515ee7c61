"""Refine with `product: true`: two HPs at once, as a row of the searches. `refine_plane` has the strategy of an arm."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from hpxfer.search.arms import Arm, arms_of
from hpxfer.search.checks import buys, on_log_scale
from hpxfer.search.kinds import SearchKind, Stored
from hpxfer.search.plane import Plane
from hpxfer.search.plane_design import POINTS
from hpxfer.search.refine_plane import FIRST, MOST_ROUNDS, refine_plane
from hpxfer.search.refine_settings import RefineSettings
from hpxfer.search.rounds import ArmStrategy, RoundSearch
from hpxfer.search.transferred import transferred
from hpxfer.spec import SweepSpec
from hpxfer.spec.problem import Problem, WhyNot
from hpxfer.trial import Expansion, base_hps


def refine_product_search(expansion: Expansion, stored: Stored) -> RoundSearch:
    """Return a search that refines both HPs in every arm, and tries the base's best point at the other shapes."""
    spec, arms = expansion.spec, arms_of(expansion)
    first, second = spec.grid
    own = {arm: _strategy(arm.spec, arm, (first, second)) for arm in arms}
    bases = {label: arm for arm in arms if arm.is_base for label in arm.labels}
    moved = [
        transferred(spec, arm, (first, second), after=own[bases[arm.labels[0]]]) for arm in arms if not arm.is_base
    ]
    return RoundSearch(expansion, [*own.values(), *moved])


def plane_of(spec: SweepSpec) -> Plane:
    """Return the plane of a sweep's grid before anything is measured."""
    first, second = spec.grid
    given = spec.grid[first].numbers(), spec.grid[second].numbers()
    return Plane.of((first, second), base_hps(spec), given)


def strategy_name(spec: SweepSpec) -> str:
    """Return the name of the strategies that refine the plane of a sweep."""
    return f"refine {' x '.join(spec.grid)}"


def _strategy(spec: SweepSpec, arm: Arm, hps: tuple[str, str]) -> ArmStrategy:
    settings, seeds = spec.search.settings(RefineSettings), len(spec.seeds)
    most = plane_size(spec)
    if spec.search.budget is not None:
        most = min(most, spec.search.budget // seeds - (0 if arm.is_base else 1))
    return ArmStrategy(
        arm=arm,
        name=strategy_name(spec),
        start=lambda _: refine_plane(plane_of(spec), settings.until_octaves, settings.max_octaves),
        budget=most * seeds,
        most=most * seeds,
    )


def _num_grown(spec: SweepSpec) -> int:
    """Return the most rounds before which the box grows."""
    octaves = spec.search.settings(RefineSettings).max_octaves
    steps = [step for end in plane_of(spec).steps(octaves) for step in end]
    return sum(math.floor(octaves / step + 1e-9) for step in steps if step > 0)


def plane_size(spec: SweepSpec) -> int:
    """Return the most points of one plane."""
    return FIRST + POINTS * (MOST_ROUNDS + _num_grown(spec))


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    number = len(spec.grid)
    if number != 2:
        coefficients = (number + 1) * (number + 2) // 2
        why = f"its quadratic has 6 coefficients over two HPs, and {coefficients} over {number}"
        fix = "name the two that depend on each other, and search the others by themselves"
        yield (
            ("grid",),
            f"must have two HPs to refine with product, as {why}; {'take product out' if number < 2 else fix}",
        )
        return
    more = 1 if spec.search.where == "all" else 0
    yield from on_log_scale(spec)
    yield from buys(spec, FIRST + more, "three values of each HP and, beside them, the base's best point")


def _size(spec: SweepSpec) -> int:
    return plane_size(spec) + 1  # the base's best point


def _rounds(spec: SweepSpec) -> Counter[int]:
    return Counter({FIRST: 1}) + Counter({POINTS: MOST_ROUNDS + _num_grown(spec)}) + Counter({1: 1})


def _no_line(spec: SweepSpec, hp: str) -> str | None:
    if hp not in spec.grid:
        return None
    return f"refine with product moves {' and '.join(spec.grid)} together: there is no line of {hp} to judge"


REFINE_PRODUCT = SearchKind(
    name="refine",
    settings=RefineSettings,
    problems=_problems,
    size=_size,
    rounds=_rounds,
    make=refine_product_search,
    why_no_line=_no_line,
    tunes="points",
    shows="contours",
)
