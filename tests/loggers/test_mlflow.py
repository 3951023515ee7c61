"""MLflow with a database on this disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Patch

from hpxfer.errors import HpxferError
from hpxfer.loggers.kinds import LOGGERS, LoggedTrial, LoggerKind, Place
from hpxfer.loggers.mlflow import MOST_METRICS, MOST_PARAMS
from hpxfer.testing.loggers import FINISHED, INTERRUPTED, POINTS, LoggerSuite, trial_named

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
# What MLflow's own tables do to SQLAlchemy and to their connections.
pytestmark = [
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def local(monkeypatch: Patch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def client_of(place: Place) -> Any:
    return mlflow.MlflowClient(tracking_uri=f"sqlite:///{place.folder}/mlflow/mlflow.db")


def runs_of(client: Any, name: str, view: int = 1) -> list[Any]:
    experiment = client.get_experiment_by_name("made")
    runs = client.search_runs([experiment.experiment_id], run_view_type=view)
    return [run for run in runs if run.info.run_name == name]


class TestMLflow(LoggerSuite):
    @pytest.fixture
    def kind(self) -> LoggerKind:
        return LOGGERS.get("mlflow")

    def read(self, place: Place, trial: LoggedTrial) -> Mapping[str, Mapping[int, float]]:
        client = client_of(place)
        (run,) = runs_of(client, trial.name)
        out = {}
        for metric in run.data.metrics:
            history = client.get_metric_history(run.info.run_id, metric)
            out[metric] = {point.step: point.value for point in history}
            assert len(out[metric]) == len(history)
        return out

    def test_a_run_has_its_hps_and_how_it_ended(self, kind: LoggerKind, place: Place) -> None:
        trial = trial_named("sp/width=64/lr=2^-7/seed=3", 3)
        logger = kind.make(place)
        opened = logger.open(trial)
        opened.log(POINTS)
        client = client_of(place)
        (run,) = runs_of(client, trial.name)
        assert run.info.status == "RUNNING"
        assert len(client.get_metric_history(run.info.run_id, "train_loss_nats")) == 3  # while it trains
        opened.close(FINISHED)
        (run,) = runs_of(client, trial.name)
        assert run.data.params == {name: str(value) for name, value in trial.config.items()}
        assert (run.info.status, run.data.tags["hpxfer.status"]) == ("FINISHED", "finished")
        assert run.data.metrics["validation_loss_nats"] == 2 / 3

    def test_an_interrupted_run_is_moved_to_the_deleted_ones_when_its_trial_goes_on(
        self, kind: LoggerKind, place: Place
    ) -> None:
        trial, client = trial_named("sp/width=64/lr=2^-7/seed=3", 3), client_of(place)
        kind.make(place).open(trial).close(INTERRUPTED)
        (before,) = runs_of(client, trial.name)
        assert before.info.status == "KILLED"
        other = Place(sweep="made", results="other", folder=place.folder, writing=place.writing)
        kind.make(other).open(trial).close(FINISHED)
        assert len(runs_of(client, trial.name)) == 2  # those of other results stay
        kind.make(place).open(trial).close(FINISHED)
        assert before.info.run_id in {run.info.run_id for run in runs_of(client, trial.name, view=2)}
        assert before.info.run_id not in {run.info.run_id for run in runs_of(client, trial.name)}

    def test_more_than_a_request_takes_goes_in_several(self, kind: LoggerKind, place: Place) -> None:
        names = {f"role{number}.lr_mult": 2.0 for number in range(MOST_PARAMS + 1)}
        trial = LoggedTrial(id="0" * 32, name="many", config=names)
        opened = kind.make(place).open(trial)
        opened.log({step: {"train_loss_nats": float(step)} for step in range(MOST_METRICS + 1)})
        opened.close(FINISHED)
        assert len(self.read(place, trial)["train_loss_nats"]) == MOST_METRICS + 1
        (run,) = runs_of(client_of(place), "many")
        assert len(run.data.params) == MOST_PARAMS + 1


def test_the_users_own_store_is_used(monkeypatch: Patch, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mine.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    kind = LOGGERS.get("mlflow")
    kind.require()
    from contextlib import nullcontext

    place = Place(sweep="made", results="here", folder=tmp_path / "results", writing=nullcontext)
    kind.make(place).open(trial_named("sp/base/lr=2^-7/seed=0")).close(FINISHED)
    assert len(runs_of(mlflow.MlflowClient(tracking_uri=uri), "sp/base/lr=2^-7/seed=0")) == 1
    assert not place.folder.exists()


def test_a_store_that_mlflow_does_not_take_is_refused_before_training(monkeypatch: Patch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "gopher://nowhere")
    with pytest.raises(HpxferError, match=r"resources\.loggers: mlflow cannot write to MLFLOW_TRACKING_URI=gopher"):
        LOGGERS.get("mlflow").require()
