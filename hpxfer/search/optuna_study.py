"""Study: a box of HPs searched by a sampler of optuna, batch by batch, in memory.

A point counts as the mean over its seeds. If a seed diverged, the point counts as the worst one that the study has seen
so far. That is a finite number, so every sampler learns to keep away: a failed trial would teach it nothing, and an
infinite loss would flatten a Gaussian process. No loss counts for more than that of a model that guesses.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution

from hpxfer.errors import HpxferError
from hpxfer.search.rounds import Losses, mean
from hpxfer.search.samplers import MEMORYLESS, make_sampler, quiet
from hpxfer.search.values import rounded

Params = Mapping[str, float]  # HP -> value


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the studies of all arms share."""

    box: Mapping[str, FloatDistribution]  # HP -> its range
    sampler: str  # class of optuna.samplers
    arguments: Mapping[str, Any]
    seed: int
    ceiling: float  # the loss of a model that guesses; inf if it is not known


class Study:
    """One arm's study: points are asked for or given, and told, in batches."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.told: list[tuple[Sequence[Params], Losses]] = []  # by batch
        self.points: list[Params] = []  # in the order of the study's trials
        self._values: list[float] = []  # mean losses that were told, without those of diverged points
        self._num_told = 0
        self._storage = optuna.storages.InMemoryStorage()
        with quiet():
            self._study = optuna.create_study(storage=self._storage, direction="minimize", sampler=self._sampler())

    def ask(self, num_points: int) -> Sequence[Params]:
        """Return the next batch: at most so many new points, none if the box has no other."""
        if self.rules.sampler in MEMORYLESS:
            self._study.sampler = self._sampler()
        start = len(self.points)
        for _ in range(num_points):
            params = self._suggest()
            if params is None:
                break
            self.points.append(params)
        return self.points[start:]

    def give(self, batch: Iterable[Params]) -> None:
        """Take a batch of points that come from elsewhere."""
        for params in batch:
            if self.rules.sampler in MEMORYLESS:
                self._study.sampler = optuna.samplers.RandomSampler(seed=0)  # cheap, because its answer is not used
            self._place(self._asked(), params)
            self.points.append(params)

    def tell(self, losses: Losses) -> None:
        """Tell the study the losses of the open batch."""
        means = [mean(of_seeds) for of_seeds in losses]
        self._values += [min(loss, self.rules.ceiling) for loss in means if math.isfinite(loss)]
        worst = max(self._values, default=self.rules.ceiling)
        with quiet():
            for number, loss in enumerate(means, start=self._num_told):
                self._study.tell(number, min(loss, worst))
        self.told.append((self.points[self._num_told :], losses))
        self._num_told = len(self.points)

    def before_batch(self) -> Study:
        """Return the study as it was before it was asked for the open batch."""
        out = Study(self.rules)
        for batch, losses in self.told:
            out.give(batch)
            out.tell(losses)
        return out

    def _suggest(self) -> Params | None:
        """Return a new point. A random one replaces a repeated one, because trials are deterministic."""
        trial = self._asked()
        params = {name: self._in_box(name, value) for name, value in trial.params.items()}
        if params not in self.points:
            self._place(trial, params)
            return params
        rng = np.random.default_rng([self.rules.seed, len(self.points)])
        params = {
            name: self._in_box(name, float(np.exp(rng.uniform(np.log(given.low), np.log(given.high)))))
            for name, given in self.rules.box.items()
        }
        if params in self.points:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return None
        self._place(trial, params)
        return params

    def _asked(self) -> optuna.Trial:
        """Return what the sampler proposes. Raise HpxferError where arguments that it took do not work after all."""
        try:
            with quiet(), warnings.catch_warnings():
                # The user asked for a batch larger than a generation, or for one HP in a step.
                warnings.simplefilter("ignore", UserWarning)
                return self._study.ask(dict(self.rules.box))
        except (ValueError, TypeError, AssertionError, ArithmeticError, RuntimeError, ImportError) as error:
            raise HpxferError(
                f"search.sampler: {self.rules.sampler} with {dict(self.rules.arguments)} cannot propose a point: "
                f"{type(error).__name__}: {error}; change search.sampler_args; what was done is stored"
            ) from error

    def _in_box(self, name: str, value: float) -> float:
        """Return a value of the box in the digits that every machine agrees on."""
        return min(max(rounded(value), self.rules.box[name].low), self.rules.box[name].high)

    def _place(self, trial: optuna.Trial, params: Params) -> None:
        """Put a point where the sampler proposed another."""
        for name, given in self.rules.box.items():
            self._storage.set_trial_param(trial._trial_id, name, given.to_internal_repr(params[name]), given)

    def _sampler(self) -> optuna.samplers.BaseSampler:
        """Return a sampler. Arms share its seed: they start at the same points and differ by what they learn.

        A sampler without memory is made anew for each batch.
        """
        text = f"{self.rules.seed} {len(self.told) if self.rules.sampler in MEMORYLESS else 0}"
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
        return make_sampler(self.rules.sampler, self.rules.arguments, seed)
