"""The registry of loggers. Each row makes a logger that `resources.loggers` may name.

A logger of your own is one file with its row. This module is light: a row imports its library only where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from hpxfer.host import machine
from hpxfer.loggers.logger import Logger, Place
from hpxfer.registry import Registry

WHERE = "resources.loggers"


@dataclass(frozen=True, kw_only=True)
class LoggerKind:
    """A way to show curves, by the name that `resources.loggers` gives it."""

    name: str
    require: Callable[
        [], object
    ]  # raises HpxferError, before anything trains, if it cannot log: no library, no account
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


library = partial(machine.library, where=WHERE)
