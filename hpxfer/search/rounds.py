"""Rounds: the engine of every search, which replays it from the known outcomes.

A strategy yields the trials of a round and goes on when all of them have ended. To find out what comes next, it is
played from its start. So the trials that it asks for depend on outcomes only: not on the order in which trials ended,
nor on the run or the sweep that trained them. A failed trial holds back the strategy that needs it until it is trained.
Other strategies go on.

Most searches are points of an arm: `ArmStrategy` turns a generator of `Round`s into trials, within the arm's budget.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hpxfer.intervals import equal_lowest, most_central
from hpxfer.scaling.hps import SCALARS, HPs
from hpxfer.scaling.shape import Shape
from hpxfer.search.protocol import Arm, Outcome, Progress, arms_of
from hpxfer.search.values import SeedLosses
from hpxfer.spec import arm_budget
from hpxfer.trial import Expansion, Trial

Losses = Sequence[SeedLosses]  # of a round's points, in their order
ZERO_OCTAVES = -64.0  # where an HP of 0 lies among equal points: below all others


@dataclass(frozen=True, kw_only=True)
class Round:
    """Points of an arm that are tried together."""

    points: Sequence[HPs]  # hashable, the most important first. May be lazy
    why: str  # what was decided before, and why these points follow
    whole: bool = True  # whether a part of the round, all that the budget buys, would be of no use
    about: Any = None  # what the report of the search reads


@dataclass(frozen=True, kw_only=True)
class EndedRound:
    """A round whose trials have all ended."""

    round: Round
    losses: Losses

    @property
    def pairs(self) -> list[tuple[HPs, SeedLosses]]:
        """Each point with its losses."""
        return list(zip(self.round.points, self.losses, strict=True))


@dataclass(frozen=True, kw_only=True)
class End:
    """What a strategy found."""

    why: str
    best: HPs | None  # None if nothing was found
    bounds: tuple[str, ...] = ()  # e.g. `init_scale >= 16`: HPs whose best value lies on an edge of what was tried


class OutOfBudget(Exception):
    """Thrown into the points of an arm whose next round the budget does not buy. They may end with what was found."""


Points = Generator[Round, Losses, End]
Trials = Generator[Sequence[Trial], Mapping[str, Outcome], None]


class Strategy(Protocol):
    """What the engine plays. It notes in its history what it decides."""

    @property
    def bounds(self) -> Mapping[Shape, int]:
        """Shape -> the most trials that it may have there."""
        ...

    @property
    def after(self) -> Strategy | None:
        """The strategy that must have found something first."""
        ...

    def play(self, history: History, before: End | None) -> Trials:
        """Yield the trials of each round, and be sent the outcomes of all trials that were asked for so far."""
        ...


@dataclass(kw_only=True, eq=False)
class History:
    """How far a strategy has come. It goes on from there when outcomes are added."""

    strategy: Strategy
    rounds: list[EndedRound] = field(default_factory=list)
    end: End | None = None
    lines: list[str] = field(default_factory=list)  # one per decision
    trials: Sequence[Trial] = ()  # of the open round
    ended: dict[str, Shape] = field(default_factory=dict)  # id -> shape, of the trials of ended rounds
    _known: dict[str, Outcome] = field(default_factory=dict)  # of these trials
    _played: Trials | None = None  # None while it waits for another strategy
    _is_over: bool = False
    _num_ended: int = 0  # trials at the start of the open round that are known to have ended

    def advance(self, outcomes: Mapping[str, Outcome], before: End | None) -> None:
        """Play on until an outcome is missing. `before` is the end of the strategy that it waited for."""
        sent: Any = self._known
        if self._played is None:
            self._played, sent = self.strategy.play(self, before), None  # which starts a generator
        while sent is None or (not self._is_over and self._has_ended(outcomes)):
            self._known.update((trial.id, outcomes[trial.id]) for trial in self.trials)
            self.ended.update((trial.id, trial.shape) for trial in self.trials)
            try:
                self.trials, self._num_ended = self._played.send(sent), 0
            except StopIteration:
                self.trials, self._is_over = (), True
            sent = self._known

    def _has_ended(self, outcomes: Mapping[str, Outcome]) -> bool:
        while self._num_ended < len(self.trials) and self.trials[self._num_ended].id in outcomes:
            self._num_ended += 1
        return self._num_ended == len(self.trials)


class RoundSearch:
    """Strategies that decide in rounds, as a search."""

    def __init__(self, strategies: Sequence[Strategy]) -> None:
        self.strategies = tuple(strategies)
        self._known: Mapping[str, Outcome] = {}
        self._num_known = 0
        self._histories = self._anew()

    def ask(self, outcomes: Mapping[str, Outcome], running: Collection[str]) -> Sequence[Trial]:
        """Return what the open rounds still need."""
        open_trials = (trial for history in self.play(outcomes) for trial in history.trials)
        needed = {trial.id: trial for trial in open_trials if trial.id not in outcomes and trial.id not in running}
        return tuple(needed.values())

    def progress(self) -> Mapping[Shape, Progress]:
        """Return shape -> the trials of its strategies that ended, and the most that may follow."""
        done: dict[Shape, set[str]] = {}
        left: Counter[Shape] = Counter()
        for history in self.play(self._known):
            open_too = {trial.id: trial.shape for trial in history.trials if trial.id in self._known}
            ended = {**history.ended, **open_too}
            for trial_id, shape in ended.items():
                done.setdefault(shape, set()).add(trial_id)
            of_shape = Counter(ended.values())
            for shape, most in history.strategy.bounds.items():
                done.setdefault(shape, set())
                left[shape] += 0 if history.end else max(0, most - of_shape[shape])
        return {shape: Progress(len(ids), left[shape]) for shape, ids in done.items()}

    def why(self) -> str:
        """Return the decisions up to the last `ask`, one line per decision, strategy by strategy."""
        return "\n".join(line for history in self.play(self._known) for line in history.lines)

    def arms(self, outcomes: Mapping[str, Outcome] | None = None) -> tuple[tuple[ArmStrategy, History], ...]:
        """Return how far the strategies of arms have come, given outcomes or by default those of the last `ask`."""
        found = self.play(self._known if outcomes is None else outcomes)
        return tuple((each.strategy, each) for each in found if isinstance(each.strategy, ArmStrategy))

    def open_rounds(self) -> dict[str, int]:
        """Return trial id -> the number of its round, from 1, of the trials of the rounds that are open in each arm."""
        return {trial.id: len(history.rounds) + 1 for _, history in self.arms() for trial in history.trials}

    def play(self, outcomes: Mapping[str, Outcome]) -> Sequence[History]:
        """Return how far each strategy has come, given outcomes. One that waits for another one has no round yet.

        It goes on from where it was if outcomes were only added since the last call. Otherwise it starts anew.
        """
        same = outcomes is self._known and len(outcomes) >= self._num_known
        if not same and not self._known.items() <= outcomes.items():
            self._histories = self._anew()
        self._known, self._num_known = outcomes, len(outcomes)
        for history in self._histories.values():
            after = history.strategy.after
            before = None if after is None else self._histories[id(after)].end
            if after is None or (before is not None and before.best is not None):
                history.advance(outcomes, before)
        return tuple(self._histories.values())

    def _anew(self) -> Mapping[int, History]:
        return {id(strategy): History(strategy=strategy) for strategy in self.strategies}


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmStrategy:
    """Points of one arm, each trained with every seed, within a share of the arm's budget."""

    arm: Arm
    name: str  # what it tunes
    start: Callable[[End | None], Points]  # takes the end of `after`
    budget: int | None  # trials; None if the points end by themselves
    most: int  # trials that it can have, budget or not
    after: ArmStrategy | None = None

    @property
    def title(self) -> str:
        """Its name among all strategies, e.g. `completep-moe at w32-d2-E4A1: refine lr`."""
        return f"{self.arm.name}: {self.name}"

    @property
    def bounds(self) -> Mapping[Shape, int]:
        """The arm's shape -> the most trials that it may have."""
        return {self.arm.shape: self.most if self.budget is None else min(self.most, self.budget)}

    def play(self, history: History, before: End | None) -> Trials:
        """Yield the trials of each round, point by point and seed by seed."""
        seeds, points, unpaid = self.arm.spec.seeds, self.start(before), ""
        try:
            asked = next(points)
            while not unpaid:
                paid, unpaid = self._paid(asked, history.rounds)
                history.lines += [f"{self.title}: {text}" for text in (paid and paid.why, unpaid) if text]
                if paid is not None:
                    trials = [self.arm.trial(point, seed) for point in paid.points for seed in seeds]
                    outcomes = yield trials
                    values = [outcomes[trial.id].value for trial in trials]
                    losses = [tuple(values[at : at + len(seeds)]) for at in range(0, len(values), len(seeds))]
                    history.rounds.append(EndedRound(round=paid, losses=losses))
                if not unpaid:
                    asked = points.send(losses)
            points.throw(OutOfBudget())
        except StopIteration as stop:
            history.end = stop.value
        except OutOfBudget:
            best = lowest_point([pair for ended in history.rounds for pair in ended.pairs])
            history.end = End(why="ends with the best point so far" if best else "no point finished", best=best)
        history.lines += [f"{self.title}: {history.end.why}"] if history.end and history.end.why else []

    def _paid(self, asked: Round, rounds: Sequence[EndedRound]) -> tuple[Round | None, str]:
        """Return the part of a round that the budget buys, or None, and why it is not the whole."""
        num_seeds = len(self.arm.spec.seeds)
        most = math.inf if self.budget is None else self.budget // num_seeds
        if sum(len(ended.round.points) for ended in rounds) + len(asked.points) <= most:
            return asked, ""
        known = {point for ended in rounds for point in ended.round.points}
        new, left = [point for point in asked.points if point not in known], int(most) - len(known)
        if len(new) <= left:
            return asked, ""
        why = (
            f"the budget of {self.budget} trials is spent: what comes next needs {len(new) * num_seeds}, "
            f"{left * num_seeds} are left ({asked.why})"
        )
        if asked.whole or left <= 0:
            return None, why
        kept = {*known, *new[:left]}
        return replace(asked, points=tuple(point for point in asked.points if point in kept), whole=False), why


def search_each_arm(expansion: Expansion, name: str, points: Callable[[Arm], Points]) -> RoundSearch:
    """Return a search that tries the points of each arm within the budget."""
    spec = expansion.spec
    budget = None if spec.search.budget is None else arm_budget(spec)
    most = spec.search_row.size(spec) * len(spec.seeds)

    def strategy(arm: Arm) -> ArmStrategy:
        return ArmStrategy(arm=arm, name=name, start=lambda _: points(arm), budget=budget, most=most)

    return RoundSearch([strategy(arm) for arm in arms_of(expansion)])


def mean(losses: SeedLosses) -> float:
    """Return the mean over the seeds, or +inf if one of them diverged."""
    return math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else math.inf


def lowest_point(pairs: Sequence[tuple[HPs, SeedLosses]]) -> HPs | None:
    """Return the point of the lowest mean loss, of equal ones the middle one; None if none finished with every seed."""
    means = [mean(losses) for _, losses in pairs]
    if min(means, default=math.inf) == math.inf:
        return None
    tied = [pairs[i][0] for i in equal_lowest(means)]
    names = [*SCALARS, *sorted({name for hps in tied for name, _ in hps.multipliers})]
    values = [[hps.get(name) for name in names] for hps in tied]
    return tied[most_central([[math.log2(x) if x > 0 else ZERO_OCTAVES for x in each] for each in values])]
