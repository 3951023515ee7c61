"""Trainings that are cut off at given steps and continue from their checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from safetensors import safe_open
from safetensors.torch import save_file

from hpxfer.train import checkpoint
from hpxfer.train.checkpoints import Checkpoints, CheckpointSpec, sealed
from hpxfer.train.step import TrainStep
from hpxfer.train.trainer import train
from hpxfer.trial import Trial
from hpxfer.trial.events import Ended, Progress
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack


class Cut(BaseException):
    """Ends a training as the loss of its worker would, within the process of the test."""


def always(folder: Path) -> CheckpointSpec:
    """Return a spec with a checkpoint after every read of the losses, within `often`."""
    spec = Checkpoints(folder).start(0.0)
    assert spec is not None
    return spec


@contextmanager
def often() -> Iterator[None]:
    """Write a checkpoint after every read of the losses, however long writing takes."""
    with mock.patch.object(checkpoint, "WRITE_SHARE", float("inf")):
        yield


def run(
    trials: Sequence[Trial],
    spec: CheckpointSpec | None,
    until: int | None = None,
    *,
    points: bool = False,
    curves: bool = True,
) -> tuple[list[int], list[Progress], tuple[TrialResult, ...]]:
    """Return the steps taken, the progress and the results. There are none if `until` cuts the training off."""
    taken: list[int] = []
    plain = TrainStep.gradients

    def counted(self: TrainStep, step: int) -> Any:
        if step == until:
            raise Cut
        taken.append(step)
        return plain(self, step)

    progress: list[Progress] = []
    with mock.patch.object(TrainStep, "gradients", counted), often():
        try:
            stack = Stack(trials=tuple(trials))
            for event in train(stack, "cpu", checkpoints=spec, points=points, curves=curves):
                if isinstance(event, Ended):
                    return taken, progress, event.results
                assert isinstance(event, Progress)
                progress.append(event)
        except Cut:
            pass
    return taken, progress, ()


def resealed(path: Path, **changes: object) -> None:
    """Write the file again with other facts, as another version of this code would."""
    with safe_open(path, framework="pt") as file:
        held = {name: file.get_tensor(name) for name in file.offset_keys()}
        facts = json.loads(file.metadata()["facts"]) | changes
    save_file(held, path, metadata=sealed(facts))
