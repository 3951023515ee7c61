"""Arm: one optuna study, asked in batches; what it is told follows from the outcomes alone.

A batch is asked when all before it has ended, so which points come next depends on losses and not on the order in
which workers finished. It is replayed from the points that are known: the study lives in memory.

A point counts as the mean over its seeds. If a seed diverged, it counts as the worst point that its study has shown
by then: a finite number, so that every sampler learns to stay away (a failed trial would teach it nothing, and an
infinite one would flatten a Gaussian process). No loss counts for more than that of a model that guesses.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import HPs
from hpxfer.search.arms import Arm
from hpxfer.search.optuna_study import Entry, Recorded
from hpxfer.search.protocol import Outcome
from hpxfer.search.rounds import mean
from hpxfer.search.values import rounded
from hpxfer.spec.samplers import MEMORYLESS, make_sampler, quiet
from hpxfer.trial import Expansion, Trial, base_hps
from hpxfer.trial.identity import canonical


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What all arms share."""

    expansion: Expansion
    sampler: str  # class of optuna.samplers
    arguments: Mapping[str, Any]
    seed: int
    batch: int  # points
    most: int  # points an arm

    @cached_property
    def box(self) -> dict[str, FloatDistribution]:
        """The HPs that are searched, between the ends of their grid."""
        values = {name: one.numbers() for name, one in self.expansion.spec.grid.items()}
        return {name: FloatDistribution(low=one[0], high=one[-1], log=True) for name, one in values.items()}

    def hps(self, params: Mapping[str, float]) -> HPs:
        """Return the point in full, all else at its base value."""
        out = base_hps(self.expansion.spec)
        for name in self.box:
            out = out.with_value(name, params[name])
        return out

    def has(self, params: Mapping[str, float]) -> bool:
        """Return whether a point lies in the box."""
        return params.keys() == self.box.keys() and all(
            one.low <= params[name] <= one.high for name, one in self.box.items()
        )

    @property
    def ceiling(self) -> float:
        """The loss of a model that guesses, in nats."""
        return math.log(self.expansion.data.vocab_size)


@dataclass(eq=False)
class _Point:
    """A point of the study; its place in the list is its number there."""

    batch: int
    params: dict[str, float]
    trials: tuple[Trial, ...]  # one a seed
    told: bool = False


class ArmStudy:
    """One arm's search."""

    def __init__(self, rules: Rules, arm: Arm) -> None:
        self.rules = rules
        self.arm = arm
        self.points: list[_Point] = []
        self._known: Mapping[str, Outcome] = {}
        self._lines: dict[int, str] = {}  # decisions, by batch
        self._values: list[float] = []  # mean losses told, without those of diverged points
        with quiet():
            self._storage = optuna.storages.InMemoryStorage()
            self._study = optuna.create_study(storage=self._storage, direction="minimize", sampler=self._sampler(0))

    @cached_property
    def name(self) -> str:
        """The study's name: the arm, and a hash of all that its trials share beside HPs and seed."""
        expansion, arm = self.rules.expansion, self.arm
        own = expansion.own_parameterization(arm.choice, arm.shape)
        digest = hashlib.blake2b(canonical(expansion.identity(own, arm.shape)).encode(), digest_size=4).hexdigest()
        return f"{'any (base)' if own is None else own.label()}, {arm.shape.label(schedule=True)}, {digest}"

    def trials(self, params: Mapping[str, float]) -> tuple[Trial, ...]:
        """Return the trials of a point, one a seed."""
        expansion, hps = self.rules.expansion, self.rules.hps(params)
        return tuple(expansion.trial(self.arm.choice, self.arm.shape, hps, seed) for seed in expansion.spec.seeds)

    def restore(self, recorded: Iterable[Recorded], stored: Iterable[Mapping[str, float]]) -> None:
        """Take up what was asked before: the points of the study's file, then those that only the store knows."""
        had: set[str] = set()
        last = -1
        for one in recorded:
            last = max(last, self._take(one.params, max(one.batch, last), one.trial_ids, had))
        found = sorted((dict(params) for params in stored), key=lambda params: self.trials(params)[0].id)
        for params in found:
            self._take(params, last + 1, {}, had)

    def _take(self, params: Mapping[str, float], batch: int, ids: Mapping[int, str], had: set[str]) -> int:
        """Add a point that is known, unless it is had already or no longer one of this sweep; return its batch."""
        if not self.rules.has(params):
            return -1
        trials = self.trials(params)
        if trials[0].id in had or any(ids.get(trial.seed, trial.id) != trial.id for trial in trials):
            return -1
        had.update(trial.id for trial in trials)
        self.points.append(_Point(batch=batch, params=dict(params), trials=trials))
        return batch

    def advance(self, outcomes: Mapping[str, Outcome]) -> None:
        """Tell the study what has ended and ask it for more, until something is awaited or the budget is spent."""
        self._known = outcomes
        with quiet(), warnings.catch_warnings():
            # A batch larger than a generation, or one HP in a step, is what was asked for.
            warnings.simplefilter("ignore", UserWarning)
            while True:
                self._replay()
                self._tell()
                if not all(point.told for point in self.points) or len(self.points) >= self.rules.most:
                    return
                if not self._ask():
                    return

    def awaited(self) -> list[Trial]:
        """Return the trials without an outcome that the budget pays for, in the order asked."""
        paid = self.points[: self.rules.most]
        return [trial for point in paid if not point.told for trial in point.trials if trial.id not in self._known]

    def done(self) -> set[str]:
        """Return the ids of its trials that have an outcome."""
        return {trial.id for point in self.points for trial in point.trials if trial.id in self._known}

    def most_left(self) -> int:
        """Return how many trials the budget still pays for at most."""
        to_come = max(0, self.rules.most - len(self.points)) * len(self.rules.expansion.spec.seeds)
        return len(self.awaited()) + to_come

    def entries(self) -> list[Entry]:
        """Return the points as they are to stand in the study's file."""
        return [self._entry(point, self._has_ended(number)) for number, point in enumerate(self.points)]

    def _entry(self, point: _Point, ended: bool) -> Entry:
        values = self._seed_values(point) if ended else {}
        loss = mean(tuple(values.values())) if values else math.inf
        return Entry(
            recorded=Recorded(
                batch=point.batch, params=point.params, trial_ids={trial.seed: trial.id for trial in point.trials}
            ),
            ended=ended,
            loss=loss if math.isfinite(loss) else None,
            no_loss=tuple(seed for seed, value in values.items() if math.isinf(value)),
        )

    def _seed_values(self, point: _Point) -> dict[int, float]:
        return {trial.seed: self._known[trial.id].value for trial in point.trials if trial.id in self._known}

    def _replay(self) -> None:
        """Ask the study for the points that it has not seen, batch by batch, so that it gives just those."""
        while (number := len(self._study.get_trials(deepcopy=False))) < len(self.points):
            point = self.points[number]
            if number and self.points[number - 1].batch < point.batch:
                self._tell()
            if self.rules.sampler in MEMORYLESS:
                self._study.sampler = optuna.samplers.RandomSampler(seed=0)  # cheap, and its answer is not used
            self._place(self._asked(), point.params)

    def _has_ended(self, number: int) -> bool:
        """Return whether all trials of a point have ended, or the budget pays for no more of them."""
        point = self.points[number]
        num = len(self._seed_values(point))
        return num == len(point.trials) or (number >= self.rules.most and num > 0)

    def _tell(self) -> None:
        """Tell the study each batch that has ended as a whole: in which order its trials did makes no difference."""
        asked = len(self._study.get_trials(deepcopy=False))
        batches: dict[int, list[int]] = {}
        for number, point in enumerate(self.points[:asked]):
            if not point.told:
                batches.setdefault(point.batch, []).append(number)
        for numbers in batches.values():
            if not all(map(self._has_ended, numbers)):
                continue
            losses = [mean(tuple(self._seed_values(self.points[number]).values())) for number in numbers]
            self._values += [min(loss, self.rules.ceiling) for loss in losses if math.isfinite(loss)]
            worst = max(self._values, default=self.rules.ceiling)
            for number, loss in zip(numbers, losses, strict=True):
                self._study.tell(number, min(loss, worst))
                self.points[number].told = True

    def _ask(self) -> bool:
        """Ask the study for the next batch; return False if there is no other point."""
        batch = 1 + max((point.batch for point in self.points), default=-1)
        if self.rules.sampler in MEMORYLESS:
            self._study.sampler = self._sampler(batch)
        for _ in range(min(self.rules.batch, self.rules.most - len(self.points))):
            params = self._suggest()
            if params is None:
                return False
            self.points.append(_Point(batch=batch, params=params, trials=self.trials(params)))
        return True

    def lines(self) -> Iterator[str]:
        """Yield a line a batch: how many points, and what was known when they were chosen."""
        for batch in dict.fromkeys(point.batch for point in self.points):
            if batch not in self._lines:
                num = sum(point.batch == batch for point in self.points)
                known = self._best([point for point in self.points if point.batch < batch])
                self._lines[batch] = f"{self.arm.name}: {self.rules.sampler}, batch {batch + 1}: {num} points; {known}"
            yield self._lines[batch]

    def _best(self, points: Sequence[_Point]) -> str:
        ended = [(mean(tuple(self._seed_values(one).values())), n) for n, one in enumerate(points) if one.told]
        loss, number = min(ended, default=(math.inf, 0))
        if math.isinf(loss):
            return f"of {len(ended)} before, none finished" if ended else "the first"
        at = ", ".join(f"{name} {value:.4g}" for name, value in points[number].params.items())
        return f"of {len(ended)} before, the best is {at} with {loss:.4f} nats"

    def _suggest(self) -> dict[str, float] | None:
        """Return a new point; None if the box has no other. A trial is a pure function: asked twice, it says nothing.

        So where a sampler repeats a point, one at random takes its place.
        """
        trial = self._asked()
        params = {name: self._spelled(name, value) for name, value in trial.params.items()}
        if not self._has_point(params):
            self._place(trial, params)
            return params
        rng = np.random.default_rng([self.rules.seed, len(self.points)])
        params = {
            name: self._spelled(name, float(np.exp(rng.uniform(np.log(one.low), np.log(one.high)))))
            for name, one in self.rules.box.items()
        }
        if self._has_point(params):
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return None
        self._place(trial, params)
        return params

    def _asked(self) -> optuna.Trial:
        """Return what the sampler proposes; raise HpxferError where arguments that it took do not work after all."""
        try:
            return self._study.ask(dict(self.rules.box))
        except (ValueError, TypeError, AssertionError, ArithmeticError, RuntimeError, ImportError) as error:
            raise HpxferError(
                f"search.sampler: {self.rules.sampler} with {dict(self.rules.arguments)} cannot propose a point: "
                f"{type(error).__name__}: {error}; change search.sampler_args; what was done is stored"
            ) from error

    def _spelled(self, name: str, value: float) -> float:
        """Return a value of the box in the digits that every machine agrees on."""
        one = self.rules.box[name]
        return min(max(rounded(value), one.low), one.high)

    def _has_point(self, params: Mapping[str, float]) -> bool:
        return any(point.params == params for point in self.points)

    def _place(self, trial: optuna.Trial, params: Mapping[str, float]) -> None:
        """Put a point where the sampler proposed another."""
        for name, one in self.rules.box.items():
            self._storage.set_trial_param(trial._trial_id, name, one.to_internal_repr(params[name]), one)

    def _sampler(self, batch: int) -> optuna.samplers.BaseSampler:
        """Return a sampler; arms share its seed, so that they start at the same points and differ by what they learn.

        One that looks at the study alone is made anew a batch, as it would be if the search were taken up there.
        """
        text = f"{self.rules.seed} {batch if self.rules.sampler in MEMORYLESS else 0}"
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
        return make_sampler(self.rules.sampler, self.rules.arguments, seed)
