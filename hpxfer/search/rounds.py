"""Rounds: searches that decide once all trials of a round have ended, replayed from what is known.

A strategy is a generator: it yields a round of HP points and is sent the losses of each, point by point and seed by
seed. To find out what comes next it is played from its start. So which trials are asked for depends on outcomes only:
not on the order in which they came, nor on which run or sweep they are from. A trial that failed holds its track back
until it is trained; the others go on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.search.arms import Arm
from hpxfer.search.protocol import Outcome, Progress
from hpxfer.trial import Expansion, Trial

SeedLosses = tuple[float, ...]  # of one point, in the order of the sweep's seeds; +inf diverged
Losses = Sequence[SeedLosses]  # of a round's points


@dataclass(frozen=True, kw_only=True)
class Round:
    """Points that are tried together."""

    points: Sequence[HPs]  # hashable; the most important first. May be lazy
    why: str  # what was decided before, and why these points follow
    whole: bool = True  # whether a part of it, all that the budget buys, would be of no use
    about: Any = None  # what the strategy's own tables are made from


@dataclass(frozen=True, kw_only=True)
class End:
    """What a strategy found."""

    why: str
    best: HPs | None  # None if nothing was found


Strategy = Generator[Round, Losses, End]


class OutOfBudget(Exception):
    """Thrown into a strategy whose round the budget does not buy; it may return what it has found."""


@dataclass(frozen=True, kw_only=True)
class Track:
    """One strategy in one arm, with its share of the arm's budget."""

    arm: Arm
    name: str  # what it tunes
    start: Callable[[End | None], Strategy]  # given the end of `after`
    budget: int | None  # trials; None if the strategy ends by itself
    most: int  # trials that it can have, budget or not
    after: Track | None = None  # the track that must have found something first

    @property
    def bound(self) -> int:
        return self.most if self.budget is None else min(self.most, self.budget)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A round that all of its trials have ended of."""

    round: Round
    losses: Losses


@dataclass(frozen=True, kw_only=True)
class Played:
    """How far a track has come."""

    track: Track
    turns: tuple[Turn, ...]
    open: Round | None = None  # what it waits for; cut to what the budget buys
    end: End | None = None
    unpaid: str | None = None  # why the budget ended it

    def lines(self) -> Iterator[str]:
        """Yield a line a decision."""
        where = f"{self.track.arm.name}: {self.track.name}"
        rounds = [turn.round for turn in self.turns] + ([self.open] if self.open else [])
        yield from (f"{where}: {each.why}" for each in rounds)
        yield from (f"{where}: {text}" for text in (self.unpaid, self.end.why if self.end else None) if text)


@dataclass(eq=False)
class _Batch:
    """The trials of a round's points, made as far as someone reads. Kept so that no id is computed twice."""

    make: Callable[[HPs], Iterator[Trial]]
    points: Sequence[HPs]
    made: list[Trial] = field(default_factory=list)
    num_points: int = 0
    num_ended: int = 0  # so many trials from the start are known to have ended

    def trials(self, start: int = 0) -> Iterator[Trial]:
        """Yield the trials from `start` on."""
        for index in count(start):
            if index == len(self.made):
                if self.num_points == len(self.points):
                    return
                self.made.extend(self.make(self.points[self.num_points]))
                self.num_points += 1
            yield self.made[index]


class _Player:
    """A track as far as the outcomes that it was shown let it come. It goes on where it stopped, as they only grow."""

    def __init__(self, track: Track, before: End | None, expansion: Expansion) -> None:
        self.track, self.expansion = track, expansion
        self.room = None if track.budget is None else track.budget // len(expansion.spec.seeds)
        self.strategy = track.start(before)
        self.turns: list[Turn] = []
        self.batch: _Batch | None = None
        self.open: Round | None = None
        self.end: End | None = None
        self.unpaid: str | None = None
        self.ended: set[str] = set()  # ids, of the rounds before the open one
        self._step(lambda: next(self.strategy))

    def played(self) -> Played:
        return Played(track=self.track, turns=tuple(self.turns), open=self.open, end=self.end, unpaid=self.unpaid)

    def advance(self, outcomes: Mapping[str, Outcome]) -> None:
        """Play on until a trial is missing."""
        while self.open is not None and (losses := self._losses(outcomes)) is not None:
            self.turns.append(Turn(round=self.open, losses=losses))
            assert self.batch is not None, "there is an open round"
            self.ended.update(trial.id for trial in self.batch.trials())
            if self.unpaid is None:
                self._step(lambda losses=losses: self.strategy.send(losses))  # type: ignore[misc]
            else:
                self._stop()

    def missing(self) -> Iterator[Trial]:
        """Yield the trials of the open round, without those at its start that have ended."""
        return iter(()) if self.batch is None else self.batch.trials(self.batch.num_ended)

    def done(self, outcomes: Mapping[str, Outcome]) -> set[str]:
        """Return the ids of its trials that have ended, each once, though rounds may share it."""
        asked = () if self.batch is None else self.batch.trials()
        return self.ended | {trial.id for trial in asked if trial.id in outcomes}

    def _step(self, ask: Callable[[], Round]) -> None:
        try:
            coming = ask()
        except StopIteration as stop:
            self.end, self.open, self.batch = stop.value, None, None
            return
        paid = self._paid(coming)
        if paid is None:
            self._stop()
            return
        arm, seeds = self.track.arm, self.expansion.spec.seeds

        def make(hps: HPs) -> Iterator[Trial]:
            return (self.expansion.trial(arm.choice, arm.shape, hps, seed) for seed in seeds)

        self.open, self.batch = paid, _Batch(make=make, points=paid.points)

    def _stop(self) -> None:
        """End a track that the budget ends, with what the strategy makes of it, or else with the best point."""
        self.open = self.batch = None
        try:
            self.strategy.throw(OutOfBudget)
        except StopIteration as stop:
            self.end = stop.value
        except OutOfBudget:
            best = lowest_point([(point, loss) for turn in self.turns for point, loss in _pairs(turn)])
            self.end = End(why="ends with the best point so far" if best else "no point finished", best=best)

    def _paid(self, coming: Round) -> Round | None:
        """Return the part of a round that the budget buys, None if nothing, and note in `unpaid` why not the whole."""
        if self.room is None or sum(len(turn.round.points) for turn in self.turns) + len(coming.points) <= self.room:
            return coming
        had = {point for turn in self.turns for point in turn.round.points}
        new = [point for point in coming.points if point not in had]
        left, seeds = self.room - len(had), len(self.expansion.spec.seeds)
        if len(new) <= left:
            return coming
        self.unpaid = (
            f"the budget of {self.track.budget} trials is spent: what comes next needs {len(new) * seeds}, "
            f"{left * seeds} are left ({coming.why})"
        )
        if coming.whole or left <= 0:
            return None
        kept = {*had, *new[:left]}
        points = tuple(point for point in coming.points if point in kept)
        return Round(points=points, why=coming.why, whole=False, about=coming.about)

    def _losses(self, outcomes: Mapping[str, Outcome]) -> Losses | None:
        """Return the losses of the open round's points, None unless all of its trials have ended."""
        assert self.batch is not None, "there is an open round"
        for trial in self.batch.trials(self.batch.num_ended):
            if trial.id not in outcomes:
                return None
            self.batch.num_ended += 1
        values = [outcomes[trial.id].value for trial in self.batch.trials()]
        seeds = len(self.expansion.spec.seeds)
        return [tuple(values[at : at + seeds]) for at in range(0, len(values), seeds)]


class RoundSearch:
    """Strategies in rounds as a search."""

    def __init__(self, expansion: Expansion, tracks: Sequence[Track]) -> None:
        self.expansion = expansion
        self.tracks = tuple(tracks)
        self._players: dict[int, _Player] = {}  # by index of the track
        self._known: Mapping[str, Outcome] = {}
        self._num_known = 0

    def ask(self, outcomes: Mapping[str, Outcome], running: Collection[str]) -> Sequence[Trial]:
        """Return what the open rounds still need."""
        found: dict[str, Trial] = {}
        for player in self._played(outcomes):
            for trial in player.missing() if player else ():
                if trial.id not in outcomes and trial.id not in running:
                    found[trial.id] = trial
        return tuple(found.values())

    def progress(self) -> Mapping[Shape, Progress]:
        """Return shape -> what its tracks have had, and what those that have not ended may have yet."""
        done: dict[Shape, set[str]] = {}
        left: Counter[Shape] = Counter()
        for track, player in zip(self.tracks, self._played(self._known), strict=True):
            had = set() if player is None else player.done(self._known)
            done.setdefault(track.arm.shape, set()).update(had)
            if player is None or player.end is None:
                left[track.arm.shape] += track.bound - len(had)
        return {shape: Progress(len(ids), left[shape]) for shape, ids in done.items()}

    def why(self) -> str:
        """Return the decisions up to the last `ask`, one line per decision, track by track."""
        return "\n".join(line for played in self.play() for line in played.lines())

    def play(self, outcomes: Mapping[str, Outcome] | None = None) -> tuple[Played, ...]:
        """Return how far each track has come, given outcomes or by default those of the last `ask`.

        A track that waits for another one has no turn and no open round.
        """
        players = list(self._played(self._known if outcomes is None else outcomes))
        return tuple(
            Played(track=track, turns=()) if player is None else player.played()
            for track, player in zip(self.tracks, players, strict=True)
        )

    def _played(self, outcomes: Mapping[str, Outcome]) -> Iterator[_Player | None]:
        """Yield the player of each track, or None if the track waits.

        Players go on from where they were if the outcomes only grew since the last call. Otherwise they start anew.
        """
        same = outcomes is self._known and len(outcomes) >= self._num_known
        if not same and not self._known.items() <= outcomes.items():
            self._players = {}
        self._known, self._num_known = outcomes, len(outcomes)
        at = {id(track): index for index, track in enumerate(self.tracks)}
        for index, track in enumerate(self.tracks):
            if index not in self._players:
                before = None
                if track.after is not None:
                    first = self._players.get(at[id(track.after)])
                    before = None if first is None else first.end
                    if before is None or before.best is None:
                        yield None
                        continue
                self._players[index] = _Player(track, before, self.expansion)
            self._players[index].advance(outcomes)
            yield self._players[index]


def _pairs(turn: Turn) -> Iterator[tuple[HPs, SeedLosses]]:
    yield from zip(turn.round.points, turn.losses, strict=True)


def mean(losses: SeedLosses) -> float:
    """Return the mean over the seeds; +inf if one of them diverged."""
    return math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else math.inf


def lowest_point(pairs: Sequence[tuple[HPs, SeedLosses]]) -> HPs | None:
    """Return the point of the lowest mean loss, the first of equals; None if none finished with every seed."""
    best = min(pairs, key=lambda pair: mean(pair[1]), default=None)
    return None if best is None or mean(best[1]) == math.inf else best[0]
