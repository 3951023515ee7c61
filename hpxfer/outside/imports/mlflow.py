"""The runs of an MLflow experiment: every page of them, and the whole history of a metric."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError, first_line, nearest, shown
from hpxfer.outside.imports.logged import LoggedRun, Point, library

_SQLITE = "sqlite:///"  # MLflow would make the file of a name that is not there
PAGE = 1000  # runs per request; MLflow's default stops after 1000 runs without a word


def mlflow_runs(uri: str, experiment: str | None) -> list[LoggedRun]:
    """Return the runs of an experiment at a tracking URI; without its name, of the only one that has runs.

    Raises HpxferError if the store cannot be read, or does not have that experiment.
    """
    mlflow = library("mlflow", "mlflow")
    if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE).partition("?")[0]).exists():
        raise HpxferError(f"{uri}: must be a store that is there, got no such file; name a tracking URI")
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it says that it looks at tables
    try:
        client = mlflow.MlflowClient(tracking_uri=uri)
        experiments = {found.name: found.experiment_id for found in client.search_experiments()}
        if experiment is not None and experiment not in experiments:
            raise HpxferError(
                f"{uri}: --experiment: must be one of the store, got {shown(experiment)}; "
                f"{nearest(experiment, experiments)}"
            )
        names = [experiment] if experiment is not None else list(experiments)
        found = {name: list(_pages(client, experiments[name])) for name in names}
    except HpxferError:
        raise
    except Exception as error:  # whatever MLflow, SQLAlchemy or the network say
        raise HpxferError(f"{uri}: MLflow cannot read it: {first_line(error)}; name a tracking URI") from None
    with_runs = {name: runs for name, runs in found.items() if runs}
    if len(with_runs) > 1:
        raise HpxferError(f"{uri}: --experiment: must be given, as several have runs: {', '.join(sorted(with_runs))}")
    return [_run(client, run) for runs in with_runs.values() for run in runs]


def _pages(client: Any, experiment: str) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_runs([experiment], max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _run(client: Any, run: Any) -> LoggedRun:
    return LoggedRun(
        id=run.info.run_id,
        name=run.info.run_name or "",
        config={**{f"tag.{key}": value for key, value in run.data.tags.items()}, **run.data.params},
        state=run.info.status,
        metrics=tuple(run.data.metrics),
        points=partial(_points, client, run),
    )


def _points(client: Any, run: Any, metric: str) -> list[Point]:
    if metric not in run.data.metrics:
        return []
    return [
        Point(step=point.step, value=point.value, time=point.timestamp)
        for point in client.get_metric_history(run.info.run_id, metric)
    ]
