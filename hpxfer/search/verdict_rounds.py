"""Rounds of a verdict search: which lines are looked at, what each look finds, and what the next round trains."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpxfer.search.protocol import Outcome
from hpxfer.search.verdict_lines import Doubt, VerdictLine, doubts
from hpxfer.search.verdict_plan import Purse, affordable, around_the_best, first_line, lowest, more_trials
from hpxfer.trial import Trial
from hpxfer.verdict.loss_grid import NATS, JudgedLoss
from hpxfer.verdict.rules import DEFAULT_RULES, Rules

LOOKS = 10  # at a line, until all its trials are trained
GROWTH = 1.2  # of the FLOPs spent on a line from one look to the next, at least
MAX_ROUNDS = 2 * (2 + LOOKS)  # the looks at the parameterizations, then those at the control


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A line at one look."""

    line: VerdictLine
    doubt: Doubt
    share: float  # of the line's FLOPs that were spent
    decided: bool


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was known before a round, and what the round asked for. The last look asks for nothing."""

    why: tuple[str, ...]  # one line per decision
    trials: tuple[Trial, ...]
    lines: tuple[Looked, ...] = ()


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

    @property
    def transfers(self) -> bool:
        return self.looked is not None and self.looked.decided and self.looked.doubt.verdict == "transfers"

    @property
    def step(self) -> float:
        """The FLOPs of its next round: so many more than it has that LOOKS looks are enough."""
        assert self.looked is not None, "it is asked after a look"
        growth = max(GROWTH, math.exp(-math.log(self.first_share) / (LOOKS - 2)))
        return (growth - 1) * self.looked.share * self.line.flops


@dataclass
class Rounds:
    """The rounds of a verdict search on these lines. They depend on the outcomes of the trials asked for, alone."""

    lines: Sequence[VerdictLine]
    budget: int  # trials per arm
    rules: Rules = DEFAULT_RULES
    hours: float | None = None
    judged: JudgedLoss = NATS
    purse: Purse = field(init=False)
    states: list[_State] = field(init=False)

    def __post_init__(self) -> None:
        self.purse = Purse(budget=self.budget)
        self.states = [_State(line=line) for line in self.lines]

    def play(self) -> Generator[Look, Mapping[str, Outcome], Look]:
        """Yield the rounds, and be sent the outcomes of all trials asked for so far. Return the last look."""
        outcomes: Mapping[str, Outcome] = {}
        for number in range(MAX_ROUNDS + 1):
            earlier = tuple(self.purse.asked.values())
            looked = tuple(self._look(outcomes))
            why: list[str] = []
            wanted: list[Trial] = []
            for state in self.states if number < MAX_ROUNDS else ():
                if found := list(self._next(state, outcomes, whole=number == MAX_ROUNDS - 1)):
                    wanted += found
                    why.append(f"round {number + 1}: {self._why(state, found)}")
            trials = affordable(wanted, earlier, outcomes, self.hours)
            if len(trials) < len(wanted):
                why.append(
                    f"round {number + 1}: the {self.hours:g} hours buy {len(trials)} of these {len(wanted)} trials"
                )
                for trial in wanted[len(trials) :]:
                    self.purse.give_back(trial)
            if not trials:
                if wanted:
                    looked = tuple(self._at_the_end())
                return Look(why=(*why, *map(self._end_text, self.states)), trials=(), lines=looked)
            outcomes = yield Look(why=tuple(why), trials=trials, lines=looked)
        raise AssertionError("the last round returns")

    def _at_the_end(self) -> Iterator[Looked]:
        """Yield the lines as they are known when the hours are spent: the report judges with the whole error."""
        for state in self.states:
            if state.looked is not None:
                state.looked = replace(state.looked, decided=state.looked.doubt.is_decided(self.rules.error))
                yield state.looked
            if not state.decided:
                state.ended = state.ended or f"the {self.hours:g} worker hours are spent"

    def _look(self, outcomes: Mapping[str, Outcome]) -> Iterator[Looked]:
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
        if state.decided or not self._has_more(state.line):
            return doubt.is_decided(self.rules.error)
        before = "undecided" if state.looked is None else state.looked.doubt.verdict
        return doubt.is_decided(self.rules.error * share) and doubt.verdict in ("transfers", before)

    def _has_more(self, line: VerdictLine) -> bool:
        """Return whether a trial of a line is left that the budget buys."""
        return any(self.purse.can_buy(trial) for shape in line.shapes for trial in shape.all_trials)

    def _is_wanted(self, state: _State) -> bool:
        """Return whether a verdict on the line is asked for: on the control, only where another one transfers."""
        of_hp = [other for other in self.states if other.line.hp == state.line.hp and not other.line.is_control]
        if not state.line.is_control or not of_hp:
            return True
        return any(other.transfers for other in of_hp if other.line.axis == state.line.axis)

    def _next(self, state: _State, outcomes: Mapping[str, Outcome], *, whole: bool) -> Iterator[Trial]:
        """Yield the next trials of a line, none if it needs no more."""
        if state.decided or state.ended or not self._is_wanted(state):
            return
        if not state.opened:
            state.opened = True
            new = [trial for trial in first_line(state.line) if self.purse.buy(trial)]
            if new:
                yield from new
                return
        if not self._has_all_shapes(state):
            if any(trial.id not in outcomes for trial in first_line(state.line) if trial.id in self.purse.asked):
                return  # another line has asked for them in this round
            if lowest(state.line.base, outcomes, self.purse) is None:
                state.ended = "every value diverged at the base"
                return
            more = around_the_best(state.line, outcomes, self.purse)
        else:
            assert state.looked is not None, "every line with trials at all shapes was looked at"
            flops = state.line.flops if whole else state.step
            more = more_trials(state.line, state.looked.doubt, outcomes, self.purse, flops)
        new = list(more)
        if not new:
            state.ended = self._spent_text(state)
        yield from new

    def _has_all_shapes(self, state: _State) -> bool:
        return all(self.purse.num_seeds(shape.all_trials) for shape in state.line.shapes)

    def _spent_text(self, state: _State) -> str:
        trials = [trial for shape in state.line.shapes for trial in shape.all_trials]
        if all(trial.id in self.purse.asked for trial in trials):
            return "every value is trained with every seed"
        return f"the budget of {self.budget} trials per arm is spent"

    def _why(self, state: _State, trials: Sequence[Trial]) -> str:
        """Return what is known of a line and what its next trials are."""
        named = {trial.id: shape.name for shape in state.line.shapes for trial in shape.all_trials}
        counts = Counter(named[trial.id] for trial in trials)
        asks = ", ".join(f"{number} at {name}" for name, number in counts.items())
        if set(counts) == {state.line.base.name} and state.looked is None:
            known = "a line of values at the base"
        elif state.looked is None:
            known = "all shapes, around the best value of the base"
        else:
            looked = state.looked
            known = f"{_chance_text(looked.doubt)}, this look may be wrong by {self.rules.error * looked.share:.2g}"
        return f"{state.line.name}: {known}: trains {asks}"

    def _end_text(self, state: _State) -> str:
        """Return what was found about a line, or what is missing."""
        if not self._is_wanted(state):
            return f"{state.line.name}: not needed, as nothing else transfers along {state.line.axis}"
        if state.looked is None:
            return f"{state.line.name}: undecided: {state.ended or 'its shapes were not trained'}"
        looked = state.looked
        spent = f"after {looked.share:.0%} of the FLOPs of its grid"
        if looked.decided:
            return f"{state.line.name}: {looked.doubt.verdict} ({_chance_text(looked.doubt)}), {spent}"
        finding = looked.doubt.finding
        missing = "; ".join(addition.text for addition in finding.to_add) or "; ".join(finding.reasons)
        ended = f", {state.ended}" if state.ended else ""
        return f"{state.line.name}: undecided {spent}{ended}; to decide: {missing}"


def _chance_text(doubt: Doubt) -> str:
    return f"it transfers with a chance of {doubt.chance:.4g}"
