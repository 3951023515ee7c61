"""Loggers: what they are shown, and that training does not depend on them."""

from __future__ import annotations

import logging
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_results import made, trials_of
from tensorboardX.proto.event_pb2 import Event as TensorBoardEvent

from hpxfer.errors import HpxferError
from hpxfer.executors import loggers
from hpxfer.executors.loggers import TENSORBOARD, logging_to
from hpxfer.trial.events import Ended, Progress
from hpxfer.trial.stack import Stack

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and protobuf's own


def scalars(file: Path) -> dict[str, dict[int, float]]:
    """Return tag -> step -> value of a TensorBoard file, whose records stand between a length and a checksum."""
    data, at, out = file.read_bytes(), 0, dict[str, dict[int, float]]()
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        event = TensorBoardEvent.FromString(data[at + 12 : at + 12 + size])
        for value in event.summary.value:
            if value.HasField("simple_value"):
                out.setdefault(value.tag, {})[event.step] = value.simple_value
        at += 16 + size
    return out


def test_tensorboard_shows_curves_and_final_losses(tmp_path: Path) -> None:
    trials = trials_of()[:2]
    stack = Stack(trials=tuple(trials))
    with logging_to([TENSORBOARD], tmp_path, sweep="made") as take:
        take(stack, Progress(tokens=1))
        take(stack, Ended(results=tuple(made(trial)[1] for trial in trials)))
    folders = sorted(path.name for path in (tmp_path / TENSORBOARD).iterdir())
    assert folders == sorted(trial.id for trial in trials)
    loss = 1.0 + trials[0].hps.lr + trials[0].seed
    found = scalars(next((tmp_path / TENSORBOARD / trials[0].id).glob("events.*")))
    assert found["ray/tune/train_loss_nats"] == pytest.approx({0: 4.0, 10: loss})  # the last one is not a number
    assert found["ray/tune/grad_rms/router/1"] == {0: 0.5, 10: 0.0}
    assert found["ray/tune/validation_loss_nats"] == pytest.approx({20: loss})


class Recorder(loggers.LoggerCallback):
    """Stands in for wandb's: remembers what it is shown."""

    def __init__(self, project: str) -> None:
        self.project, self.seen = project, list[tuple[str, Any]]()
        recorders.append(self)

    def log_trial_start(self, trial: Any) -> None:
        self.seen.append(("start", trial))

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        self.seen.append(("result", result))

    def log_trial_end(self, trial: Any, failed: bool = False) -> None:
        self.seen.append(("end", failed))

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self.seen.append(("over", None))


recorders: list[Recorder] = []


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """Put the recorder in the place of wandb's callback; no Ray is started for it."""
    recorders.clear()
    monkeypatch.setattr(loggers, "WandbLoggerCallback", Recorder)
    monkeypatch.setattr(loggers, "session", lambda address, cpus: loggers.ExitStack())
    return recorders


def test_a_logger_sees_each_trial_with_its_hps_and_how_it_ended(wandb: list[Recorder], tmp_path: Path) -> None:
    trial = next(trial for trial in trials_of() if trial.parameterization is not None)
    with logging_to(["wandb"], tmp_path, sweep="made") as take:
        take(Stack(trials=(trial,)), Ended(results=(made(trial, "diverged")[1],)))
        take(Stack(trials=(trial,)), Ended(results=(replace(made(trial, "failed")[1], curves=()),)))
    (callback,) = wandb
    assert callback.project == "hpxfer-made"
    assert [kind for kind, _ in callback.seen] == ["start", *["result"] * 3, "end", "start", "result", "end", "over"]
    config = callback.seen[0][1].config
    assert (config["lr"], config["seed"], config["shape/width"]) == (trial.hps.lr, trial.seed, trial.shape.width)
    assert config["parameterization"] == trial.parameterization.name
    last = callback.seen[3][1]
    assert (last["training_iteration"], last["status"], last["diverged_step"]) == (20, "diverged", 7)
    assert [what for kind, what in callback.seen if kind == "end"] == [False, True]


def test_a_logger_that_fails_is_left_out_and_said_so_once(
    wandb: list[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Recorder, trial: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Recorder, "log_trial_start", fail)
    trials = trials_of()[:3]
    with caplog.at_level(logging.WARNING), logging_to(["wandb", TENSORBOARD], tmp_path, sweep="made") as take:
        take(Stack(trials=tuple(trials)), Ended(results=tuple(made(trial)[1] for trial in trials)))
    assert [record.getMessage() for record in caplog.records] == [
        "resources.loggers: wandb failed and is left out from here on: no space left"
    ]
    assert len(list((tmp_path / TENSORBOARD).iterdir())) == 3


def test_a_logger_that_is_not_installed_says_how_to_get_it(
    wandb: list[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(project: str) -> Recorder:
        raise RuntimeError("Wandb was not found - please install with `pip install wandb`")

    monkeypatch.setattr(loggers, "WandbLoggerCallback", missing)
    message = r"resources\.loggers: wandb: .*pip install 'hpxfer\[wandb\]'"
    with pytest.raises(HpxferError, match=message), logging_to(["wandb"], tmp_path, sweep="made"):
        pass
