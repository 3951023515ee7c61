"""Optuna: its samplers, and a study in memory that is asked and told batch by batch.

A point counts as the mean over its seeds. If a seed diverged, the point counts as the worst one that the study has seen
so far. That is a finite number, so every sampler learns to keep away: a failed trial would teach it nothing, and an
infinite loss would flatten a Gaussian process. No loss counts for more than that of a model that guesses.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.search.rounds import Losses, mean
from hpxfer.search.values import rounded
from hpxfer.spec.fields import Problem

# The classes of `optuna.samplers` that search a box of numbers for one objective.
SAMPLERS = (
    *("TPESampler", "GPSampler", "CmaEsSampler", "RandomSampler"),
    *("QMCSampler", "NSGAIISampler", "NSGAIIISampler"),
)
# These samplers look at a study's trials and keep nothing else, so a new one for each batch proposes the same.
MEMORYLESS = ("TPESampler", "GPSampler", "RandomSampler")
# Keeps a batch from holding the same point many times. Not every version of optuna does that by default.
ARGUMENTS: dict[str, dict[str, Any]] = {"TPESampler": {"constant_liar": True}}
# What a YAML file can spell of an argument's types, as optuna's signatures name them.
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "str": (str,),
    "None": (type(None),),
}


def sampler_name(given: str) -> str | None:
    """Return the class that a sweep means by `TPESampler`, `TPE` or `cma-es`, or None if there is none."""
    return {_plain(name): name for name in SAMPLERS}.get(_plain(given))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("sampler")


def legal_arguments(name: str) -> dict[str, str]:
    """Return argument -> its types, as optuna names them, of those that a YAML file can spell. `search.seed` is the
    seed.
    """
    given = inspect.signature(_class_of(name)).parameters.values()
    types = {each.name: str(each.annotation) for each in given if each.name != "seed"}
    return {argument: text for argument, text in types.items() if all(each in _TYPES for each in text.split(" | "))}


def sampler_problems(given: str, arguments: Mapping[str, Any], num_hps: int) -> Iterator[Problem]:
    """Yield why optuna has no such sampler here, cannot search so many HPs with it, or refuses its arguments."""
    name = sampler_name(given)
    if name is None:
        yield ("search", "sampler"), f"must be one of {', '.join(SAMPLERS)}, got {shown(given)}"
        return
    found: list[Problem] = list(_argument_problems(name, arguments))
    if name == "CmaEsSampler" and num_hps < 2:
        found.append((("search", "sampler"), "CmaEsSampler needs at least two HPs in grid, got one"))
    elif name == "CmaEsSampler" and importlib.util.find_spec("cmaes") is None:
        missing = "CmaEsSampler needs the package cmaes, which is not here; `pip install cmaes`"
        found.append((("search", "sampler"), missing))
    yield from found
    if not found:
        try:
            make_sampler(name, arguments, seed=0)
        except HpxferError as error:
            yield ("search", "sampler_args"), str(error)


def _argument_problems(name: str, arguments: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield arguments that the class does not have, and values whose types optuna would find out about only later."""
    legal = legal_arguments(name)
    for argument, value in arguments.items():
        types = [kind for each in legal.get(argument, "").split(" | ") for kind in _TYPES.get(each, ())]
        if argument not in legal:
            why = f"unknown argument of {name}; {nearest(argument, legal)}"
            yield ("search", "sampler_args", argument), "the seed stands in search.seed" if argument == "seed" else why
        elif type(value) not in types:
            names = ["null" if kind is type(None) else kind.__name__ for kind in types]
            yield ("search", "sampler_args", argument), f"must be {' or '.join(names)}, got {shown(value)}"


def make_sampler(name: str, arguments: Mapping[str, Any], seed: int) -> optuna.samplers.BaseSampler:
    """Return a new sampler. Raise HpxferError with optuna's own words where it refuses a value or ignores it."""
    with quiet():
        warnings.simplefilter("error", FutureWarning)
        try:
            made: optuna.samplers.BaseSampler = _class_of(name)(**arguments, seed=seed)
        except (ValueError, TypeError, NotImplementedError, ImportError, FutureWarning) as error:
            raise HpxferError(f"{name} refuses {dict(arguments)}: {error}") from None
    return made


def _class_of(name: str) -> Any:
    return getattr(optuna.samplers, name)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep optuna from logging every trial, and from warning that a feature which was asked for may change."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


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
        if params in self.points:
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
