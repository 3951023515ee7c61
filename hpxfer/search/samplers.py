"""Samplers: which samplers of optuna a sweep may name, and with which arguments. Everything else is refused.

CMA-ES needs the package cmaes. The Gaussian process runs on torch and scipy. optuna is imported only when it is needed.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.spec.fields import Problem
from hpxfer.spec.yaml_file import KeyPath

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

_INT, _FLOAT, _BOOL, _TEXT = (int,), (float, int), (bool,), (str,)
_FLOAT_OR_NULL, _BOOL_OR_NULL, _INT_OR_NULL, _TEXT_OR_NULL = (
    (*types, type(None)) for types in (_FLOAT, _BOOL, _INT, _TEXT)
)
_GENETIC = {
    "population_size": _INT,
    "mutation_prob": _FLOAT_OR_NULL,
    "crossover_prob": _FLOAT,
    "swapping_prob": _FLOAT,
}
# The samplers of `optuna.samplers` that search a box of numbers for one objective, with the arguments that a YAML file
# can spell. The seed is missing, because `search.seed` gives it.
SAMPLERS: dict[str, dict[str, tuple[type, ...]]] = {
    "TPESampler": {
        "prior_weight": _FLOAT_OR_NULL,
        "consider_magic_clip": _BOOL_OR_NULL,
        "consider_endpoints": _BOOL_OR_NULL,
        "n_startup_trials": _INT,
        "n_ei_candidates": _INT,
        "multivariate": _BOOL_OR_NULL,
        "group": _BOOL,
        "warn_independent_sampling": _BOOL_OR_NULL,
        "constant_liar": _BOOL,
    },
    "GPSampler": {"n_startup_trials": _INT, "deterministic_objective": _BOOL, "warn_independent_sampling": _BOOL},
    "CmaEsSampler": {
        "sigma0": _FLOAT_OR_NULL,
        "n_startup_trials": _INT,
        "warn_independent_sampling": _BOOL,
        "consider_pruned_trials": _BOOL,
        "restart_strategy": _TEXT_OR_NULL,
        "popsize": _INT_OR_NULL,
        "inc_popsize": _INT,
        "use_separable_cma": _BOOL,
        "with_margin": _BOOL,
        "lr_adapt": _BOOL,
    },
    "RandomSampler": {},
    "QMCSampler": {
        "qmc_type": _TEXT,
        "scramble": _BOOL,
        "warn_asynchronous_seeding": _BOOL,
        "warn_independent_sampling": _BOOL,
    },
    "NSGAIISampler": _GENETIC,
    "NSGAIIISampler": {**_GENETIC, "dividing_parameter": _INT},
}
# These samplers look at a study's trials and keep nothing else, so a new one for each batch proposes the same.
MEMORYLESS = ("TPESampler", "GPSampler", "RandomSampler")
_WHY_NOT = {
    "grid": "use search: grid",
    "bruteforce": "it needs a finite space, and a box of HPs is none",
    "partialfixed": "fix an HP in hps: instead of scanning it",
}
_AT: KeyPath = ("search", "sampler")
_ARGS: KeyPath = ("search", "sampler_args")


def sampler_name(given: str) -> str | None:
    """Return the class that a sweep means by `TPESampler`, `TPE` or `cma-es`, or None if there is none."""
    return {_plain(name): name for name in SAMPLERS}.get(_plain(given))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("sampler")


def sampler_problems(given: str, arguments: Mapping[str, Any], num_hps: int) -> Iterator[Problem]:
    """Yield why optuna has no such sampler here, cannot search so many HPs with it, or refuses its arguments."""
    name = sampler_name(given)
    if name is None:
        fix = _WHY_NOT.get(_plain(given), nearest(given, SAMPLERS))
        yield _AT, f"must be one of {', '.join(SAMPLERS)}, got {shown(given)}; {fix}"
        return
    found = list(_argument_problems(name, arguments))
    if name == "CmaEsSampler" and num_hps < 2:
        found.append((_AT, "CmaEsSampler needs at least two HPs in grid, got one; use TPESampler or GPSampler"))
    elif name == "CmaEsSampler" and importlib.util.find_spec("cmaes") is None:
        found.append((_AT, "CmaEsSampler needs the package cmaes, which is not here; `pip install cmaes`"))
    yield from found
    if not found:
        try:
            make_sampler(name, arguments, seed=0)
        except HpxferError as error:
            yield _ARGS, str(error)


def _argument_problems(name: str, arguments: Mapping[str, Any]) -> Iterator[Problem]:
    legal = SAMPLERS[name]
    for argument, value in arguments.items():
        at = (*_ARGS, argument)
        types = legal.get(argument, ())
        if argument == "seed":
            yield at, f"the seed stands in search.seed, got {shown(value)} here; move it"
        elif argument not in legal:
            yield at, f"unknown argument of {name}; {nearest(argument, legal)}"
        elif not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            names = ["null" if kind is type(None) else kind.__name__ for kind in types]
            yield at, f"must be {' or '.join(names)}, got {shown(value)}"


def make_sampler(name: str, arguments: Mapping[str, Any], seed: int) -> BaseSampler:
    """Return a new sampler. Raise HpxferError with optuna's own words where it refuses a value or ignores it."""
    import optuna

    with quiet():
        warnings.simplefilter("error", FutureWarning)
        try:
            made: BaseSampler = getattr(optuna.samplers, name)(**arguments, seed=seed)
        except (ValueError, TypeError, NotImplementedError, ImportError, FutureWarning) as error:
            raise HpxferError(f"{name} refuses {dict(arguments)}: {error}") from None
    return made


@contextmanager
def quiet() -> Iterator[None]:
    """Keep optuna from logging every trial, and from warning that a feature which was asked for may change."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
