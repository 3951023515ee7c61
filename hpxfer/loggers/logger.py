"""Logger: the protocol between a run and what shows its curves elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from hpxfer.trial.result import Status

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
