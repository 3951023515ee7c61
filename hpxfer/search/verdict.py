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

from hpxfer.host import NATS, JudgedLoss
from hpxfer.scaling.shape import Shape
from hpxfer.search.checks import countable, on_log_scale
from hpxfer.search.grid import grid_size
from hpxfer.search.kinds import SearchKind, Stored
from hpxfer.search.protocol import arms_of
from hpxfer.search.rounds import End, History, RoundSearch, Trials
from hpxfer.search.verdict_lines import MIN_SEEDS, Doubt, VerdictLine, doubts, lines_of_grid
from hpxfer.search.verdict_plan import LARGEST_FIRST, Purse, affordable, around_the_best, first_line, more_trials
from hpxfer.search.verdict_rules import judged_by, rules_of
from hpxfer.spec import Problem, Section, SweepSpec, WhyNot, arm_budget
from hpxfer.trial import Expansion, Trial
from hpxfer.verdict import DEFAULT_RULES, Rules

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
    """How far a line has come: its doubt at the last look, once it has trials at all shapes."""

    line: VerdictLine
    opened: bool = False  # whether its first line was asked for
    doubt: Doubt | None = None
    share: float = 0.0  # of the line's FLOPs that were spent by the last look
    first_share: float = 0.0  # by the first one
    decided: bool = False
    ended: str = ""  # why nothing more is trained although the verdict is undecided


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was known before a round, and what the round asked for. The last look asks for nothing."""

    why: tuple[str, ...]  # one line per decision
    trials: tuple[Trial, ...]
    lines: tuple[Looked, ...]  # that have a doubt


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
    _known: dict[VerdictLine, Looked] = field(init=False)

    def play(self, history: History, before: End | None) -> Trials:
        """Yield the trials of each round, and keep what each look found."""
        self.looks, self.purse = [], Purse(budget=self.budget)
        self._known = {line: Looked(line=line) for line in self.lines}
        for number in range(MAX_ROUNDS + 1):
            look = self._look(number)
            self.looks.append(look)
            history.lines += look.why
            if not look.trials:
                history.end = End(why="", best=None)
                return
            self.purse.outcomes = yield look.trials
        raise AssertionError("the last round asks for nothing")

    def _look(self, number: int) -> Look:
        """Look at the lines, and choose the trials of a round."""
        earlier = tuple(self.purse.asked.values())
        for hp in dict.fromkeys(line.hp for line in self.lines):
            self._look_at([line for line in self.lines if line.hp == hp and self._has_all_shapes(line)])
        why: list[str] = []
        wanted: list[Trial] = []
        for line in self.lines if number < MAX_ROUNDS else ():
            if found := list(self._next(line, whole=number == MAX_ROUNDS - 1)):
                wanted += found
                why.append(f"round {number + 1}: {self._why(line, found)}")
        trials = affordable(wanted, earlier, self.purse.outcomes, self.hours)
        if len(trials) < len(wanted):
            why.append(f"round {number + 1}: the {self.hours:g} hours buy {len(trials)} of these {len(wanted)} trials")
            for trial in wanted[len(trials) :]:
                self.purse.give_back(trial)
        if not trials:
            if wanted:  # the report judges with the whole error
                for line, known in self._known.items():
                    decided = known.doubt is not None and known.doubt.is_decided(self.rules.error)
                    ended = known.ended or ("" if decided else f"the {self.hours:g} worker hours are spent")
                    self._set(line, decided=decided, ended=ended)
            why += map(self._end_text, self.lines)
        looked = tuple(known for known in self._known.values() if known.doubt is not None)
        return Look(why=tuple(why), trials=trials, lines=looked)

    def _set(self, line: VerdictLine, **changed: object) -> None:
        self._known[line] = replace(self._known[line], **changed)  # type: ignore[arg-type]

    def _look_at(self, lines: Sequence[VerdictLine]) -> None:
        """Look at the lines of an HP that have trials at all shapes."""
        grids = [line.grid(self.purse.outcomes, self.purse.asked) for line in lines]
        for line, doubt in zip(lines, doubts(grids, self.rules, self.judged) if grids else (), strict=True):
            share = line.spent(self.purse.asked)
            first = self._known[line].first_share or share
            self._set(line, doubt=doubt, share=share, first_share=first, decided=self._is_said(line, doubt, share))

    def _is_said(self, line: VerdictLine, doubt: Doubt, share: float) -> bool:
        """Return whether the verdict is said.

        A verdict once said stays as long as the whole error allows, and where nothing is left to train the whole error
        counts: the report judges with that too. Until then a drift is said when two looks in a row find it, because
        the first looks rest on few cells.
        """
        known = self._known[line]
        if known.decided or not any(map(self.purse.can_buy, line.trials)):
            return doubt.is_decided(self.rules.error)
        before = "undecided" if known.doubt is None else known.doubt.verdict
        return doubt.is_decided(self.rules.error * share) and doubt.verdict in ("transfers", before)

    def _is_wanted(self, line: VerdictLine) -> bool:
        """Return whether a verdict on the line is asked for: on the control, only where another one transfers."""
        others = [known for known in self._known.values() if known.line.hp == line.hp and not known.line.is_control]
        if not line.is_control or not others:
            return True
        return any(
            known.decided and known.doubt is not None and known.doubt.verdict == "transfers"
            for known in others
            if known.line.axis == line.axis
        )

    def _has_all_shapes(self, line: VerdictLine) -> bool:
        return all(self.purse.num_seeds(shape.all_trials) for shape in line.shapes)

    def _next(self, line: VerdictLine, *, whole: bool) -> Iterator[Trial]:
        """Yield the next trials of a line, none if it needs no more."""
        known, purse = self._known[line], self.purse
        if known.decided or known.ended or not self._is_wanted(line):
            return
        if not known.opened:
            self._set(line, opened=True)
            if new := [trial for trial in first_line(line) if purse.buy(trial)]:
                yield from new
                return
        running = {trial.id for trial in line.trials if trial.id in purse.asked and trial.id not in purse.outcomes}
        if known.doubt is None:
            if any(trial.id in running for trial in first_line(line)):
                return  # another line has asked for them in this round
            if purse.lowest(line.base) is None:
                self._set(line, ended="every value diverged at the base")
                return
            new = list(around_the_best(line, purse))
        else:
            # So many more FLOPs than it has that LOOKS looks are enough.
            growth = max(GROWTH, math.exp(-math.log(known.first_share) / (LOOKS - 2)))
            flops = line.flops if whole else (growth - 1) * known.share * line.flops
            new = list(more_trials(line, known.doubt, purse, flops))
        if not new and (known.doubt is not None or not running):
            all_asked = all(trial.id in purse.asked for trial in line.trials)
            spent = f"the budget of {self.budget} trials per arm is spent"
            self._set(line, ended="every value is trained with every seed" if all_asked else spent)
        yield from new

    def _why(self, line: VerdictLine, trials: Sequence[Trial]) -> str:
        """Return what is known of a line and what its next trials are."""
        named = {trial.id: shape.name for shape in line.shapes for trial in shape.all_trials}
        counts, known = Counter(named[trial.id] for trial in trials), self._known[line]
        asks = ", ".join(f"{number} at {name}" for name, number in counts.items())
        if known.doubt is not None:
            text = f"{known.doubt.text}, this look may be wrong by {self.rules.error * known.share:.2g}"
        elif set(counts) == {line.base.name}:
            text = "a line of values at the base"
        else:
            text = "all shapes, around the best value of the base"
        return f"{line.name}: {text}: trains {asks}"

    def _end_text(self, line: VerdictLine) -> str:
        """Return what was found about a line, or what is missing."""
        known = self._known[line]
        if not self._is_wanted(line):
            return f"{line.name}: not needed, as nothing else transfers along {line.axis}"
        if known.doubt is None:
            return f"{line.name}: undecided: {known.ended or 'its shapes were not trained'}"
        spent, finding = f"after {known.share:.0%} of the FLOPs of its grid", known.doubt.finding
        if known.decided:
            return f"{line.name}: {known.doubt.verdict} ({known.doubt.text}), {spent}"
        missing = "; ".join(addition.text for addition in finding.to_add) or "; ".join(finding.reasons)
        return f"{line.name}: undecided {spent}{f', {known.ended}' if known.ended else ''}; to decide: {missing}"


def verdict_search(expansion: Expansion, stored: Stored) -> RoundSearch:
    """Return the search that ends when the verdicts on the lines of the grid are decided."""
    spec, rules, budget = expansion.spec, rules_of(expansion.spec), arm_budget(expansion.spec)
    rounds = VerdictRounds(
        lines=lines_of_grid(expansion, rules.control),
        budget=budget,
        rules=rules,
        hours=spec.search.settings(VerdictSettings).hours,
        judged=judged_by(spec),
        bounds={shape: budget * number for shape, number in Counter(arm.shape for arm in arms_of(expansion)).items()},
    )
    return RoundSearch([rounds])


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    hours, budget = spec.search.settings(VerdictSettings).hours, spec.search.budget
    if (budget is None) == (hours is None):
        got = "neither" if hours is None else "both"
        text = f"must have budget (trials per arm, seeds counted) or hours (of workers), got {got}"
        yield ("search",) if hours is None else ("search", "hours"), text
    if len(spec.seeds) < MIN_SEEDS:
        yield ("seeds",), f"must be at least {MIN_SEEDS} for a verdict, got {len(spec.seeds)}"
    if spec.search.where == "base":
        yield ("search", "at"), "must be all: a verdict compares shapes, got base"
    least = max((len(values.numbers()) for values in spec.grid.values()), default=0) + LARGEST_FIRST
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
