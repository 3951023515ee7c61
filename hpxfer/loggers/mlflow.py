"""MLflow: one run for each trial, in the experiment of the sweep.

MLFLOW_TRACKING_URI says where runs go. The default is a database in `mlflow/` of the results folder, which
`mlflow ui --backend-store-uri sqlite:///...` shows. A trial that goes on in another run of the sweep takes the place of
its unfinished run, which MLflow moves to its deleted runs.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from hpxfer.errors import HpxferError, first_line
from hpxfer.loggers.kinds import WHERE, Final, LoggedTrial, LoggerKind, OpenTrial, Place, StepValues, library

NAME = "mlflow"
URI = "MLFLOW_TRACKING_URI"
TRIAL, RESULTS, STATUS = "hpxfer.trial", "hpxfer.results", "hpxfer.status"  # tags of a run
# The most that MLflow takes in one request.
MOST_METRICS, MOST_PARAMS = 1000, 100
_STATUS = {"failed": "FAILED", "interrupted": "KILLED"}


class MLflow:
    """Starts a run of MLflow for each trial."""

    def __init__(self, place: Place) -> None:
        self._place, self._entities = place, library("mlflow.entities", NAME)
        self._client: Any = None
        self._experiment = ""

    def open(self, trial: LoggedTrial) -> OpenTrial:
        """See `Logger.open`."""
        if self._client is None:
            self._connect()
        for old in self._client.search_runs([self._experiment], filter_string=f"tags.`{TRIAL}` = '{trial.id}'"):
            if old.data.tags.get(RESULTS) == self._place.results:
                self._client.delete_run(old.info.run_id)
        tags = {TRIAL: trial.id, RESULTS: self._place.results}
        run = self._client.create_run(self._experiment, run_name=trial.name, tags=tags)
        params = [self._entities.Param(key, str(value)) for key, value in trial.config.items()]
        for at in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(run.info.run_id, params=params[at : at + MOST_PARAMS])
        return _Run(self._client, self._entities, run.info.run_id)

    def _connect(self) -> None:
        """Find or make the experiment of the sweep. The default store is a database in the results folder."""
        uri = os.environ.get(URI)
        if not uri:
            logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it says that it makes tables
            folder = self._place.folder / NAME
            with self._place.writing():
                folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{folder.absolute() / 'mlflow.db'}"
        self._client = library("mlflow", NAME).MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(self._place.sweep)
        self._experiment = self._client.create_experiment(self._place.sweep) if found is None else found.experiment_id


class _Run:
    def __init__(self, client: Any, entities: Any, run_id: str) -> None:
        self._client, self._entities, self._id = client, entities, run_id

    def log(self, points: StepValues) -> None:
        now = int(time.time() * 1000)
        metrics = [
            self._entities.Metric(metric, value, now, step)
            for step, values in points.items()
            for metric, value in values.items()
        ]
        for at in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[at : at + MOST_METRICS])

    def close(self, final: Final) -> None:
        self.log({final.step: final.values})
        self._client.set_tag(self._id, STATUS, final.status)
        self._client.set_terminated(self._id, _STATUS.get(final.status, "FINISHED"))


def _require() -> None:
    """Check the library, and that the URI is one that it knows. No server is asked."""
    mlflow = library("mlflow", NAME)
    uri = os.environ.get(URI)
    if not uri or uri.startswith(("http://", "https://", "databricks")):
        return
    try:
        mlflow.MlflowClient(tracking_uri=uri)
    except Exception as error:
        raise HpxferError(f"{WHERE}: mlflow cannot write to {URI}={uri}: {first_line(error)}") from None


MLFLOW = LoggerKind(name=NAME, require=_require, make=MLflow)
