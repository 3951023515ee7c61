"""Rounds: searches that decide when all trials of a round have ended, replayed from the known outcomes.

A strategy is a generator: it yields a round of HP points and is sent their losses, point by point and seed by seed. To
find out what comes next, the strategy is played from its start. So the trials that it asks for depend on outcomes only:
not on the order in which trials ended, nor on the run or the sweep that trained them. A failed trial holds back the
strategy that needs it until it is trained. Other strategies go on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpxfer.scaling.hps import SCALARS, HPs
from hpxfer.scaling.shape import Shape
from hpxfer.search.protocol import Arm, Outcome, Progress, arms_of
from hpxfer.spec.budget import arm_budget
from hpxfer.trial import Expansion, Trial
from hpxfer.verdict.tied import equal_lowest, most_central

SeedLosses = tuple[float, ...]  # of one point, in the order of the sweep's seeds; +inf diverged
ZERO_OCTAVES = -64.0  # where an HP of 0 lies among equal points: below all others
Losses = Sequence[SeedLosses]  # of a round's points, in their order


@dataclass(frozen=True, kw_only=True)
class Round:
    """Points that are tried together."""

    points: Sequence[HPs]  # hashable, the most important first. May be lazy
    why: str  # what was decided before, and why these points follow
    whole: bool = True  # whether a part of the round, all that the budget buys, would be of no use
    about: Any = None  # what the figures and tables of the strategy read


@dataclass(frozen=True, kw_only=True)
class EndedRound:
    """A round whose trials have all ended."""

    round: Round
    losses: Losses


@dataclass(frozen=True, kw_only=True)
class End:
    """What a strategy found."""

    why: str
    best: HPs | None  # None if nothing was found
    bounds: tuple[str, ...] = ()  # e.g. `init_scale >= 16`: HPs whose best value lies on an edge of what was tried


Strategy = Generator[Round, Losses, End]


class OutOfBudget(Exception):
    """Thrown into a strategy whose round the budget does not buy. The strategy may return what it has found.

    `rounds` are all that have ended, also the part of a round that the budget did buy.
    """

    def __init__(self, rounds: tuple[EndedRound, ...]) -> None:
        super().__init__()
        self.rounds = rounds


@dataclass(frozen=True, kw_only=True)
class ArmStrategy:
    """A strategy for one arm, with its share of the arm's budget."""

    arm: Arm
    name: str  # what it tunes
    start: Callable[[End | None], Strategy]  # takes the end of `after`
    budget: int | None  # trials; None if the strategy ends by itself
    most: int  # trials that it can have, budget or not
    after: ArmStrategy | None = None  # the strategy that must have found something first

    @property
    def bound(self) -> int:
        """The most trials that it may have."""
        return self.most if self.budget is None else min(self.most, self.budget)


@dataclass(frozen=True, kw_only=True)
class ArmHistory:
    """How far a strategy has come."""

    strategy: ArmStrategy
    rounds: tuple[EndedRound, ...]
    open: Round | None = None  # the round that it waits for, cut to what the budget buys
    end: End | None = None
    unpaid: str | None = None  # why the budget ended it

    def lines(self) -> Iterator[str]:
        """Yield one line per decision."""
        where = f"{self.strategy.arm.name}: {self.strategy.name}"
        rounds = [ended.round for ended in self.rounds] + ([self.open] if self.open else [])
        yield from (f"{where}: {each.why}" for each in rounds)
        yield from (f"{where}: {text}" for text in (self.unpaid, self.end.why if self.end else None) if text)


class _Replay:
    """A strategy, played as far as the known outcomes allow. It goes on from there when outcomes are added."""

    def __init__(self, strategy: ArmStrategy, before: End | None, expansion: Expansion) -> None:
        self.strategy, self.expansion = strategy, expansion
        self.seeds = expansion.spec.seeds
        self.max_points = None if strategy.budget is None else strategy.budget // len(self.seeds)
        self.played = strategy.start(before)
        self.rounds: list[EndedRound] = []
        self.open: Round | None = None
        self.trials: list[Trial] = []  # of the open round, point by point and seed by seed
        self.num_ended = 0  # trials at the start of the open round that are known to have ended
        self.end: End | None = None
        self.unpaid: str | None = None
        self.ended: set[str] = set()  # ids of the trials of ended rounds
        self._go_on(lambda: next(self.played))

    def history(self) -> ArmHistory:
        """Return how far it has come."""
        return ArmHistory(
            strategy=self.strategy, rounds=tuple(self.rounds), open=self.open, end=self.end, unpaid=self.unpaid
        )

    def advance(self, outcomes: Mapping[str, Outcome]) -> None:
        """Play on until an outcome is missing."""
        while self.open is not None and (losses := self._losses(outcomes)) is not None:
            self.rounds.append(EndedRound(round=self.open, losses=losses))
            self.ended.update(trial.id for trial in self.trials)
            if self.unpaid is None:
                self._go_on(lambda losses=losses: self.played.send(losses))  # type: ignore[misc]
            else:
                self._stop()

    def done(self, outcomes: Mapping[str, Outcome]) -> set[str]:
        """Return the ids of its trials that have ended."""
        return self.ended | {trial.id for trial in self.trials if trial.id in outcomes}

    def _go_on(self, ask: Callable[[], Round]) -> None:
        """Open the next round, or end."""
        try:
            asked = ask()
        except StopIteration as stop:
            self._open(None)
            self.end = stop.value
            return
        paid = self._paid(asked)
        self._open(paid)
        if paid is None:
            self._stop()

    def _open(self, asked: Round | None) -> None:
        arm, points = self.strategy.arm, () if asked is None else asked.points
        self.open, self.num_ended = asked, 0
        self.trials = [arm.trial(point, seed) for point in points for seed in self.seeds]

    def _stop(self) -> None:
        """End a strategy whose budget is spent, with what it makes of that, or else with the best point."""
        self._open(None)
        try:
            self.played.throw(OutOfBudget(tuple(self.rounds)))
        except StopIteration as stop:
            self.end = stop.value
        except OutOfBudget:
            best = lowest_point(
                [pair for ended in self.rounds for pair in zip(ended.round.points, ended.losses, strict=True)]
            )
            self.end = End(why="ends with the best point so far" if best else "no point finished", best=best)

    def _paid(self, asked: Round) -> Round | None:
        """Return the part of a round that the budget buys, or None, and note in `unpaid` why it is not the whole."""
        num_points = sum(len(ended.round.points) for ended in self.rounds)
        if self.max_points is None or num_points + len(asked.points) <= self.max_points:
            return asked
        known = {point for ended in self.rounds for point in ended.round.points}
        new = [point for point in asked.points if point not in known]
        left = self.max_points - len(known)
        if len(new) <= left:
            return asked
        self.unpaid = (
            f"the budget of {self.strategy.budget} trials is spent: what comes next needs "
            f"{len(new) * len(self.seeds)}, {left * len(self.seeds)} are left ({asked.why})"
        )
        if asked.whole or left <= 0:
            return None
        kept = {*known, *new[:left]}
        return replace(asked, points=tuple(point for point in asked.points if point in kept), whole=False)

    def _losses(self, outcomes: Mapping[str, Outcome]) -> Losses | None:
        """Return the losses of the open round's points, or None if a trial has not ended."""
        for trial in self.trials[self.num_ended :]:
            if trial.id not in outcomes:
                return None
            self.num_ended += 1
        values = [outcomes[trial.id].value for trial in self.trials]
        return [tuple(values[at : at + len(self.seeds)]) for at in range(0, len(values), len(self.seeds))]


class RoundSearch:
    """Strategies that decide in rounds, as a search."""

    def __init__(self, expansion: Expansion, strategies: Sequence[ArmStrategy]) -> None:
        self.expansion = expansion
        self.strategies = tuple(strategies)
        self._replays: dict[int, _Replay] = {}  # by index of the strategy
        self._known: Mapping[str, Outcome] = {}
        self._num_known = 0

    def ask(self, outcomes: Mapping[str, Outcome], running: Collection[str]) -> Sequence[Trial]:
        """Return what the open rounds still need."""
        open_trials = (trial for replay in self._played(outcomes) if replay for trial in replay.trials)
        needed = {trial.id: trial for trial in open_trials if trial.id not in outcomes and trial.id not in running}
        return tuple(needed.values())

    def progress(self) -> Mapping[Shape, Progress]:
        """Return shape -> the trials of its strategies that ended, and the most that may follow."""
        done: dict[Shape, set[str]] = {}
        left: Counter[Shape] = Counter()
        for strategy, replay in zip(self.strategies, self._played(self._known), strict=True):
            ended = set() if replay is None else replay.done(self._known)
            done.setdefault(strategy.arm.shape, set()).update(ended)
            if replay is None or replay.end is None:
                left[strategy.arm.shape] += strategy.bound - len(ended)
        return {shape: Progress(len(ids), left[shape]) for shape, ids in done.items()}

    def why(self) -> str:
        """Return the decisions up to the last `ask`, one line per decision, strategy by strategy."""
        return "\n".join(line for history in self.play() for line in history.lines())

    def play(self, outcomes: Mapping[str, Outcome] | None = None) -> tuple[ArmHistory, ...]:
        """Return how far each strategy has come, given outcomes or by default those of the last `ask`.

        A strategy that waits for another one has no round yet.
        """
        replays = list(self._played(self._known if outcomes is None else outcomes))
        return tuple(
            ArmHistory(strategy=strategy, rounds=()) if replay is None else replay.history()
            for strategy, replay in zip(self.strategies, replays, strict=True)
        )

    def open_rounds(self) -> dict[str, int]:
        """Return trial id -> the number of its round, from 1, of the trials of the rounds that are open."""
        played = self._played(self._known)
        return {trial.id: len(replay.rounds) + 1 for replay in played if replay for trial in replay.trials}

    def _played(self, outcomes: Mapping[str, Outcome]) -> Iterator[_Replay | None]:
        """Yield the replay of each strategy, or None if the strategy waits for another one.

        Replays go on from where they were if outcomes were only added since the last call. Otherwise they start anew.
        """
        same = outcomes is self._known and len(outcomes) >= self._num_known
        if not same and not self._known.items() <= outcomes.items():
            self._replays = {}
        self._known, self._num_known = outcomes, len(outcomes)
        index_of = {id(strategy): index for index, strategy in enumerate(self.strategies)}
        for index, strategy in enumerate(self.strategies):
            if index not in self._replays:
                before = None
                if strategy.after is not None:
                    first = self._replays.get(index_of[id(strategy.after)])
                    before = None if first is None else first.end
                    if before is None or before.best is None:
                        yield None
                        continue
                self._replays[index] = _Replay(strategy, before, self.expansion)
            self._replays[index].advance(outcomes)
            yield self._replays[index]


def search_each_arm(expansion: Expansion, name: str, strategy: Callable[[Arm], Strategy], size: int) -> RoundSearch:
    """Return a search that runs one strategy per arm within the budget. `size` is the most points of an arm."""
    spec = expansion.spec
    budget = None if spec.search.budget is None else arm_budget(spec)
    most = size * len(spec.seeds)

    def start(arm: Arm) -> Callable[[End | None], Strategy]:
        return lambda _: strategy(arm)

    return RoundSearch(
        expansion,
        [ArmStrategy(arm=arm, name=name, start=start(arm), budget=budget, most=most) for arm in arms_of(expansion)],
    )


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
    return tied[most_central([[_octaves(hps.get(name)) for name in names] for hps in tied])]


def _octaves(value: float) -> float:
    return math.log2(value) if value > 0 else ZERO_OCTAVES
