"""Loggers: what one is, what it is told, and the registry. Each row makes a logger that `resources.loggers` may name.

A logger of your own is one file with its row. This module is light: a row imports its library only where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from hpxfer import host
from hpxfer.registry import Registry
from hpxfer.trial import Status

WHERE = "resources.loggers"
# Step -> metric -> value, by ascending steps. A metric is e.g. `train_loss_nats` or `grad_rms/router`.
StepValues = Mapping[int, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Place:
    """The run of a sweep, for which a logger is made."""

    sweep: str  # the name that groups its trials
    results: str  # the absolute path or the URI of its results
    folder: Path  # where a logger may keep files, on this disk
    writing: Callable[[], AbstractContextManager[None]]  # entered for every write below the folder; raises HpxferError


@dataclass(frozen=True, kw_only=True)
class LoggedTrial:
    """A trial as a logger shows it. The name is unique in its sweep, and is a legal relative path."""

    id: str
    name: str  # e.g. `completep-moe/width=128/lr=2^-7/seed=1`
    config: Mapping[str, float | int | str]  # HPs, shape, parameterization, seed, steps


@dataclass(frozen=True, kw_only=True)
class Final:
    """How the training of a trial ended. An interrupted trial has no numbers: it is opened again when it goes on."""

    status: Status | Literal["interrupted"]
    step: int = 0  # at which the numbers are shown
    values: Mapping[str, float]  # e.g. `validation_loss_nats`; those that the trial has


class OpenTrial(Protocol):
    """A trial whose curves are being logged."""

    def log(self, points: StepValues) -> None:
        """Write points, so that they can be seen at once. Steps ascend from call to call; none comes twice."""

    def close(self, final: Final) -> None:
        """Write how the trial ended. Nothing follows."""


class Logger(Protocol):
    """Shows trials. All calls come from one thread, which training does not wait for. Any exception ends the logger."""

    def open(self, trial: LoggedTrial) -> OpenTrial:
        """Begin to log a trial from its step 0, in the place of what an earlier run has logged of it."""


@dataclass(frozen=True, kw_only=True)
class LoggerKind:
    """A way to show curves, by the name that `resources.loggers` gives it."""

    name: str
    require: Callable[[], object]  # raises HpxferError before anything trains if it cannot log: no library, no account
    make: Callable[[Place], Logger]
    most_open: int | None = None  # trials that it has open at once; others wait, and their points with them


LOGGERS: Registry[LoggerKind] = Registry(
    "logger", {name: f"hpxfer.loggers.{name}:{name.upper()}" for name in ("tensorboard", "wandb", "mlflow")}
)


def register_logger(kind: LoggerKind) -> LoggerKind:
    """Add a logger of your own, so that a sweep may name it under `resources.loggers`."""
    return LOGGERS.register(kind)


def logger_kinds(names: Iterable[str]) -> tuple[LoggerKind, ...]:
    """Return the loggers of these names, each once. Raise HpxferError if one of them cannot log."""
    kinds = tuple(LOGGERS.get(name, WHERE) for name in dict.fromkeys(names))
    for kind in kinds:
        kind.require()
    return kinds


library = partial(host.library, where=WHERE)
