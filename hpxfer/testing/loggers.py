"""The conformance suite of loggers. Derive a pytest class from `LoggerSuite`, and define `kind` and `read`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from hpxfer.loggers import Final, LoggedTrial, LoggerKind, Place, StepValues
from hpxfer.trial import Status

# Values that neither float32 nor a few digits hold.
POINTS: StepValues = {
    0: {"train_loss_nats": 1 / 3, "grad_rms/router": 2.0**-60 / 7},
    1: {"train_loss_nats": 0.1 + 0.2},
    7: {"train_loss_nats": 1e22 / 3, "load_deviation/layer0": 0.0},
}
LATER: StepValues = {8: {"train_loss_nats": 1.0000000000000002, "grad_rms/router": 5e-324}}
FINISHED = Final(status="finished", step=9, values={"validation_loss_nats": 2 / 3})
INTERRUPTED = Final(status="interrupted", values={})
ENDS: tuple[Status, ...] = ("diverged", "failed", "stopped")


def trial_named(name: str, number: int = 0) -> LoggedTrial:
    config: dict[str, float | int | str] = {"sweep": "made", "parameterization": "sp", "seed": number}
    return LoggedTrial(id=f"{number:032x}", name=name, config={**config, "lr": 2.0**-7, "router.lr_mult": 4.0})


class LoggerSuite:
    """Derive from it, and define the fixture `kind` (the row under test) and the method `read`."""

    def read(self, place: Place, trial: LoggedTrial) -> Mapping[str, Mapping[int, float]]:
        """Return metric -> step -> value of a trial that was closed, read from where the logger wrote them."""
        raise NotImplementedError

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(sweep="made", results=str(tmp_path), folder=tmp_path, writing=nullcontext)

    def test_points_come_out_as_they_went_in(self, kind: LoggerKind, place: Place) -> None:
        kind.require()
        trial = trial_named("completep[depth_alpha=0.5]/tuned/width=128,depth=4/lr=2^-7/seed=1")
        opened = kind.make(place).open(trial)
        opened.log(POINTS)
        opened.log(LATER)
        opened.close(FINISHED)
        found = self.read(place, trial)
        logged = {**POINTS, **LATER}
        for metric in {metric for values in logged.values() for metric in values}:
            assert found[metric] == {step: values[metric] for step, values in logged.items() if metric in values}
        for metric, value in FINISHED.values.items():
            assert found.get(metric, {}).get(9, value) == value

    def test_a_trial_that_goes_on_in_another_run_takes_the_place_of_its_beginning(
        self, kind: LoggerKind, place: Place
    ) -> None:
        trial = trial_named("sp/base/lr=2^-7/seed=0")
        first = kind.make(place).open(trial)
        first.log({0: {"train_loss_nats": 9.0}, 1: {"train_loss_nats": 8.0, "grad_rms/router": 1.0}})
        first.close(INTERRUPTED)
        second = kind.make(place).open(trial)
        second.log({0: {"train_loss_nats": 9.0}, 2: {"train_loss_nats": 7.0}})
        second.close(FINISHED)
        found = self.read(place, trial)
        assert found["train_loss_nats"] == {0: 9.0, 2: 7.0}
        assert "grad_rms/router" not in found

    def test_trials_that_train_at_once_are_kept_apart(self, kind: LoggerKind, place: Place) -> None:
        logger = kind.make(place)
        trials = [trial_named(f"sp/width=64/lr=2^-7/seed={number}", number) for number in range(3)]
        opened = [logger.open(trial) for trial in trials]
        for step in range(2):
            for number, each in enumerate(opened):
                each.log({step: {"train_loss_nats": number + step / 4}})
        for each, status in zip(opened, ENDS, strict=True):
            each.close(Final(status=status, step=2, values={}))
        for number, trial in enumerate(trials):
            assert self.read(place, trial)["train_loss_nats"] == {0: number, 1: number + 0.25}
