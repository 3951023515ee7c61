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
from hpxfer.host import JudgedLoss
from hpxfer.intervals import lowest_of
from hpxfer.scaling.hps import LEAST_LOG2, MOST_LOG2, MULTIPLIERS
from hpxfer.scaling.roles import ROLES
from hpxfer.search.checks import buys, multiplier_problems, varied_hps
from hpxfer.search.kinds import SearchKind
from hpxfer.search.line import best_lr, line_rounds
from hpxfer.search.rounds import End, Losses, OutOfBudget, Points, Round, search_each_arm
from hpxfer.search.stored import Searched, replayed
from hpxfer.search.values import Gain, gain, names_in, pooled, scaled
from hpxfer.search.verdict_rules import judged_by
from hpxfer.spec import Count, GridValues, KeyPath, Problem, Section, Seq, SweepSpec, Values, WhyNot, model_roles
from hpxfer.trial import base_hps

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
class Decision:
    """What a round tries and, once it has ended, decides. `gains` are over what was kept before, ratio by ratio."""

    entry: str  # as the sweep names it
    ratios: tuple[float, ...]
    gains: tuple[Gain, ...] = ()
    kept: int | None = None  # index of the ratio, or None if nothing won by more than the noise

    @property
    def best(self) -> int | None:
        """The index of the largest gain, of equal ones the middle ratio; None if everything diverged."""
        known = [index for index, found in enumerate(self.gains) if not math.isnan(found.mean)]
        if not known:
            return None
        places = [math.log2(self.ratios[index]) for index in known]
        return known[lowest_of([-self.gains[index].mean for index in known], places)]

    def decided(self, losses: Losses, noise: float) -> Decision:
        """Return it with what the losses decide. The first of them are those of what was kept before."""
        found = [gain(losses[0], changed) for changed in losses[1:]]
        decision = replace(self, gains=tuple(pooled(found, found)))
        best = decision.best
        return replace(decision, kept=best if best is not None and decision.gains[best].beats(noise) else None)

    def text(self, judged: JudgedLoss) -> str:
        if self.best is None:
            return f"{self.entry}: everything diverged, kept as it was"
        best, ratio = self.gains[self.best], self.ratios[self.best]
        won = f"the best ratio {ratio:g} gains {best.mean:.4g} +- {judged.amount(best.error)}"
        return f"{self.entry}: {won}: {'kept' if self.kept is not None else 'not more than the noise, rejected'}"


def coordinate(spec: SweepSpec) -> Points:
    """Yield the rounds of one arm."""
    settings, line = spec.search.settings(CoordinateSettings), End(why="", best=base_hps(spec))
    if "lr" in spec.grid:
        line = yield from best_lr(spec, LR_MOVES)
    if (kept := line.best) is None:
        return line
    why = line.why and f"{line.why}; "
    try:
        for _ in range(settings.passes):
            before = kept
            for asked in coordinate_entries(spec):
                points = (kept, *(scaled(kept, (asked.entry, ratio)) for ratio in asked.ratios))
                spelled = ", ".join(f"{ratio:g}" for ratio in asked.ratios)
                losses = yield Round(points=points, why=f"{why}{asked.entry} times {spelled}", about=asked)
                decision = asked.decided(losses, settings.noise)
                why = f"{decision.text(judged_by(spec))}; "
                kept = kept if decision.kept is None else points[1 + decision.kept]
            if kept == before:
                break  # another pass would try the same again
    except OutOfBudget:
        pass
    changed = [f"{name} {value:g}" for name, value in kept.multipliers]
    return End(why=f"{why}multipliers: {', '.join(changed) or 'all 1'}", best=kept, bounds=line.bounds)


def coordinate_entries(spec: SweepSpec) -> tuple[Decision, ...]:
    """Return what is tried of each multiplier, in order: of those given, or of every one that the base has.

    By default the LR of a role comes before its init, and the roles come in the order of the network. The ratios
    without 1 are those given for the entry, for its kind, or for all.
    """
    settings, out = spec.search.settings(CoordinateSettings), []
    for entry in settings.multipliers or _every_multiplier(spec):
        kinds = {name.partition(".")[2] for name in names_in(entry)}
        of_kind = settings.values_of.get(kinds.pop()) if len(kinds) == 1 else None
        chosen = settings.values_of.get(entry) or of_kind or settings.values
        out.append(Decision(entry=entry, ratios=tuple(ratio for ratio in chosen.numbers() if ratio != 1.0)))
    return tuple(out)


def _every_multiplier(spec: SweepSpec) -> tuple[str, ...]:
    # The router's bias is left out, because the balancing rule moves it by a rate of its own.
    roles = [role for role in model_roles(spec.base_shape, spec.model) if role not in ("readout", "router_bias")]
    roles += [] if spec.model.tied_embeddings else ["readout"]
    # A factor of the forward pass is tuned where it is named.
    kinds = {role: ("lr_mult",) if ROLES[role] in FIXED else ("lr_mult", "init_mult") for role in roles}
    return tuple(f"{role}.{kind}" for role in roles for kind in kinds[role])


def _rounds(spec: SweepSpec) -> Counter[int]:
    tried = Counter(len(asked.ratios) for asked in coordinate_entries(spec))
    number = spec.search.settings(CoordinateSettings).passes
    # Without a line of lr the start is trained in the first round.
    line = line_rounds(spec, LR_MOVES) or Counter([1])
    return Counter({points: count * number for points, count in tried.items()}) + line


def _why_no_line(spec: SweepSpec, hp: str) -> str | None:
    if hp == spec.judged_hp and hp not in spec.grid:
        return f"coordinate held {hp} fixed: there is no line of it to judge"
    return None


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    settings = spec.search.settings(CoordinateSettings)
    entries = settings.multipliers or _every_multiplier(spec)
    if len(spec.seeds) < 2:
        yield ("seeds",), "coordinate keeps a change that wins over seeds, so it needs at least 2, got 1"
    yield from multiplier_problems(spec, settings.multipliers, why_not, dotted=True)
    given: dict[KeyPath, GridValues] = {("search", "values"): settings.values}
    given |= {("search", "values_of", name): values for name, values in settings.values_of.items()}
    bad = [(at, text) for at, values in given.items() for text in _ratio_problems(values)]
    for name in settings.values_of:
        if name not in entries and name not in MULTIPLIERS:
            bad.append((("search", "values_of", name), f"must be a multiplier of the search; {nearest(name, entries)}"))
    yield from bad
    if entries and not bad:
        first = len(spec.grid["lr"].numbers()) if "lr" in spec.grid else 1 + len(coordinate_entries(spec)[0].ratios)
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
        got = f"got {min(numbers):g} to {max(numbers):g}"
        yield f"a ratio must be from 2^{LEAST_LOG2} to 2^{MOST_LOG2}, as float32 holds it, {got}"
    if len(set(numbers)) != len(numbers):
        yield f"a ratio stands twice in {shown(list(numbers))}"


@dataclass(frozen=True, kw_only=True)
class CoordinateStep:
    """One ratio that was tried. `gain_nats` is over the multipliers kept before; None if either diverged."""

    parameterization: str
    shape: str
    step: int  # from 1
    multiplier: str
    ratio: float
    gain_nats: float | None
    se_nats: float | None
    diverged: bool
    kept: bool
    needed: float  # how many standard errors a change must gain to be kept


def _report(results: Searched) -> Iterator[CoordinateStep]:
    noise = results.spec.search.settings(CoordinateSettings).noise
    for strategy, history in replayed(results):
        of_multipliers = (ended for ended in history.rounds if isinstance(ended.round.about, Decision))
        for number, ended in enumerate(of_multipliers, start=1):
            step = ended.round.about.decided(ended.losses, noise)
            for at, (ratio, change) in enumerate(zip(step.ratios, step.gains, strict=True)):
                yield CoordinateStep(
                    parameterization=strategy.arm.parameterization,
                    shape=strategy.arm.shape.label(),
                    step=number,
                    multiplier=step.entry,
                    ratio=ratio,
                    gain_nats=change.mean if math.isfinite(change.mean) else None,
                    se_nats=change.error if math.isfinite(change.error) else None,
                    diverged=change.mean == -math.inf,
                    kept=at == step.kept,
                    needed=noise,
                )


COORDINATE = SearchKind(
    name="coordinate",
    settings=CoordinateSettings,
    problems=_problems,
    rounds=_rounds,
    make=lambda expansion, stored: search_each_arm(expansion, "coordinate", lambda arm: coordinate(arm.spec)),
    hps=lambda spec: varied_hps(spec, spec.search.settings(CoordinateSettings).multipliers),
    why_no_line=_why_no_line,
    where="base",
    tunes="points",
    needs_grid=False,
    report=_report,
    form="steps",
)
