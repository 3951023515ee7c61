"""TensorBoard: what its own reader finds in the files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpxfer.errors import HpxferError
from hpxfer.loggers.kinds import LOGGERS, LoggedTrial, LoggerKind, Place
from hpxfer.testing.loggers import FINISHED, LATER, POINTS, LoggerSuite, trial_named

loader = pytest.importorskip(
    "tensorboard.backend.event_processing.event_file_loader", reason="the extra tensorboard is not installed"
)


def events_of(folder: Path) -> list[Any]:
    from tensorboard.compat.proto.event_pb2 import Event

    (file,) = folder.glob("*tfevents*")
    return [Event.FromString(data) for data in loader.RawEventFileLoader(str(file)).Load()]


def read(folder: Path) -> dict[str, dict[int, float]]:
    out: dict[str, dict[int, float]] = {}
    for event in events_of(folder):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars":
                assert event.step not in out.setdefault(value.tag, {})
                (out[value.tag][event.step],) = value.tensor.double_val
    return out


class TestTensorBoard(LoggerSuite):
    @pytest.fixture
    def kind(self) -> LoggerKind:
        return LOGGERS.get("tensorboard")

    def read(self, place: Place, trial: LoggedTrial) -> Mapping[str, Mapping[int, float]]:
        return read(place.folder / "tensorboard" / trial.name)

    def test_points_can_be_read_while_the_trial_trains(self, kind: LoggerKind, place: Place) -> None:
        opened = kind.make(place).open(trial := trial_named("sp/base/lr=2^-7/seed=0"))
        assert self.read(place, trial) == {}
        opened.log(POINTS)
        assert sorted(self.read(place, trial)["train_loss_nats"]) == [0, 1, 7]
        opened.log(LATER)
        assert sorted(self.read(place, trial)["train_loss_nats"]) == [0, 1, 7, 8]

    def test_the_table_of_hps_and_the_end_are_there(self, kind: LoggerKind, place: Place) -> None:
        from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
        from tensorboard.plugins.hparams.metadata import (
            SESSION_END_INFO_TAG,
            SESSION_START_INFO_TAG,
            parse_session_end_info_plugin_data,
            parse_session_start_info_plugin_data,
        )

        kind.make(place).open(trial := trial_named("sp/base/lr=2^-7/seed=0")).close(FINISHED)
        values = [
            value for event in events_of(place.folder / "tensorboard" / trial.name) for value in event.summary.value
        ]
        content = {value.tag: value.metadata.plugin_data.content for value in values}
        table = parse_session_start_info_plugin_data(content[SESSION_START_INFO_TAG]).hparams
        assert (table["lr"].number_value, table["parameterization"].string_value) == (2.0**-7, "sp")
        assert parse_session_end_info_plugin_data(content[SESSION_END_INFO_TAG]).status == STATUS_SUCCESS

    def test_a_file_that_another_driver_has_removed_does_not_come_back(self, kind: LoggerKind, place: Place) -> None:
        trial = trial_named("sp/base/lr=2^-7/seed=0")
        suspended = kind.make(place).open(trial)
        taken_over = kind.make(place).open(trial)
        taken_over.log(POINTS)
        with pytest.raises(FileNotFoundError):
            suspended.log(POINTS)
        assert sorted(self.read(place, trial)["train_loss_nats"]) == [0, 1, 7]

    def test_a_driver_without_its_lease_writes_nothing(self, kind: LoggerKind, place: Place) -> None:
        @contextmanager
        def lost() -> Any:
            raise HpxferError("the lease is lost")
            yield

        without = Place(sweep="made", results=place.results, folder=place.folder, writing=lost)
        with pytest.raises(HpxferError, match="the lease is lost"):
            kind.make(without).open(trial_named("sp/base/lr=2^-7/seed=0"))
        assert list(place.folder.iterdir()) == []
