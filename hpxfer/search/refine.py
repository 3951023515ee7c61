"""Refine: widen a line while the optimum may lie on its edge, then halve the step. Where a line's optimum lies.

The interval of the optimum is its bracket, see `hpxfer.search.refine`. A point that diverged bounds the optimum, and
the line is never widened beyond it. Every other shape is also trained at the base's best value: its regret there is the
cost of a transfer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import HPs, check_hp_value
from hpxfer.search.compare import gain, pooled
from hpxfer.search.kinds import SearchKind, Stored
from hpxfer.search.lr_line import end_steps
from hpxfer.search.protocol import Arm, arms_of, buys, on_log_scale
from hpxfer.search.rounds import ArmStrategy, End, Losses, Round, RoundSearch, SeedLosses, Strategy, mean
from hpxfer.search.transferred import transferred
from hpxfer.search.values import at_exponent, exponent_of
from hpxfer.spec import SweepSpec
from hpxfer.spec.fields import Problem, Section, WhyNot
from hpxfer.trial import Expansion, base_hps
from hpxfer.verdict import loss_grid as verdict
from hpxfer.verdict.estimate import best_cell, estimate_all
from hpxfer.verdict.tied import lowest_of

# Bracket: where the optimum of a line lies, as its seeds show it.
#
# The bracket extends from the best point to the nearest points below and above that are worse by more than `NOISE`
# standard errors of the paired difference, or that diverged. It is not the interval of `hpxfer.verdict`, which rests on
# the losses of all shapes: a bracket exists after the first round of one arm.

NOISE = 2.0  # standard errors
NUM_NEAR = 4  # points whose standard errors are pooled


@dataclass(frozen=True, kw_only=True)
class MeasuredLine:
    """What is known of one HP in one arm: exponent -> losses. Exponents are log2 of the HP."""

    hp: str
    start: HPs
    given: tuple[float, ...]  # the values of the grid, which need not be powers of two
    losses: tuple[tuple[float, SeedLosses], ...] = ()  # ascending

    @property
    def first(self) -> tuple[float, ...]:
        """The exponents of the grid."""
        return tuple(exponent_of(value) for value in self.given)

    def point(self, exponent: float) -> HPs:
        """Return the HPs at an exponent."""
        spelled = dict(zip(self.first, self.given, strict=True)).get(exponent)
        return self.start.with_value(self.hp, at_exponent(exponent) if spelled is None else spelled)

    def best(self) -> int | None:
        """Return the index of the lowest mean loss, of equal ones the middle one, or None if nothing finished."""
        means = [mean(losses) for _, losses in self.losses]
        best = lowest_of(means, [exponent for exponent, _ in self.losses])
        return None if means[best] == math.inf else best


@dataclass(frozen=True, kw_only=True)
class Bracket:
    """Where the optimum is, in exponents. A side is None if no point there is known to be worse."""

    at: float
    low: float | None
    high: float | None
    high_diverged: bool

    @property
    def octaves(self) -> float:
        """The width, or +inf if a side is open."""
        return math.inf if self.low is None or self.high is None else self.high - self.low

    def text(self, hp: str) -> str:
        """Return the bracket in words."""
        sides = ("open" if side is None else f"2^{side:g}" for side in (self.low, self.high))
        width = f"{self.octaves:g} octaves" if math.isfinite(self.octaves) else "no interval"
        diverged = ", where training diverges" if self.high_diverged else ""
        return f"best {hp} 2^{self.at:g}, interval {' to '.join(sides)} ({width}){diverged}"


def handed_on(line: MeasuredLine) -> HPs:
    """Return the point that a verdict would hand on from a base with these losses: the lowest, as far as they tell."""
    cells = tuple(
        verdict.SeedLosses(value=2.0**exponent, seeds=tuple(range(len(losses))), losses=losses, num_missing=0)
        for exponent, losses in line.losses
    )
    row = verdict.ShapeLosses(
        axis=line.hp,
        scale_name=line.hp,
        scale=1.0,
        shape="base",
        is_base=True,
        parameterization="",
        cells=cells,
    )
    (estimates,) = estimate_all([verdict.LossGrid(rows=(row,))])
    best = best_cell(estimates, 0)
    assert best is not None, "a line where nothing finished hands on nothing"
    return line.point(line.losses[best][0])


def bracket_of(line: MeasuredLine) -> Bracket | None:
    """Return where the optimum is, or None if nothing finished."""
    best = line.best()
    if best is None:
        return None
    exponents = [exponent for exponent, _ in line.losses]
    losses = [of_seeds for _, of_seeds in line.losses]
    others = (index for index in range(len(losses)) if index != best)
    # Seeds differ more at distant points, so the standard errors of the nearest points are pooled.
    near = sorted(others, key=lambda index: abs(exponents[index] - exponents[best]))[:NUM_NEAR]
    gains = [gain(of_seeds, losses[best]) for of_seeds in losses]  # of the best over each
    worse = [each.beats(NOISE) for each in pooled(gains, [gains[index] for index in near])]
    low = max((index for index in range(best) if worse[index]), default=None)
    high = min((index for index in range(best + 1, len(losses)) if worse[index]), default=None)
    return Bracket(
        at=exponents[best],
        low=None if low is None else exponents[low],
        high=None if high is None else exponents[high],
        high_diverged=high is not None and mean(losses[high]) == math.inf,
    )


class RefineSettings(Section):
    """The keys of a refine search."""

    until_octaves: Annotated[float, Field(gt=0, le=100)] = 0.5  # a 0.25% basin is about one octave wide
    """refine: the search ends when the optimum is known to this width, in octaves."""
    max_octaves: Annotated[float, Field(ge=0, le=100)] = 4.0
    """refine: how far the line may be widened beyond either end, in octaves."""


@dataclass(frozen=True, kw_only=True)
class _Edge:
    """An end of the line beyond which the optimum may lie."""

    why: str
    new: float  # the exponent to try next
    beyond: float  # octaves from the end of the grid's line to `new`
    best_is_there: bool


def refine(line: MeasuredLine, until: float, max_octaves: float) -> Strategy:
    """Return the strategy that refines one HP in one arm."""
    line = yield from _measured(line, line.first, f"the line of {line.hp}, {len(line.given)} values", whole=True)
    while True:
        found, stuck = bracket_of(line), None
        for edge in _edges(line, found, max_octaves):
            if edge.beyond <= max_octaves + 1e-9 and _legal(line, edge.new):
                line = yield from _measured(line, (edge.new,), f"{edge.why}: widened to 2^{edge.new:g}")
                break
            stuck = edge if edge.best_is_there else stuck
        else:
            if stuck is not None:
                far = stuck.beyond > max_octaves + 1e-9
                bound = f"{max_octaves:g} octaves beyond the first line" if far else f"no {line.hp} of 2^{stuck.new:g}"
                text = f"{stuck.why}: a bound, not an optimum; not widened further: {bound}"
                return End(why=text, best=None if found is None else handed_on(line))
            assert found is not None, "a line where nothing finished is stuck at its lower end"
            inside = tuple(_midpoints(line, found.at, until / 2))
            if found.octaves <= until + 1e-9 or not inside:
                reached = found.octaves <= until + 1e-9
                more = "" if reached else f"; the step is small enough for {until:g}, but the seeds differ by more"
                return End(why=found.text(line.hp) + more, best=handed_on(line))
            spelled = " and ".join(f"2^{exponent:g}" for exponent in inside)
            line = yield from _measured(line, inside, f"{found.text(line.hp)}: halved to {spelled}")


def _edges(line: MeasuredLine, found: Bracket | None, max_octaves: float) -> Iterator[_Edge]:
    """Yield the ends of the line where the best point is, or where the loss is no worse by more than the noise."""
    low_step, high_step = widening_steps(line.given, max_octaves)
    low, high = line.losses[0][0], line.losses[-1][0]
    if found is None or found.low is None:
        new = round(low - low_step, 10)
        there = found is None or found.at == low
        why = "everything diverged" if found is None else _why(line.hp, found.at, "lowest", low)
        yield _Edge(why=why, new=new, beyond=line.first[0] - new, best_is_there=there)
    if found is not None and found.high is None:
        new = round(high + high_step, 10)
        why = _why(line.hp, found.at, "highest", high)
        yield _Edge(why=why, new=new, beyond=new - line.first[-1], best_is_there=found.at == high)


def _why(hp: str, at: float, name: str, end: float) -> str:
    if at == end:
        return f"the best {hp} 2^{at:g} is the {name}"
    return f"the best {hp} 2^{at:g} is no better than the {name}, 2^{end:g}, by more than the noise"


def _midpoints(line: MeasuredLine, at: float, least: float) -> Iterator[float]:
    """Yield the middles between the best and its neighbors farther away than `least`, the lower neighbor's first."""
    exponents = [exponent for exponent, _ in line.losses]
    here = exponents.index(at)
    beside = sorted((here - 1, here + 1), key=lambda index: mean(line.losses[index][1]))
    for index in beside:
        if abs(exponents[index] - at) > least + 1e-9:
            yield round((exponents[index] + at) / 2, 10)


def _legal(line: MeasuredLine, exponent: float) -> bool:
    try:
        check_hp_value(line.hp, at_exponent(exponent))
    except HpxferError:
        return False
    return True


def _measured(
    line: MeasuredLine, exponents: tuple[float, ...], why: str, whole: bool = False
) -> Generator[Round, Losses, MeasuredLine]:
    """Return the line with the losses of more points."""
    losses = yield Round(points=tuple(map(line.point, exponents)), why=why, whole=whole, about=line.hp)
    known = {**dict(line.losses), **dict(zip(exponents, losses, strict=True))}
    return replace(line, losses=tuple(sorted(known.items())))


def refine_search(expansion: Expansion, stored: Stored) -> RoundSearch:
    """Return a search that refines every HP in every arm, and tries the base's best values at the other shapes."""
    spec, arms = expansion.spec, arms_of(expansion)
    lines = {arm: dict(_lines(arm)) for arm in arms}
    strategies = [strategy for of in lines.values() for strategy in of.values()]
    bases = {label: arm for arm in arms if arm.is_base for label in arm.labels}
    for arm in arms:
        if not arm.is_base:
            strategies += [transferred(spec, arm, (hp,), after=lines[bases[arm.labels[0]]][hp]) for hp in spec.grid]
    return RoundSearch(expansion, strategies)


def _lines(arm: Arm) -> Iterator[tuple[str, ArmStrategy]]:
    """Yield (HP, strategy). Each HP gets the budget for the grid's values, and an equal share of the rest."""
    spec, seeds, settings = arm.spec, len(arm.spec.seeds), arm.spec.search.settings(RefineSettings)
    until, octaves = settings.until_octaves, settings.max_octaves
    first = {hp: len(values.numbers()) for hp, values in spec.grid.items()}
    rest = 0
    if spec.search.budget is not None:
        rest = spec.search.budget // seeds - sum(first.values()) - (0 if arm.is_base else len(first))
    for index, hp in enumerate(spec.grid):
        line = MeasuredLine(hp=hp, start=base_hps(spec), given=spec.grid[hp].numbers())
        # Noise may move the best into a gap that is still wide. `refine_size` ends the search all the same.
        most = refine_size(spec, hp)
        if spec.search.budget is not None:
            most = min(most, first[hp] + rest // len(first) + (index < rest % len(first)))
        yield (
            hp,
            ArmStrategy(
                arm=arm,
                name=f"refine {hp}",
                start=lambda _, line=line: refine(line, until, octaves),  # type: ignore[misc]
                budget=most * seeds,
                most=most * seeds,
            ),
        )


def refine_size(spec: SweepSpec, name: str) -> int:
    """Return the most points of the line of one HP."""
    values, settings = spec.grid[name].numbers(), spec.search.settings(RefineSettings)
    more = widening(values, settings.max_octaves)
    return len(values) + more + 2 * halvings(values, settings.until_octaves)


def widening(values: tuple[float, ...], max_octaves: float) -> int:
    """Return the most points by which a line is widened, on both sides together."""
    return sum(math.floor(max_octaves / step + 1e-9) for step in widening_steps(values, max_octaves))


def widening_steps(values: tuple[float, ...], max_octaves: float) -> tuple[float, float]:
    """Return the steps by which a line is widened below and above. A coarse line too is widened once."""
    low, high = (min(step, max_octaves or step) for step in end_steps(values))
    return low, high


def halvings(values: tuple[float, ...], until_octaves: float) -> int:
    """Return the most rounds in which the step of a line is halved."""
    logs = [math.log2(value) for value in values]
    widest = max((high - low for low, high in pairwise(logs)), default=1.0)
    return max(0, math.ceil(math.log2(2 * widest / until_octaves) - 1e-9))


def _size(spec: SweepSpec) -> int:
    # Beside its own lines, a shape may get the base's best value of each HP.
    return sum(refine_size(spec, name) for name in spec.grid) + len(spec.grid)


def _rounds(spec: SweepSpec) -> Counter[int]:
    first = [len(values.numbers()) for values in spec.grid.values()]
    # All other rounds are single points: widenings, halvings, and the base's best values at another shape.
    return Counter(first) + Counter({1: _size(spec) - sum(first)})


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    sizes = [len(values.numbers()) for values in spec.grid.values()]
    more = len(sizes) if spec.search.where == "all" else 0
    yield from buys(spec, sum(sizes) + more, "the first line of every HP and, beside it, the base's best value")
    yield from on_log_scale(spec)


REFINE = SearchKind(
    name="refine",
    settings=RefineSettings,
    problems=_problems,
    size=_size,
    rounds=_rounds,
    make=refine_search,
    tunes="lines",
    shows="brackets",
)
