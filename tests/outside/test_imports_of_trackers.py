"""The table of runs of real stores: what trackers sample, round, call finished or keep from a restart."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from foreign_runs import write_events

from hpxfer.errors import HpxferError
from hpxfer.outside.files import read_table, write_table
from hpxfer.outside.runs import read_runs
from hpxfer.outside.trackers.logged import LoggedRun, Point
from hpxfer.outside.trackers.mlflow import mlflow_runs
from hpxfer.outside.trackers.table import Choices, Imported, newest, read_address, tabulate
from hpxfer.outside.trackers.tensorboard import tensorboard_runs
from hpxfer.outside.trackers.wandb import wandb_runs

MAP = {"arm": "table"}
PATTERN = r"w(?P<width>\d+)_lr(?P<lr>[^_]+)_s(?P<seed>\d+)"


def hps(lr: float = 2.0**-7, width: int = 64, seed: int = 0, table: str = "mup") -> dict[str, Any]:
    return {"lr": lr, "width": width, "seed": seed, "table": table, "note": "x"}


def made(runs: Sequence[LoggedRun], columns: Mapping[str, str] = MAP, **choices: Any) -> Imported:
    return tabulate(runs, where="there", columns=columns, choices=Choices(**choices))


def row_of(found: Imported, run_id: str) -> Mapping[str, Any]:
    rows: dict[str, Mapping[str, Any]] = {str(row["run_id"]): row for row in found.frame.to_dict("records")}
    return rows[run_id]


def logged(
    name: str, points: Mapping[str, Sequence[tuple[float, float]]], state: str = "finished", **own: Any
) -> LoggedRun:
    """Return a run with these points (step, value) per metric."""

    def points_of(metric: str) -> list[Point]:
        return [Point(step=step, value=value, time=at) for at, (step, value) in enumerate(points.get(metric, ()))]

    return LoggedRun(id=name, name=name, config=hps(**own), state=state, metrics=tuple(points), points=points_of)


def curve(last: float, num: int = 100, slope: float = -0.01) -> list[tuple[float, float]]:
    """Return points whose last value is `last`, at steps 1 to `num`."""
    return [(step, last + slope * (step - num)) for step in range(1, num + 1)]


def test_a_held_out_loss_is_its_last_point_and_a_training_loss_a_mean() -> None:
    points = {"train/loss": curve(3.0), "val/loss": [(50, 3.5), (100, 3.2)], "val/loss_smooth": [(100, 0.0)]}
    assert row_of(made([logged("a", points)]), "a")["loss"] == 3.2
    train = made([logged("a", points)], metric="train/loss")
    assert row_of(train, "a")["loss"] == pytest.approx(3.02)  # of the last 5 of 100 points
    assert "loss: train/loss, as named: the mean of its last 5% of raw points" in train.notes
    assert "metrics left out: 'val/loss', 'val/loss_smooth'" in train.notes
    assert row_of(made([logged("a", points)], metric="train/loss", reduce="last"), "a")["loss"] == 3.0


@pytest.mark.parametrize(
    ("metrics", "metric", "message"),
    [
        (["val/loss", "eval_loss"], None, "one metric must be the loss, got 'eval_loss', 'val/loss'; name it with"),
        (["accuracy"], None, r"no metric looks like a loss.*'accuracy'"),
        ([], None, r"no metric looks like a loss; .*the metrics are none"),
        (["val/loss", "eval_loss"], "val_loss", "--metric: no run has 'val_loss'; did you mean 'eval_loss'"),
    ],
)
def test_a_metric_that_could_be_another_is_asked_for(metrics: list[str], metric: str | None, message: str) -> None:
    with pytest.raises(HpxferError, match=message):
        made([logged("a", dict.fromkeys(metrics, curve(3.0)))], metric=metric)


def test_steps_say_what_finished_and_not_the_tracker() -> None:
    runs = [
        logged("whole", {"loss": curve(3.0)}, "crashed"),
        logged("short", {"loss": curve(1.0, 60)}, "finished", seed=1),
        logged("killed", {"loss": curve(1.0, 60)}, "failed", seed=2),
        logged("wide", {"loss": curve(2.5, 60)}, "finished", width=128),  # trains less, by plan
        logged("blown", {"loss": [*curve(3.0, 40), (41, math.nan)]}, "failed", seed=3),
    ]
    found = made(runs)
    status = ["finished", "running", "failed", "finished", "diverged"]
    assert [row_of(found, run.id)["status"] for run in runs] == status
    assert math.isnan(row_of(found, "short")["loss"])
    notes = " ".join(found.notes)
    assert "1 runs reached the last step, so they count as finished" in notes
    assert "1 runs ended before step 100, so they do not count, though called finished" in notes
    assert [row["status"] for row in made(runs, steps=60).frame.to_dict("records")][:4] == ["finished"] * 4


def test_a_key_of_several_types_is_written_as_text(tmp_path: Path) -> None:
    runs = [logged("a", {"loss": curve(3.0)}, table="mup"), logged("b", {"loss": curve(3.0)}, table=3, seed=1)]
    for name in ("runs.csv", "runs.parquet"):
        write_table(made(runs).frame, tmp_path / name)
        found = read_runs(read_table(tmp_path / name), where=name, columns=MAP).runs
        assert found[["arm", "seed"]].to_numpy().tolist() == [["mup", 0], ["3", 1]]


def test_what_is_dropped_is_named() -> None:
    def lost(_: str) -> list[Point]:
        raise ConnectionError("HTTP 502")

    good, silent = logged("a", {"loss": curve(3.0)}), logged("silent", {"loss": []})
    bare = LoggedRun(id="bare", name="bare", config={}, state="finished", metrics=(), points=lambda _: [])
    found = made([good, silent, bare])
    assert "dropped, as a key is missing: 'bare'" in found.notes
    assert "dropped, as they have no point of loss: 'silent', 'bare'" in found.notes
    assert len(found.frame) == 1
    for runs, columns, message in (
        ([good], {"value": "lrate"}, "column 'lrate' is not in the table; did you mean 'lr'"),
        ([], MAP, "must hold at least one run"),
        ([good], {"loss": "x"}, "--map: must be a key of the runs, got 'loss', which they log"),
        ([replace(good, points=lost)], MAP, "there: run 'a': the history of loss cannot be read: HTTP 502"),
    ):
        with pytest.raises(HpxferError, match=message):
            made(runs, columns)


def test_a_name_may_hold_the_hps() -> None:
    run = replace(logged("w64_lr2^-7_s3", {"loss": curve(3.0)}), config={})
    read = read_runs(made([run], {}, pattern=PATTERN).frame, where="there").runs
    assert read[["value", "scale", "seed"]].to_numpy().tolist() == [[2.0**-7, 64, 3]]
    with pytest.raises(HpxferError, match="--pattern: must be a regular expression"):
        made([run], pattern="(")


def test_points_of_a_restart_replace_the_old_ones() -> None:
    old = [Point(step=step, value=9.0, time=step) for step in range(80)]
    new = [Point(step=step, value=1.0, time=1000 + step) for step in range(50, 60)]
    kept = newest([*new, *old])
    assert [point.step for point in kept] == list(range(60))
    assert {point.value for point in kept[50:]} == {1.0}


class TestTensorBoard:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
        return tmp_path

    def test_every_point_is_read_and_restarts_replace(self, folder: Path) -> None:
        """TensorBoard would keep a sample of 10,000 points, and both values of a step that was trained twice."""
        run = folder / "w64_lr0.01_s0"
        write_events(run, "train/loss", ((step, 5.0) for step in range(12_000)))
        write_events(run, "train/loss", ((step, 2.0) for step in range(9_000, 11_000)), start=2e6)
        write_events(folder / "w64_lr0.01_s1", "train/loss", ((step, 3.0) for step in range(11_000)))
        runs = tensorboard_runs(str(folder))
        assert len(runs[0].points("train/loss")) == 14_000
        row = row_of(made(runs, {}, pattern=PATTERN), "w64_lr0.01_s0")
        assert (row["loss"], row["steps"], row["status"]) == (2.0, 10_999, "finished")

    def test_our_own_logs_have_hps_and_an_end(self, folder: Path) -> None:
        from contextlib import nullcontext

        from hpxfer.loggers.kinds import LOGGERS, LoggedTrial, Place
        from hpxfer.testing.loggers import FINISHED

        place = Place(sweep="made", results="made", folder=folder, writing=nullcontext)
        trial = LoggedTrial(id="1", name="mup/seed=0", config={"lr": 0.01, "shape/width": 64, "seed": 0})
        LOGGERS.get("tensorboard").make(place).open(trial).close(FINISHED)
        (run,) = tensorboard_runs(str(folder))
        assert (run.config["lr"], run.config["shape/width"], run.state) == (0.01, 64.0, "finished")
        found = made([run], {})
        assert row_of(found, run.id)["loss"] == FINISHED.values["validation_loss_nats"]

    def test_a_folder_without_events_is_refused(self, folder: Path) -> None:
        for there, message in ((folder / "gone", "must be a folder"), (folder, "must hold at least one run, got none")):
            with pytest.raises(HpxferError, match=f"^tensorboard:{there}: {message}"):
                read_address(f"tensorboard:{there}", {}, (), Choices())


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestMLflow:
    @pytest.fixture
    def uri(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        return f"sqlite:///{tmp_path}/mlflow.db"

    @pytest.mark.slow
    def test_every_page_and_point_is_read_and_infinity_is_divergence(
        self, uri: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import mlflow
        from mlflow.entities import Metric

        monkeypatch.setattr("hpxfer.outside.trackers.mlflow.PAGE", 2)  # so that five runs are three pages
        client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = client.create_experiment("sweep")
        for seed in range(5):
            run = client.create_run(experiment, run_name=f"s{seed}")
            for key, value in hps(seed=seed).items():
                client.log_param(run.info.run_id, key, value)
            last = math.inf if seed == 4 else 3.0 + seed
            points = [Metric("val_loss", 4.0 if at < 2499 else last, 1_700_000_000_000, at) for at in range(2500)]
            for start in range(0, 2500, 1000):
                client.log_batch(run.info.run_id, metrics=points[start : start + 1000])
            client.set_terminated(run.info.run_id, "FAILED" if seed == 0 else "FINISHED")
        runs = mlflow_runs(uri)
        assert [len(run.points("val_loss")) for run in runs] == [2500] * 5
        found = made(runs)
        by_seed = {int(row["seed"]): row for row in found.frame.to_dict("records")}
        assert [by_seed[seed]["loss"] for seed in range(5)] == [3.0, 4.0, 5.0, 6.0, math.inf]
        assert [by_seed[seed]["status"] for seed in range(5)] == ["finished"] * 4 + ["diverged"]
        assert by_seed[0]["lr"] == str(2.0**-7)  # MLflow keeps text, which the reader of tables reads
        with pytest.raises(HpxferError, match="must name an experiment of the store, got 'swep'; did you mean 'sweep'"):
            mlflow_runs(f"{uri}#swep")
        run = client.create_run(client.create_experiment("other"))
        with pytest.raises(HpxferError, match=r"must name one of its experiments.*got several with runs: other, sweep"):
            mlflow_runs(uri)
        assert len(mlflow_runs(f"{uri}#sweep")) == 5
        for value in (4.0, 3.0, 2.0):  # without steps, all of them have step 0
            client.log_metric(run.info.run_id, "loss", value)
        (bare,) = mlflow_runs(f"{uri}#other")
        assert [(point.step, point.value) for point in bare.points("loss")] == [(0, 4.0), (1, 3.0), (2, 2.0)]

    def test_a_store_that_is_none_is_refused(self, uri: str, tmp_path: Path) -> None:
        with pytest.raises(HpxferError, match="MLflow cannot read it"):
            mlflow_runs("nothing://there")
        with pytest.raises(HpxferError, match="must be a store that is there, got no such file"):
            mlflow_runs(f"sqlite:///{tmp_path}/typo/mlflow.db")
        assert not (tmp_path / "typo").exists()


class ServerRun:
    def __init__(self, rows: Sequence[dict[str, Any]], *, answers_keys: bool = True) -> None:
        self.id, self.name, self.state = "r1", "run", "crashed"
        self.config = {"optimizer": {"lr": 0.01}, "width": 64, "seed": 0}
        self.summary = {"val/loss": 3.25, "_step": 400, "_runtime": 7, "status": "x"}
        self._rows, self._answers_keys = rows, answers_keys

    def history(self, **_: Any) -> Any:
        raise AssertionError("a sample of 500 rows, which no table may rest on")

    def scan_history(self, keys: Sequence[str] | None = None, page_size: int = 1000) -> Iterator[dict[str, Any]]:
        if not keys or self._answers_keys:
            yield from (row for row in self._rows if keys is None or all(key in row for key in keys))


class TestWandb:
    @pytest.fixture
    def serve(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Return what makes runs those of the project me/moe, as the client of wandb shows them."""
        wandb = pytest.importorskip("wandb", reason="the extra wandb is not installed")

        def serve(*runs: ServerRun) -> None:
            def of(project: str, order: str) -> Sequence[ServerRun]:
                if project != "me/moe":
                    raise ValueError(f"Could not find project {project}")
                return runs

            monkeypatch.setattr(wandb, "Api", lambda: SimpleNamespace(runs=of))

        return serve

    @pytest.mark.parametrize("answers_keys", [True, False])
    def test_a_server_is_asked_for_the_whole_history(self, answers_keys: bool, serve: Any) -> None:
        rows = [{"_step": step, "train/loss": 4.0} for step in range(401)]
        rows += [{"_step": 400, "val/loss": 3.25}]
        serve(ServerRun(rows, answers_keys=answers_keys))
        (run,) = wandb_runs("me/moe")
        assert (run.config["optimizer.lr"], run.metrics) == (0.01, ("val/loss",))
        assert [(point.step, point.value) for point in run.points("val/loss")] == [(400.0, 3.25)]
        assert len(run.points("train/loss")) == 401
        assert row_of(read_address("wandb:me/moe", {}, (), Choices()), "r1")["status"] == "finished"

    def test_without_a_history_the_summary_is_the_last_point(self, serve: Any) -> None:
        serve(ServerRun([]))
        (run,) = wandb_runs("me/moe")
        assert run.points("val/loss") == [Point(step=400.0, value=3.25, time=400.0)]

    def test_words_that_are_not_finite_are_divergence(self, serve: Any) -> None:
        serve(ServerRun([{"_step": 1, "val/loss": 3.0}, {"_step": 400, "val/loss": "NaN"}]))
        assert row_of(made(wandb_runs("me/moe"), {}), "r1")["status"] == "diverged"

    def test_a_project_that_is_none_is_refused(self, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        serve()
        with pytest.raises(HpxferError, match="wandb cannot read it: Could not find project"):
            wandb_runs("me/gone")
        with pytest.raises(HpxferError, match="must be wandb:ENTITY/PROJECT"):
            wandb_runs("moe")
        monkeypatch.setitem(sys.modules, "wandb", None)
        with pytest.raises(HpxferError, match=r"wandb must be installed.*; `pip install 'hpxfer\[wandb\]'`$"):
            wandb_runs("me/moe")
