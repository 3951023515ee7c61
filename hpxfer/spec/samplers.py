"""Samplers: which of optuna's a sweep may name, and with which arguments. Everything else is refused with the list.

CMA-ES needs the package cmaes; the Gaussian process runs on torch and scipy. optuna is loaded when it is asked for.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError, nearest
from hpxfer.spec.yaml_file import Path_

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

# Of `optuna.samplers`: those that search a box of numbers for one objective.
NAMES = (
    *("TPESampler", "GPSampler", "CmaEsSampler", "RandomSampler"),
    *("QMCSampler", "NSGAIISampler", "NSGAIIISampler"),
)
# These look at a study's trials and at nothing else: asked anew after a restart they need not repeat what they did.
MEMORYLESS = ("TPESampler", "GPSampler", "RandomSampler")
_WHY_NOT = {
    "grid": "use search: grid",
    "bruteforce": "it needs a finite space, and a box of HPs is none",
    "partialfixed": "fix an HP in hps: instead of scanning it",
}
_SIMPLE = {"int": int, "float": float, "bool": bool, "str": str, "None": type(None)}
_AT: Path_ = ("search", "sampler")
_ARGS: Path_ = ("search", "sampler_args")


def sampler_name(given: str) -> str | None:
    """Return the class that a sweep means by `TPESampler`, `TPE` or `cma-es`; None if there is none."""
    return {_plain(name): name for name in NAMES}.get(_plain(given))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("sampler")


def sampler_arguments(name: str) -> dict[str, tuple[type, ...]]:
    """Return argument -> the types that it may have, of all that a YAML file can spell; the seed is the search's."""
    import optuna

    out = {}
    for argument, one in inspect.signature(getattr(optuna.samplers, name)).parameters.items():
        words = [word.strip() for word in str(one.annotation).split("|")]
        if argument != "seed" and all(word in _SIMPLE for word in words):
            types = [_SIMPLE[word] for word in words]
            out[argument] = tuple([*types, int] if float in types else types)
    return out


def sampler_problems(given: str, arguments: Mapping[str, Any], num_hps: int) -> Iterator[tuple[Path_, str]]:
    """Yield why optuna has no such sampler here, cannot search so many HPs with it, or refuses its arguments."""
    name = sampler_name(given)
    if name is None:
        fix = _WHY_NOT.get(_plain(given), nearest(given, NAMES))
        yield _AT, f"must be one of {', '.join(NAMES)}, got {given!r}; {fix}"
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


def _argument_problems(name: str, arguments: Mapping[str, Any]) -> Iterator[tuple[Path_, str]]:
    legal = sampler_arguments(name)
    for argument, value in arguments.items():
        at = (*_ARGS, argument)
        types = legal.get(argument, ())
        if argument == "seed":
            yield at, f"the seed stands in search.seed, got {value!r} here; move it"
        elif argument not in legal:
            yield at, f"unknown argument of {name}; {nearest(argument, legal)}"
        elif not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            names = ["null" if one is type(None) else one.__name__ for one in dict.fromkeys(types)]
            yield at, f"must be {' or '.join(names)}, got {value!r}"


def make_sampler(name: str, arguments: Mapping[str, Any], seed: int) -> BaseSampler:
    """Return a fresh sampler; raise HpxferError with optuna's own words where it refuses a value or ignores it."""
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
