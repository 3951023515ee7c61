"""The runs of an MLflow experiment: every page of them, and the whole history of a metric."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host import library
from hpxfer.outside.trackers.logged import LoggedRun, Point, reading

_SQLITE = "sqlite:///"  # MLflow would make the file of a name that is not there
PAGE = 1000  # runs per request; MLflow's default stops after 1000 runs without a word


def mlflow_runs(source: str) -> list[LoggedRun]:
    """Return the runs of `URI#EXPERIMENT`, the oldest first; without an experiment, of the only one that has runs.

    Raises HpxferError if the store cannot be read, or does not have that experiment.
    """
    uri, _, experiment = source.partition("#")
    mlflow = library("mlflow", "mlflow")
    if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE).partition("?")[0]).exists():
        raise HpxferError(f"mlflow:{uri}: must be a store that is there, got no such file")
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it says that it looks at tables
    with reading(f"mlflow:{uri}: MLflow cannot read it"):
        client = mlflow.MlflowClient(tracking_uri=uri)
        ids = {found.name: found.experiment_id for found in client.search_experiments()}
        if experiment and experiment not in ids:
            rule = f"must name an experiment of the store, got {shown(experiment)}"
            raise HpxferError(f"mlflow:{source}: {rule}; {nearest(experiment, ids)}")
        found = {name: runs for name in ([experiment] if experiment else ids) if (runs := [*_pages(client, ids[name])])}
    if len(found) > 1:
        rule = f"must name one of its experiments, as in mlflow:{uri}#{next(iter(found))}"
        raise HpxferError(f"mlflow:{uri}: {rule}, got several with runs: {', '.join(sorted(found))}")
    return [_run(client, run) for runs in found.values() for run in runs]


def _pages(client: Any, experiment: str) -> Iterator[Any]:
    oldest_first, token = ["attributes.start_time ASC"], None
    while True:
        page = client.search_runs([experiment], max_results=PAGE, order_by=oldest_first, page_token=token)
        yield from page
        if not (token := page.token):
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
    """Return every point of a metric. One that was logged without steps has step 0 throughout, so points count then."""
    known = metric in run.data.metrics
    found = sorted(client.get_metric_history(run.info.run_id, metric) if known else (), key=lambda at: at.timestamp)
    bare = not any(point.step for point in found)
    return [Point(at if bare else point.step, point.value, point.timestamp) for at, point in enumerate(found)]
