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
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.search.rounds import Losses, mean
from hpxfer.search.values import in_box
from hpxfer.spec import Problem

# The classes of `optuna.samplers` that search a box of numbers for one objective.
SAMPLERS = (
    *("TPESampler", "GPSampler", "CmaEsSampler", "RandomSampler"),
    *("QMCSampler", "NSGAIISampler", "NSGAIIISampler"),
)
# These samplers look at a study's trials and keep nothing else, so a new one for each batch proposes the same.
MEMORYLESS = ("TPESampler", "GPSampler", "RandomSampler")
# Keeps a batch from holding the same point many times. Not every version of optuna does that by default.
ARGUMENTS: dict[str, dict[str, Any]] = {"TPESampler": {"constant_liar": True}}
SPELLED = ("int", "float", "bool", "str", "None")  # types of arguments that a YAML file can spell


def sampler_name(given: str) -> str | None:
    """Return the class that a sweep means by `TPESampler`, `TPE` or `cma-es`, or None if there is none."""

    def plain(name: str) -> str:
        return re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("sampler")

    return {plain(name): name for name in SAMPLERS}.get(plain(given))


def legal_arguments(name: str) -> dict[str, str]:
    """Return argument -> its types, as optuna names them, of those that a YAML file can spell. `search.seed` is the
    seed.
    """
    given = inspect.signature(getattr(optuna.samplers, name)).parameters.values()
    types = {each.name: str(each.annotation) for each in given if each.name != "seed"}
    return {argument: text for argument, text in types.items() if all(each in SPELLED for each in text.split(" | "))}


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
        types = legal.get(argument, "").split(" | ")
        kind = "None" if value is None else type(value).__name__
        if argument == "seed":
            yield ("search", "sampler_args", argument), "the seed stands in search.seed"
        elif argument not in legal:
            why = f"unknown argument of {name}; {nearest(argument, legal)}"
            yield ("search", "sampler_args", argument), why
        elif kind not in types and not (kind == "int" and "float" in types):
            must_be = " or ".join(types).replace("None", "null")
            yield ("search", "sampler_args", argument), f"must be {must_be}, got {shown(value)}"


def make_sampler(name: str, arguments: Mapping[str, Any], seed: int) -> optuna.samplers.BaseSampler:
    """Return a new sampler. Raise HpxferError with optuna's own words where it refuses a value or ignores it."""
    with quiet():
        warnings.simplefilter("error", FutureWarning)
        try:
            made: optuna.samplers.BaseSampler = getattr(optuna.samplers, name)(**arguments, seed=seed)
        except (ValueError, TypeError, NotImplementedError, ImportError, FutureWarning) as error:
            raise HpxferError(f"{name} refuses {dict(arguments)}: {error}") from None
    return made


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


class Study:
    """One arm's study: points are asked for or given, and told, in batches. Arms share its seed.

    They start at the same points and differ by what they learn. `ceiling` is the loss of a model that guesses; inf if
    it is not known.
    """

    def __init__(
        self,
        box: Mapping[str, tuple[float, float]],
        sampler: str,
        arguments: Mapping[str, Any],
        seed: int,
        ceiling: float = math.inf,
    ) -> None:
        self.box, self.sampler, self.arguments, self.seed, self.ceiling = box, sampler, arguments, seed, ceiling
        self.told: list[tuple[Sequence[Params], Losses]] = []  # by batch
        self.points: list[Params] = []  # in the order of the study's trials
        self._ranges = {hp: FloatDistribution(low, high, log=True) for hp, (low, high) in box.items()}
        self._values: list[float] = []  # mean losses that were told, without those of diverged points
        self._num_told = 0
        self._storage = optuna.storages.InMemoryStorage()
        with quiet():
            self._study = optuna.create_study(storage=self._storage, direction="minimize", sampler=self._sampler())

    def ask(self, num_points: int) -> Sequence[Params]:
        """Return the next batch: at most so many new points, none if the box has no other."""
        if self.sampler in MEMORYLESS:
            self._study.sampler = self._sampler()
        start = len(self.points)
        for _ in range(num_points):
            trial = self._asked()
            params = {hp: in_box(value, self.box[hp]) for hp, value in trial.params.items()}
            if params in self.points:  # a random point replaces a repeated one, because trials are deterministic
                rng = np.random.default_rng([self.seed, len(self.points)])
                logs = {hp: rng.uniform(*np.log(ends)) for hp, ends in self.box.items()}
                params = {hp: in_box(float(np.exp(log)), self.box[hp]) for hp, log in logs.items()}
            if params in self.points:
                self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
                break
            self._place(trial, params)
        return self.points[start:]

    def give(self, batch: Iterable[Params]) -> None:
        """Take a batch of points that come from elsewhere."""
        for params in batch:
            if self.sampler in MEMORYLESS:
                self._study.sampler = optuna.samplers.RandomSampler(seed=0)  # cheap, because its answer is not used
            self._place(self._asked(), params)

    def tell(self, losses: Losses) -> None:
        """Tell the study the losses of the open batch."""
        means = [mean(of_seeds) for of_seeds in losses]
        self._values += [min(loss, self.ceiling) for loss in means if math.isfinite(loss)]
        worst = max(self._values, default=self.ceiling)
        with quiet():
            for number, loss in enumerate(means, start=self._num_told):
                self._study.tell(number, min(loss, worst))
        self.told.append((self.points[self._num_told :], losses))
        self._num_told = len(self.points)

    def before_batch(self) -> Study:
        """Return the study as it was before it was asked for the open batch."""
        out = Study(self.box, self.sampler, self.arguments, self.seed, self.ceiling)
        for batch, losses in self.told:
            out.give(batch)
            out.tell(losses)
        return out

    def _asked(self) -> optuna.Trial:
        """Return what the sampler proposes. Raise HpxferError where arguments that it took do not work after all."""
        try:
            with quiet(), warnings.catch_warnings():
                # The user asked for a batch larger than a generation, or for one HP in a step.
                warnings.simplefilter("ignore", UserWarning)
                return self._study.ask(dict(self._ranges))
        except (ValueError, TypeError, AssertionError, ArithmeticError, RuntimeError, ImportError) as error:
            raise HpxferError(
                f"search.sampler: {self.sampler} with {dict(self.arguments)} cannot propose a point: "
                f"{type(error).__name__}: {error}; change search.sampler_args; what was done is stored"
            ) from error

    def _place(self, trial: optuna.Trial, params: Params) -> None:
        """Put a point where the sampler proposed another."""
        for hp, given in self._ranges.items():
            self._storage.set_trial_param(trial._trial_id, hp, given.to_internal_repr(params[hp]), given)
        self.points.append(params)

    def _sampler(self) -> optuna.samplers.BaseSampler:
        """Return a sampler. One without memory is made anew for each batch."""
        text = f"{self.seed} {len(self.told) if self.sampler in MEMORYLESS else 0}"
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
        return make_sampler(self.sampler, self.arguments, seed)
