"""Coordinate: constant multipliers, one after the other, as arXiv 2601.20205, Appendix D.1, tuned its base model.

LR and init stay fixed. A change is kept only if it beats what was kept so far by more than the noise: the mean paired
difference over the seeds must exceed `noise` of its standard errors. The next multiplier starts from what was kept.

Four ratios that change nothing: the luckiest exceeds two standard errors in 15% of the rounds with two seeds, in 8%
with three and in 5% with five (180 planted rounds each). Keeping such a change costs little. More seeds or noise avoid
it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from hpxfer.errors import nearest, shown
from hpxfer.scaling.hps import LEAST_LOG2, MOST_LOG2, MULTIPLIERS, HPs
from hpxfer.scaling.roles import ROLES
from hpxfer.search import lr_line
from hpxfer.search.compare import Gain, gain, pooled
from hpxfer.search.kinds import SearchKind, Stored
from hpxfer.search.protocol import buys, multiplier_problems, only_lr, varied_hps
from hpxfer.search.rounds import ArmHistory, End, Losses, OutOfBudget, Round, RoundSearch, Strategy, search_each_arm
from hpxfer.search.values import names_in, scaled
from hpxfer.search.verdict_rules import judged_by
from hpxfer.spec import SweepSpec
from hpxfer.spec.blocks import model_roles
from hpxfer.spec.fields import Count, GridValues, Problem, Section, Seq, Values, WhyNot
from hpxfer.trial import Expansion, base_hps
from hpxfer.verdict.loss_grid import JudgedLoss
from hpxfer.verdict.tied import lowest_of

FIXED = ("ones", "zeros")  # inits that no multiplier changes
LR_MOVES = 2  # how often the line of lr may move when its best value lies on its edge


class CoordinateSettings(Section):
    """The keys of a coordinate search."""

    multipliers: Seq[str] | None = None
    """coordinate and staged-grid: the HPs to tune, by name. Names joined by `+` move together.

    coordinate tunes them in this order. Its default is every multiplier that the base has."""
    # arXiv 2601.20205, Appendix D.1, ended at 1/16 and 1/4.
    values: Values = GridValues(log2=(-4.0, 4.0), step=2.0)
    """coordinate: the ratios to try, relative to the value that was kept last. The default is 1/16 to 16 in steps of 4.
    """
    values_of: dict[str, Values] = Field(default_factory=dict)
    """coordinate: other ratios for one multiplier, or for a kind of multiplier such as `init_mult`."""
    passes: Count = 1
    """coordinate: how often it goes through all multipliers."""
    noise: Annotated[float, Field(ge=0)] = 2.0
    """coordinate: a change is kept if it wins by this many standard errors."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a round tries."""

    entry: str  # as the sweep names it
    number: int  # the pass, from 1
    ratios: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a round decided. `gains` are over what was kept before, in the order of `ratios`."""

    entry: str
    number: int
    before: HPs
    ratios: tuple[float, ...]
    gains: tuple[Gain, ...]
    kept: int | None  # index of the ratio, or None if nothing won by more than the noise

    @property
    def best(self) -> int | None:
        """The index of the largest gain, of equal ones the middle ratio; None if everything diverged."""
        known = [index for index, found in enumerate(self.gains) if not math.isnan(found.mean)]
        if not known:
            return None
        places = [math.log2(self.ratios[index]) for index in known]
        return known[lowest_of([-self.gains[index].mean for index in known], places)]

    def text(self, judged: JudgedLoss) -> str:
        if self.best is None:
            return f"{self.entry}: everything diverged, kept as it was"
        best, ratio = self.gains[self.best], self.ratios[self.best]
        won = f"the best ratio {ratio:g} gains {best.mean:.4g} +- {judged.amount(best.error)}"
        return f"{self.entry}: {won}: {'kept' if self.kept is not None else 'not more than the noise, rejected'}"


def decide(asked: Asked, points: tuple[HPs, ...], losses: Losses, noise: float) -> Decision:
    """Return what a round decides. The first of its points is what was kept before."""
    found = [gain(losses[0], changed) for changed in losses[1:]]
    found = pooled(found, found)
    decision = Decision(
        entry=asked.entry,
        number=asked.number,
        before=points[0],
        ratios=asked.ratios,
        gains=tuple(found),
        kept=None,
    )
    best = decision.best
    if best is None or not found[best].beats(noise):
        return decision
    return replace(decision, kept=best)


def coordinate(spec: SweepSpec) -> Strategy:
    """Return the strategy of one arm."""
    settings, kept, why = spec.search.settings(CoordinateSettings), base_hps(spec), ""
    bounds: tuple[str, ...] = ()
    if "lr" in spec.grid:
        line = yield from lr_line.best_lr(spec, LR_MOVES)
        if line.best is None:
            return line
        kept, why, bounds = line.best, f"{line.why}; ", line.bounds
    try:
        for number in range(1, settings.passes + 1):
            before = kept
            for entry in coordinate_entries(spec):
                asked = Asked(entry=entry, number=number, ratios=ratios_of(spec, entry))
                points = (kept, *(scaled(kept, names_in(entry), ratio) for ratio in asked.ratios))
                spelled = ", ".join(f"{ratio:g}" for ratio in asked.ratios)
                losses = yield Round(points=points, why=f"{why}{entry} times {spelled}", about=asked)
                decision = decide(asked, points, losses, settings.noise)
                why = f"{decision.text(judged_by(spec))}; "
                kept = kept if decision.kept is None else points[1 + decision.kept]
            if kept == before:
                break  # another pass would try the same again
    except OutOfBudget:
        pass
    changed = [f"{name} {value:g}" for name, value in kept.multipliers]
    return End(why=f"{why}multipliers: {', '.join(changed) or 'all 1'}", best=kept, bounds=bounds)


def decisions_of(history: ArmHistory, spec: SweepSpec) -> Iterator[Decision]:
    """Yield the decision of each ended round of an arm."""
    noise = spec.search.settings(CoordinateSettings).noise
    for ended in history.rounds:
        if isinstance(ended.round.about, Asked):
            yield decide(ended.round.about, tuple(ended.round.points), ended.losses, noise)


def coordinate_search(expansion: Expansion, stored: Stored) -> RoundSearch:
    """Return a search that tunes the multipliers in every arm, by default in those of the base."""
    spec = expansion.spec
    return search_each_arm(expansion, "coordinate", lambda arm: coordinate(arm.spec), coordinate_size(spec))


def ratios_of(spec: SweepSpec, entry: str) -> tuple[float, ...]:
    """Return the ratios that coordinate tries for an entry, without 1: by the entry, by its kind, or for all."""
    settings = spec.search.settings(CoordinateSettings)
    by_name = settings.values_of
    kinds = {name.strip().partition(".")[2] for name in entry.split("+")}
    chosen = by_name.get(entry) or (by_name.get(kinds.pop()) if len(kinds) == 1 else None) or settings.values
    return tuple(ratio for ratio in chosen.numbers() if ratio != 1.0)


def coordinate_entries(spec: SweepSpec) -> tuple[str, ...]:
    """Return the multipliers that coordinate tunes, in its order: those given, or every one that the base has.

    By default the LR of a role comes before its init, and the roles come in the order of the network.
    """
    return spec.search.settings(CoordinateSettings).multipliers or _every_multiplier(spec)


def _every_multiplier(spec: SweepSpec) -> tuple[str, ...]:
    # The router's bias is left out, because the balancing rule moves it by a rate of its own.
    roles = [role for role in model_roles(spec.base_shape, spec.model) if role not in ("readout", "router_bias")]
    roles += [] if spec.model.tied_embeddings else ["readout"]
    return tuple(
        f"{role}.{kind}"
        for role in roles
        for kind in ("lr_mult", "init_mult")  # a factor of the forward pass is tuned where it is named
        if kind == "lr_mult" or ROLES[role] not in FIXED
    )


def coordinate_size(spec: SweepSpec) -> int:
    """Return the most points: the LR line or the start, then one round per multiplier and pass."""
    tried = sum(len(ratios_of(spec, entry)) for entry in coordinate_entries(spec))
    passes = spec.search.settings(CoordinateSettings).passes
    return max(1, lr_line.line_size(spec, LR_MOVES)) + passes * tried


def _rounds(spec: SweepSpec) -> Counter[int]:
    tried = Counter(len(ratios_of(spec, entry)) for entry in coordinate_entries(spec))
    number = spec.search.settings(CoordinateSettings).passes
    passes = Counter({points: count * number for points, count in tried.items()})
    # Without a line of lr the start is trained in the first round.
    return passes + (lr_line.line_rounds(spec, LR_MOVES) if "lr" in spec.grid else Counter([1]))


def _hps(spec: SweepSpec) -> tuple[str, ...]:
    return varied_hps(spec, spec.search.settings(CoordinateSettings).multipliers)


def _why_no_line(spec: SweepSpec, hp: str) -> str | None:
    if hp == spec.judged_hp and hp not in spec.grid:
        return f"coordinate held {hp} fixed: there is no line of it to judge"
    return None


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    settings, entries = spec.search.settings(CoordinateSettings), coordinate_entries(spec)
    if len(spec.seeds) < 2:
        yield ("seeds",), "coordinate keeps a change that wins over seeds, so it needs at least 2, got 1"
    yield from only_lr(spec)
    yield from multiplier_problems(spec, settings.multipliers, why_not, dotted=True)
    for name in settings.values_of:
        if name not in entries and name not in MULTIPLIERS:
            yield ("search", "values_of", name), f"must be a multiplier of the search; {nearest(name, entries)}"
    yield from ((("search", "values"), text) for text in _ratio_problems(settings.values))
    for name, values in settings.values_of.items():
        yield from ((("search", "values_of", name), text) for text in _ratio_problems(values))
    if entries:
        first = len(spec.grid["lr"].numbers()) if spec.grid else 1 + len(ratios_of(spec, entries[0]))
        yield from buys(spec, first, "its first round")


def _ratio_problems(values: GridValues) -> Iterator[str]:
    if (values.values is None) == (values.log2 is None) or (values.log2 is not None and len(values.log2) != 2):
        yield "must be a list of ratios, or {log2: [low, high]}"
        return
    numbers = values.numbers()
    if not [ratio for ratio in numbers if ratio != 1.0]:
        yield f"must hold a ratio other than 1, got {shown(list(numbers))}"
    if any(ratio <= 0 for ratio in numbers):
        yield f"a ratio must be above zero, got {min(numbers):g}"
    elif not all(2.0**LEAST_LOG2 <= ratio <= 2.0**MOST_LOG2 for ratio in numbers):
        yield (
            f"a ratio must be from 2^{LEAST_LOG2} to 2^{MOST_LOG2}, as float32 holds it, got {min(numbers):g} to "
            f"{max(numbers):g}"
        )
    if len(set(numbers)) != len(numbers):
        yield f"a ratio stands twice in {shown(list(numbers))}"


COORDINATE = SearchKind(
    name="coordinate",
    settings=CoordinateSettings,
    problems=_problems,
    size=coordinate_size,
    rounds=_rounds,
    make=coordinate_search,
    hps=_hps,
    why_no_line=_why_no_line,
    where="base",
    tunes="points",
    needs_grid=False,
    shows="steps",
)
