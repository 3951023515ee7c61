"""Verdict: train the cells of the grid that decide whether an HP transfers, and no more than that takes.

The grid and the seeds of the sweep file are the candidates. The search goes in rounds, and looks at the verdicts after
each one. A look may be wrong with a chance of `error` times the share of the line's FLOPs that were spent, so a look at
few trials must be surer. The chance of a verdict is a probability given the data, and does not depend on how often one
looks. So the looks need no further correction as far as that probability is right. The stricter early looks are for the
case that it is not, and so is the second look that a drift must stand. A line has at most LOOKS looks.

The control is looked at where another parameterization transfers on its axis: only there does it tell something.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field

from hpxfer.scaling.shape import Shape
from hpxfer.search.grid import grid_size
from hpxfer.search.kinds import SearchKind, Stored
from hpxfer.search.protocol import Outcome, arms_of, countable, on_log_scale
from hpxfer.search.rounds import End, History, RoundSearch, Trials
from hpxfer.search.verdict_lines import MIN_SEEDS, Doubt, VerdictLine, doubts, lines_of_grid
from hpxfer.search.verdict_plan import (
    LARGEST_FIRST,
    Purse,
    affordable,
    around_the_best,
    first_line,
    lowest,
    more_trials,
)
from hpxfer.search.verdict_rules import judged_by, rules_of
from hpxfer.spec import SweepSpec
from hpxfer.spec.budget import arm_budget
from hpxfer.spec.fields import Problem, Section, WhyNot
from hpxfer.trial import Expansion, Trial
from hpxfer.verdict.loss_grid import NATS, JudgedLoss
from hpxfer.verdict.rules import DEFAULT_RULES, Rules

LOOKS = 10  # at a line, until all its trials are trained
GROWTH = 1.2  # of the FLOPs spent on a line from one look to the next, at least
MAX_ROUNDS = 2 * (2 + LOOKS)  # the looks at the parameterizations, then those at the control


class VerdictSettings(Section):
    """The keys of a verdict search."""

    hours: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """verdict: the most worker hours, by the measured times of its trials. Give this or `budget`."""
    error: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    """verdict: the largest chance of a wrong verdict, for each axis and parameterization. The report on the sweep
    judges with it too."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A line at one look."""

    line: VerdictLine
    doubt: Doubt
    share: float  # of the line's FLOPs that were spent
    decided: bool

    @property
    def transfers(self) -> bool:
        return self.decided and self.doubt.verdict == "transfers"


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was known before a round, and what the round asked for. The last look asks for nothing."""

    why: tuple[str, ...]  # one line per decision
    trials: tuple[Trial, ...]
    lines: tuple[Looked, ...]


@dataclass
class _State:
    """How far a line has come."""

    line: VerdictLine
    opened: bool = False  # whether its first line was asked for
    looked: Looked | None = None
    first_share: float = 0.0  # of the line's FLOPs, at its first look
    ended: str = ""  # why nothing more is trained although the verdict is undecided

    @property
    def decided(self) -> bool:
        return self.looked is not None and self.looked.decided


@dataclass(kw_only=True, eq=False)
class VerdictRounds:
    """The rounds of a verdict search on these lines. They depend on the outcomes of the trials asked for, alone."""

    lines: Sequence[VerdictLine]
    budget: int  # trials per arm
    rules: Rules = DEFAULT_RULES
    hours: float | None = None
    judged: JudgedLoss = NATS
    bounds: Mapping[Shape, int] = field(default_factory=dict)
    after: None = None
    looks: list[Look] = field(init=False)
    purse: Purse = field(init=False)
    states: list[_State] = field(init=False)

    def play(self, history: History, before: End | None) -> Trials:
        """Yield the trials of each round, and keep what each look found."""
        self.looks, self.purse = [], Purse(budget=self.budget)
        self.states = [_State(line=line) for line in self.lines]
        outcomes: Mapping[str, Outcome] = {}
        for number in range(MAX_ROUNDS + 1):
            look = self._look(number, outcomes)
            self.looks.append(look)
            history.lines += look.why
            if not look.trials:
                history.end = End(why="", best=None)
                return
            outcomes = yield look.trials
        raise AssertionError("the last round asks for nothing")

    def _look(self, number: int, outcomes: Mapping[str, Outcome]) -> Look:
        """Look at the lines, and choose the trials of a round."""
        earlier = tuple(self.purse.asked.values())
        looked = tuple(self._at_lines(outcomes))
        why: list[str] = []
        wanted: list[Trial] = []
        for state in self.states if number < MAX_ROUNDS else ():
            if found := list(self._next(state, outcomes, whole=number == MAX_ROUNDS - 1)):
                wanted += found
                why.append(f"round {number + 1}: {self._why(state, found)}")
        trials = affordable(wanted, earlier, outcomes, self.hours)
        if len(trials) < len(wanted):
            why.append(f"round {number + 1}: the {self.hours:g} hours buy {len(trials)} of these {len(wanted)} trials")
            for trial in wanted[len(trials) :]:
                self.purse.give_back(trial)
        if trials:
            return Look(why=tuple(why), trials=trials, lines=looked)
        if wanted:
            looked = tuple(self._at_the_end())
        return Look(why=(*why, *map(self._end_text, self.states)), trials=(), lines=looked)

    def _at_the_end(self) -> Iterator[Looked]:
        """Yield the lines as they are known when the hours are spent: the report judges with the whole error."""
        for state in self.states:
            if state.looked is not None:
                state.looked = replace(state.looked, decided=state.looked.doubt.is_decided(self.rules.error))
                yield state.looked
            if not state.decided:
                state.ended = state.ended or f"the {self.hours:g} worker hours are spent"

    def _at_lines(self, outcomes: Mapping[str, Outcome]) -> Iterator[Looked]:
        """Look at every line that has trials at all shapes, and yield what is known of it."""
        for hp in dict.fromkeys(line.hp for line in self.lines):
            states = [state for state in self.states if state.line.hp == hp and self._has_all_shapes(state)]
            if not states:
                continue
            grids = [state.line.grid(outcomes, self.purse.asked) for state in states]
            for state, doubt in zip(states, doubts(grids, self.rules, self.judged), strict=True):
                share = state.line.spent(self.purse.asked)
                state.first_share = state.first_share or share
                is_said = self._is_said(state, doubt, share)
                state.looked = Looked(line=state.line, doubt=doubt, share=share, decided=is_said)
                yield state.looked

    def _is_said(self, state: _State, doubt: Doubt, share: float) -> bool:
        """Return whether the verdict is said.

        A verdict once said stays as long as the whole error allows, and where nothing is left to train the whole error
        counts: the report judges with that too. Until then a drift is said when two looks in a row find it, because
        the first looks rest on few cells.
        """
        has_more = any(self.purse.can_buy(trial) for shape in state.line.shapes for trial in shape.all_trials)
        if state.decided or not has_more:
            return doubt.is_decided(self.rules.error)
        before = "undecided" if state.looked is None else state.looked.doubt.verdict
        return doubt.is_decided(self.rules.error * share) and doubt.verdict in ("transfers", before)

    def _is_wanted(self, state: _State) -> bool:
        """Return whether a verdict on the line is asked for: on the control, only where another one transfers."""
        of_hp = [other for other in self.states if other.line.hp == state.line.hp and not other.line.is_control]
        if not state.line.is_control or not of_hp:
            return True
        on_axis = [other.looked for other in of_hp if other.line.axis == state.line.axis]
        return any(looked is not None and looked.transfers for looked in on_axis)

    def _next(self, state: _State, outcomes: Mapping[str, Outcome], *, whole: bool) -> Iterator[Trial]:
        """Yield the next trials of a line, none if it needs no more."""
        if state.decided or state.ended or not self._is_wanted(state):
            return
        line = state.line
        if not state.opened:
            state.opened = True
            new = [trial for trial in first_line(line) if self.purse.buy(trial)]
            if new:
                yield from new
                return
        if not self._has_all_shapes(state):
            if any(trial.id not in outcomes for trial in first_line(line) if trial.id in self.purse.asked):
                return  # another line has asked for them in this round
            if lowest(line.base, outcomes, self.purse) is None:
                state.ended = "every value diverged at the base"
                return
            more = around_the_best(line, outcomes, self.purse)
        else:
            assert state.looked is not None, "every line with trials at all shapes was looked at"
            # So many more FLOPs than it has that LOOKS looks are enough.
            growth = max(GROWTH, math.exp(-math.log(state.first_share) / (LOOKS - 2)))
            flops = line.flops if whole else (growth - 1) * state.looked.share * line.flops
            more = more_trials(line, state.looked.doubt, outcomes, self.purse, flops)
        new = list(more)
        if not new:
            all_asked = all(trial.id in self.purse.asked for shape in line.shapes for trial in shape.all_trials)
            spent = f"the budget of {self.budget} trials per arm is spent"
            state.ended = "every value is trained with every seed" if all_asked else spent
        yield from new

    def _has_all_shapes(self, state: _State) -> bool:
        return all(self.purse.num_seeds(shape.all_trials) for shape in state.line.shapes)

    def _why(self, state: _State, trials: Sequence[Trial]) -> str:
        """Return what is known of a line and what its next trials are."""
        named = {trial.id: shape.name for shape in state.line.shapes for trial in shape.all_trials}
        counts = Counter(named[trial.id] for trial in trials)
        asks = ", ".join(f"{number} at {name}" for name, number in counts.items())
        if (looked := state.looked) is not None:
            known = f"{looked.doubt.text}, this look may be wrong by {self.rules.error * looked.share:.2g}"
        elif set(counts) == {state.line.base.name}:
            known = "a line of values at the base"
        else:
            known = "all shapes, around the best value of the base"
        return f"{state.line.name}: {known}: trains {asks}"

    def _end_text(self, state: _State) -> str:
        """Return what was found about a line, or what is missing."""
        name, looked = state.line.name, state.looked
        if not self._is_wanted(state):
            return f"{name}: not needed, as nothing else transfers along {state.line.axis}"
        if looked is None:
            return f"{name}: undecided: {state.ended or 'its shapes were not trained'}"
        spent = f"after {looked.share:.0%} of the FLOPs of its grid"
        if looked.decided:
            return f"{name}: {looked.doubt.verdict} ({looked.doubt.text}), {spent}"
        finding = looked.doubt.finding
        missing = "; ".join(addition.text for addition in finding.to_add) or "; ".join(finding.reasons)
        ended = f", {state.ended}" if state.ended else ""
        return f"{name}: undecided {spent}{ended}; to decide: {missing}"


def verdict_search(expansion: Expansion, stored: Stored) -> RoundSearch:
    """Return the search that ends when the verdicts on the lines of the grid are decided."""
    spec, rules = expansion.spec, rules_of(expansion.spec)
    arms, budget = Counter(arm.shape for arm in arms_of(expansion)), arm_budget(expansion.spec)
    rounds = VerdictRounds(
        lines=lines_of_grid(expansion, rules.control),
        budget=budget,
        rules=rules,
        hours=spec.search.settings(VerdictSettings).hours,
        judged=judged_by(spec),
        bounds={shape: number * budget for shape, number in arms.items()},
    )
    return RoundSearch(expansion, [rounds])


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    hours = spec.search.settings(VerdictSettings).hours
    if (spec.search.budget is None) == (hours is None):
        got = "neither" if hours is None else "both"
        text = f"must have budget (trials per arm, seeds counted) or hours (of workers), got {got}"
        yield ("search",) if hours is None else ("search", "hours"), text
    if len(spec.seeds) < MIN_SEEDS:
        yield ("seeds",), f"must be at least {MIN_SEEDS} for a verdict, got {len(spec.seeds)}"
    if spec.search.where == "base":
        yield ("search", "at"), "must be all: a verdict compares shapes, got base"
    least = max((len(values.numbers()) for values in spec.grid.values()), default=0) + LARGEST_FIRST
    budget = spec.search.budget
    if budget is not None and budget < min(least, grid_size(spec) * len(spec.seeds)):
        text = f"must buy the first line and what follows it: at least {least} trials per arm, got {budget}"
        yield ("search", "budget"), text
    yield from countable(spec, ("grid",))
    yield from on_log_scale(spec)


def _also_limited(spec: SweepSpec) -> str:
    hours = spec.search.settings(VerdictSettings).hours
    return "" if hours is None else f"at most {hours:g} worker hours in all"


VERDICT = SearchKind(
    name="verdict",
    settings=VerdictSettings,
    problems=_problems,
    size=grid_size,
    # Stacks are most if all rounds but one train a single trial of the arm, and largest if one round trains them all.
    rounds=lambda spec: Counter({1: MAX_ROUNDS - 1}) + Counter({arm_budget(spec): 1}),
    splits_seeds=True,
    error=lambda spec: spec.search.settings(VerdictSettings).error,
    also_limited=_also_limited,
    make=verdict_search,
    tunes="lines",
    replays=False,
)
