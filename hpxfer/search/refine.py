"""Refine: widen a line while the optimum may lie on its edge, then halve the step. Where a line's optimum lies.

The interval of the optimum is its bracket. It extends from the best point to the nearest points below and above that
are worse by more than `NOISE` standard errors of the paired difference, or that diverged. It is not the interval of
`hpxfer.verdict`, which rests on the losses of all shapes: a bracket exists after the first round of one arm.

A point that diverged bounds the optimum, and the line is never widened beyond it. Every other shape is also trained at
the base's best value: its regret there is the cost of a transfer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import HPs, check_hp_value
from hpxfer.search.kinds import SearchKind, SearchReport, Stored
from hpxfer.search.protocol import Arm, arms_of, buys, on_log_scale
from hpxfer.search.rounds import ArmStrategy, End, Losses, Points, Round, RoundSearch, mean
from hpxfer.search.stored import Searched, replayed
from hpxfer.search.values import SeedLosses, at_exponent, end_steps, exponent_of, gain, pooled
from hpxfer.spec import SweepSpec
from hpxfer.spec.fields import Problem, Section, WhyNot
from hpxfer.trial import Expansion, base_hps
from hpxfer.verdict import loss_grid as verdict
from hpxfer.verdict.estimate import best_cell, estimate_all
from hpxfer.verdict.tied import lowest_of

NOISE = 2.0  # standard errors
NUM_NEAR = 4  # points whose standard errors are pooled


class RefineSettings(Section):
    """The keys of a refine search."""

    until_octaves: Annotated[float, Field(gt=0, le=100)] = 0.5  # a 0.25% basin is about one octave wide
    """refine: the search ends when the optimum is known to this width, in octaves."""
    max_octaves: Annotated[float, Field(ge=0, le=100)] = 4.0
    """refine: how far the line may be widened beyond either end, in octaves."""


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


def bracket_of(known: Mapping[float, SeedLosses]) -> Bracket | None:
    """Return where the optimum of a line (exponent -> losses) is, or None if nothing finished."""
    exponents = sorted(known)
    losses = [known[exponent] for exponent in exponents]
    means = [mean(of_seeds) for of_seeds in losses]
    best = lowest_of(means, exponents)
    if means[best] == math.inf:
        return None
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
        high_diverged=high is not None and means[high] == math.inf,
    )


@dataclass(frozen=True, kw_only=True)
class Line:
    """One HP in one arm, and what is known of it: exponent -> losses. Exponents are log2 of the HP."""

    hp: str
    start: HPs
    given: tuple[float, ...]  # the values of the grid, which need not be powers of two
    known: Mapping[float, SeedLosses]

    @property
    def first(self) -> tuple[float, ...]:
        """The exponents of the grid."""
        return tuple(map(exponent_of, self.given))

    def point(self, exponent: float) -> HPs:
        """Return the HPs at an exponent."""
        spelled = dict(zip(self.first, self.given, strict=True)).get(exponent)
        return self.start.with_value(self.hp, at_exponent(exponent) if spelled is None else spelled)

    def measure(self, exponents: tuple[float, ...], why: str, whole: bool = False) -> Generator[Round, Losses, Line]:
        """Return the line with the losses of more points."""
        losses = yield Round(points=tuple(map(self.point, exponents)), why=why, whole=whole, about=self.hp)
        return replace(self, known={**self.known, **dict(zip(exponents, losses, strict=True))})

    def handed_on(self) -> HPs:
        """Return the point that a verdict would hand on from a base with these losses: the lowest, as far as they
        tell.
        """
        exponents = sorted(self.known)
        cells = tuple(
            verdict.SeedLosses(
                value=2.0**exponent,
                seeds=tuple(range(len(self.known[exponent]))),
                losses=self.known[exponent],
                num_missing=0,
            )
            for exponent in exponents
        )
        row = verdict.ShapeLosses(
            axis=self.hp,
            scale_name=self.hp,
            scale=1.0,
            shape="base",
            is_base=True,
            parameterization="",
            cells=cells,
        )
        (estimates,) = estimate_all([verdict.LossGrid(rows=(row,))])
        best = best_cell(estimates, 0)
        assert best is not None, "a line where nothing finished hands on nothing"
        return self.point(exponents[best])


@dataclass(frozen=True, kw_only=True)
class _Edge:
    """An end of the line beyond which the optimum may lie."""

    why: str
    new: float  # the exponent to try next
    beyond: float  # octaves from the end of the grid's line to `new`
    best_is_there: bool


def refine(line: Line, settings: RefineSettings) -> Points:
    """Yield the rounds that refine one HP in one arm."""
    hp, until, max_octaves = line.hp, settings.until_octaves, settings.max_octaves
    line = yield from line.measure(line.first, f"the line of {hp}, {len(line.given)} values", whole=True)
    while True:
        found, stuck = bracket_of(line.known), None
        for edge in _edges(line, found, max_octaves):
            if edge.beyond <= max_octaves + 1e-9 and _legal(hp, edge.new):
                line = yield from line.measure((edge.new,), f"{edge.why}: widened to 2^{edge.new:g}")
                break
            stuck = edge if edge.best_is_there else stuck
        else:
            if stuck is not None:
                far = stuck.beyond > max_octaves + 1e-9
                bound = f"{max_octaves:g} octaves beyond the first line" if far else f"no {hp} of 2^{stuck.new:g}"
                text = f"{stuck.why}: a bound, not an optimum; not widened further: {bound}"
                return End(why=text, best=None if found is None else line.handed_on())
            assert found is not None, "a line where nothing finished is stuck at its lower end"
            inside = tuple(_midpoints(line.known, found.at, until / 2))
            if found.octaves <= until + 1e-9 or not inside:
                reached = found.octaves <= until + 1e-9
                more = "" if reached else f"; the step is small enough for {until:g}, but the seeds differ by more"
                return End(why=found.text(hp) + more, best=line.handed_on())
            spelled = " and ".join(f"2^{exponent:g}" for exponent in inside)
            line = yield from line.measure(inside, f"{found.text(hp)}: halved to {spelled}")


def _edges(line: Line, found: Bracket | None, max_octaves: float) -> Iterator[_Edge]:
    """Yield the ends of the line where the best point is, or where the loss is no worse by more than the noise."""
    low_step, high_step = _widening_steps(line.given, max_octaves)
    low, high = min(line.known), max(line.known)
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


def _midpoints(known: Mapping[float, SeedLosses], at: float, least: float) -> Iterator[float]:
    """Yield the middles between the best and its neighbors farther away than `least`, the lower neighbor's first."""
    exponents = sorted(known)
    here = exponents.index(at)
    beside = sorted((exponents[here - 1], exponents[here + 1]), key=lambda exponent: mean(known[exponent]))
    for exponent in beside:
        if abs(exponent - at) > least + 1e-9:
            yield round((exponent + at) / 2, 10)


def _legal(hp: str, exponent: float) -> bool:
    try:
        check_hp_value(hp, at_exponent(exponent))
    except HpxferError:
        return False
    return True


def refine_search(expansion: Expansion, stored: Stored) -> RoundSearch:
    """Return a search that refines every HP in every arm, and tries the base's best values at the other shapes."""
    spec, arms = expansion.spec, arms_of(expansion)
    lines = {arm: dict(_lines(arm)) for arm in arms}
    strategies = [strategy for of in lines.values() for strategy in of.values()]
    bases = {label: arm for arm in arms if arm.is_base for label in arm.labels}
    for arm in arms:
        if not arm.is_base:
            strategies += [_transferred(arm, hp, lines[bases[arm.labels[0]]][hp]) for hp in spec.grid]
    return RoundSearch(expansion, strategies)


def _lines(arm: Arm) -> Iterator[tuple[str, ArmStrategy]]:
    """Yield (HP, strategy). Each HP gets the budget for the grid's values, and an equal share of the rest."""
    spec, seeds = arm.spec, len(arm.spec.seeds)
    first = {hp: len(values.numbers()) for hp, values in spec.grid.items()}
    rest = 0
    if spec.search.budget is not None:
        rest = spec.search.budget // seeds - sum(first.values()) - (0 if arm.is_base else len(first))
    for index, hp in enumerate(spec.grid):
        # Noise may move the best into a gap that is still wide. `_most_points` ends the search all the same.
        most = _most_points(spec, hp)
        if spec.search.budget is not None:
            most = min(most, first[hp] + rest // len(first) + (index < rest % len(first)))

        line = Line(hp=hp, start=base_hps(spec), given=spec.grid[hp].numbers(), known={})

        def start(_: End | None, line: Line = line) -> Points:
            return refine(line, spec.search.settings(RefineSettings))

        yield hp, ArmStrategy(arm=arm, name=f"refine {hp}", start=start, budget=most * seeds, most=most * seeds)


def _transferred(arm: Arm, hp: str, after: ArmStrategy) -> ArmStrategy:
    """Return the strategy that trains one point of an arm: the best of an HP that `after` has found at the base."""

    def start(base: End | None) -> Points:
        assert base is not None, "it starts after the base's search has ended"
        assert base.best is not None, "it does not start if that search found nothing"
        best = f"{hp} {base.best.get(hp):.4g}"
        yield Round(points=(base.best,), why=f"the base's best {best}, for its regret here")
        return End(why="measured", best=None)

    seeds = len(arm.spec.seeds)
    return ArmStrategy(arm=arm, name=f"{hp} from the base", start=start, budget=seeds, most=seeds, after=after)


def _most_points(spec: SweepSpec, hp: str) -> int:
    """Return the most points of the line of one HP: its own, those that widen it, and two per halving of its step."""
    values, settings = spec.grid[hp].numbers(), spec.search.settings(RefineSettings)
    steps = _widening_steps(values, settings.max_octaves)
    wider = sum(math.floor(settings.max_octaves / step + 1e-9) for step in steps)
    widest = max((high - low for low, high in pairwise(map(math.log2, values))), default=1.0)
    return len(values) + wider + 2 * max(0, math.ceil(math.log2(2 * widest / settings.until_octaves) - 1e-9))


def _widening_steps(values: tuple[float, ...], max_octaves: float) -> tuple[float, float]:
    """Return the steps by which a line is widened below and above. A coarse line too is widened once."""
    low, high = (min(step, max_octaves or step) for step in end_steps(values))
    return low, high


def _rounds(spec: SweepSpec) -> Counter[int]:
    first = [len(values.numbers()) for values in spec.grid.values()]
    # All other rounds are single points: widenings, halvings, and the base's best value of each HP at another shape.
    size = sum(_most_points(spec, hp) for hp in spec.grid) + len(spec.grid)
    return Counter(first) + Counter({1: size - sum(first)})


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    sizes = [len(values.numbers()) for values in spec.grid.values()]
    more = len(sizes) if spec.search.where == "all" else 0
    yield from buys(spec, sum(sizes) + more, "the first line of every HP and, beside it, the base's best value")
    yield from on_log_scale(spec)


@dataclass(frozen=True, kw_only=True)
class RefinedPoint:
    """A point of a line, with the interval of the optimum after its round."""

    arm: str
    hp: str
    round: int  # from 1
    log2_value: float
    loss_nats: float | None  # mean over seeds; None where a seed diverged
    log2_low: float | None  # of the interval; None where it is open
    log2_high: float | None
    log2_best: float | None  # None while everything diverged
    ended: bool  # whether the line's search has


def _report(results: Searched) -> SearchReport:
    rows = []
    for strategy, history in replayed(results):
        known: dict[float, SeedLosses] = {}
        for number, ended in enumerate(history.rounds, start=1):
            if (hp := ended.round.about) is None:
                continue  # the base's best value
            new = {exponent_of(hps.get(hp)): of for hps, of in zip(ended.round.points, ended.losses, strict=True)}
            known |= new
            found = bracket_of(known)
            low, high, best = (None, None, None) if found is None else (found.low, found.high, found.at)
            rows += [
                RefinedPoint(
                    arm=strategy.arm.name,
                    hp=hp,
                    round=number,
                    log2_value=exponent,
                    loss_nats=mean(losses) if math.isfinite(mean(losses)) else None,
                    log2_low=low,
                    log2_high=high,
                    log2_best=best,
                    ended=history.end is not None,
                )
                for exponent, losses in sorted(new.items())
            ]
    return SearchReport(form="brackets", rows=tuple(rows))


REFINE = SearchKind(
    name="refine",
    settings=RefineSettings,
    problems=_problems,
    rounds=_rounds,
    make=refine_search,
    tunes="lines",
    report=_report,
)
