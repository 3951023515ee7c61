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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from hpxfer import verdict
from hpxfer.errors import HpxferError
from hpxfer.intervals import lowest_of
from hpxfer.scaling.hps import HPs, check_hp_value
from hpxfer.search.checks import buys, on_log_scale
from hpxfer.search.kinds import SearchKind, Stored
from hpxfer.search.line import Line
from hpxfer.search.protocol import Arm, arms_of
from hpxfer.search.rounds import ArmStrategy, End, Points, Round, RoundSearch, mean
from hpxfer.search.stored import Searched, replayed
from hpxfer.search.values import SeedLosses, at_exponent, end_steps, exponent_of, gain, pooled
from hpxfer.spec import Problem, Section, SweepSpec, WhyNot
from hpxfer.trial import Expansion
from hpxfer.verdict import best_cell, estimate_all

NOISE = 2.0  # standard errors
NUM_NEAR = 4  # points whose standard errors are pooled
TIGHT = 1e-9  # octaves


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
        low, high = ("open" if side is None else f"2^{side:g}" for side in (self.low, self.high))
        width = f"{self.octaves:g} octaves" if math.isfinite(self.octaves) else "no interval"
        diverged = ", where training diverges" if self.high_diverged else ""
        return f"best {hp} 2^{self.at:g}, interval {low} to {high} ({width}){diverged}"


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


def handed_on(line: Line) -> HPs:
    """Return the point that a verdict would hand on from a base with these losses: the lowest, as far as they tell."""
    exponents = sorted(line.known)
    cells = [
        verdict.SeedLosses(value=2.0**x, seeds=tuple(range(len(losses))), losses=losses, num_missing=0)
        for x, losses in ((x, line.known[x]) for x in exponents)
    ]
    names = {"axis": line.hp, "scale_name": line.hp, "shape": "base", "parameterization": ""}
    row = verdict.ShapeLosses(**names, scale=1.0, is_base=True, cells=tuple(cells))  # type: ignore[arg-type]
    (estimates,) = estimate_all([verdict.LossGrid(rows=(row,))])
    best = best_cell(estimates, 0)
    assert best is not None, "a line where nothing finished hands on nothing"
    return line.point(exponents[best])


def refine(line: Line, settings: RefineSettings) -> Points:
    """Yield the rounds that refine one HP in one arm."""
    hp, until, farthest = line.hp, settings.until_octaves, settings.max_octaves
    line = yield from line.measure(line.first, f"the line of {hp}, {len(line.given)} values", whole=True)
    while True:
        found, bound = bracket_of(line.known), ""
        for name, end, new, beyond in _edges(line, found, farthest):
            if found is None:
                why = "everything diverged"
            elif found.at == end:
                why = f"the best {hp} 2^{found.at:g} is the {name}"
            else:
                why = f"the best {hp} 2^{found.at:g} is no better than the {name}, 2^{end:g}, by more than the noise"
            far = beyond > farthest + TIGHT
            if not far and _legal(hp, new):
                line = yield from line.measure((new,), f"{why}: widened to 2^{new:g}")
                break
            if found is None or found.at == end:
                limit = f"{farthest:g} octaves beyond the first line" if far else f"no {hp} of 2^{new:g}"
                bound = f"{why}: a bound, not an optimum; not widened further: {limit}"
        else:
            if bound:
                return End(why=bound, best=None if found is None else handed_on(line))
            assert found is not None, "a line where nothing finished is stuck at its lower end"
            inside = tuple(_midpoints(line.known, found.at, until / 2))
            if found.octaves <= until + TIGHT or not inside:
                reached = found.octaves <= until + TIGHT
                more = "" if reached else f"; the step is small enough for {until:g}, but the seeds differ by more"
                return End(why=found.text(hp) + more, best=handed_on(line))
            spelled = " and ".join(f"2^{exponent:g}" for exponent in inside)
            line = yield from line.measure(inside, f"{found.text(hp)}: halved to {spelled}")


def _edges(line: Line, found: Bracket | None, max_octaves: float) -> Iterator[tuple[str, float, float, float]]:
    """Yield the ends of the line where the best point is, or where the loss is no worse by more than the noise.

    Each has its name, its exponent, the exponent to try beyond it, and how far that lies beyond the grid's line.
    """
    low_step, high_step = _widening_steps(line.given, max_octaves)
    low, high = min(line.known), max(line.known)
    if found is None or found.low is None:
        new = round(low - low_step, 10)
        yield "lowest", low, new, line.first[0] - new
    if found is not None and found.high is None:
        new = round(high + high_step, 10)
        yield "highest", high, new, new - line.first[-1]


def _midpoints(known: Mapping[float, SeedLosses], at: float, least: float) -> Iterator[float]:
    """Yield the middles between the best and its neighbors farther away than `least`, the lower neighbor's first."""
    exponents = sorted(known)
    here = exponents.index(at)
    beside = sorted((exponents[here - 1], exponents[here + 1]), key=lambda exponent: mean(known[exponent]))
    for exponent in beside:
        if abs(exponent - at) > least + TIGHT:
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
    lines = {arm: dict(zip(spec.grid, _lines(arm), strict=True)) for arm in arms}
    strategies = [strategy for of in lines.values() for strategy in of.values()]
    bases = {label: arm for arm in arms if arm.is_base for label in arm.labels}
    for arm in arms:
        if not arm.is_base:
            strategies += [_transferred(arm, hp, lines[bases[arm.labels[0]]][hp]) for hp in spec.grid]
    return RoundSearch(strategies)


def _lines(arm: Arm) -> Iterator[ArmStrategy]:
    """Yield the strategy of each HP, with the budget for the grid's values and an equal share of the rest."""
    spec, seeds = arm.spec, len(arm.spec.seeds)
    settings, lines = spec.search.settings(RefineSettings), [Line.of(spec, hp) for hp in spec.grid]
    rest = 0
    if spec.search.budget is not None:
        first = sum(len(line.given) for line in lines) + (0 if arm.is_base else len(lines))
        rest = spec.search.budget // seeds - first
    for index, line in enumerate(lines):
        # Noise may move the best into a gap that is still wide. `_most_points` ends the search all the same.
        most = _most_points(spec, line.hp)
        if spec.search.budget is not None:
            most = min(most, len(line.given) + rest // len(lines) + (index < rest % len(lines)))

        def start(_: End | None, line: Line = line) -> Points:
            return refine(line, settings)

        yield ArmStrategy(arm=arm, name=f"refine {line.hp}", start=start, budget=most * seeds, most=most * seeds)


def _transferred(arm: Arm, hp: str, after: ArmStrategy) -> ArmStrategy:
    """Return the strategy that trains one point of an arm: the best of an HP that `after` has found at the base."""

    def start(base: End | None) -> Points:
        assert base is not None, "it starts after the base's search has ended"
        assert base.best is not None, "it does not start if that search found nothing"
        yield Round(points=(base.best,), why=f"the base's best {hp} {base.best.get(hp):.4g}, for its regret here")
        return End(why="measured", best=None)

    seeds = len(arm.spec.seeds)
    return ArmStrategy(arm=arm, name=f"{hp} from the base", start=start, budget=seeds, most=seeds, after=after)


def _most_points(spec: SweepSpec, hp: str) -> int:
    """Return the most points of the line of one HP: its own, those that widen it, and two per halving of its step."""
    values, settings = spec.grid[hp].numbers(), spec.search.settings(RefineSettings)
    steps = _widening_steps(values, settings.max_octaves)
    wider = sum(math.floor(settings.max_octaves / step + TIGHT) for step in steps)
    widest = max((high - low for low, high in pairwise(map(math.log2, values))), default=1.0)
    return len(values) + wider + 2 * max(0, math.ceil(math.log2(2 * widest / settings.until_octaves) - TIGHT))


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
    first = sum(len(values.numbers()) for values in spec.grid.values())
    more = len(spec.grid) if spec.search.where == "all" else 0
    yield from buys(spec, first + more, "the first line of every HP and, beside it, the base's best value")
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


def _report(results: Searched) -> Iterator[RefinedPoint]:
    for strategy, history in replayed(results):
        known: dict[float, SeedLosses] = {}
        for number, ended in enumerate(history.rounds, start=1):
            if (hp := ended.round.about) is None:
                continue  # the base's best value
            new = {exponent_of(hps.get(hp)): losses for hps, losses in ended.pairs}
            known |= new
            found = bracket_of(known)
            low, high, best = (None, None, None) if found is None else (found.low, found.high, found.at)
            for exponent, losses in sorted(new.items()):
                yield RefinedPoint(
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


REFINE = SearchKind(
    name="refine",
    settings=RefineSettings,
    problems=_problems,
    rounds=_rounds,
    make=refine_search,
    tunes="lines",
    report=_report,
    form="brackets",
)
