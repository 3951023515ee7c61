"""Kept: the weights of trials beside the results: a worker stores them, and `hpxfer weights` finds those of a trial.

    <results>/weights/<trial's id>.safetensors   after the last step; the trial has finished
    <results>/weights/driver                     the driver's marker, while it runs

A worker writes the file of a trial before its result is stored. If the run is killed in between, the trial is trained
again and its file replaced. The weights of a stored result stay as they are. A file holds the losses of its trial, so
that a reader knows whether it belongs to the stored result. The driver needs no torch for this.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError, shown
from hpxfer.host import Uri
from hpxfer.storage import MARKER, Objects, marked, objects_at, sees
from hpxfer.store import LOSS_COLUMNS, LOSS_NUMBERS
from hpxfer.trial import Stack, Trial

if TYPE_CHECKING:
    from hpxfer.results import Results
    from hpxfer.train.snapshot import Moment
    from hpxfer.weights.trained import TrialWeights

_log = logging.getLogger(__name__)
_SHOWN = 12  # characters of an id that a message shows
FOLDER = "weights"  # below the results


@dataclass(frozen=True)
class KeepSpec:
    """Where a worker stores weights."""

    folder: str  # or URI
    marker: str  # the random token that the driver wrote

    def is_here(self) -> bool:
        """Return whether this machine sees the driver's folder."""
        return sees(self.folder, self.marker)


def name_of(trial_id: str) -> str:
    """Return the name of the file of a trial."""
    return f"{trial_id}.safetensors"


def start(folder: Path | Uri) -> KeepSpec:
    """Return what workers need in this run. Raises HpxferError if nothing can be written.

    From now on the workers of earlier runs write no more.
    """
    try:
        files = objects_at(folder)
        spec = KeepSpec(files.where, marked(files))
        _sweep(files)
    except OSError as error:
        raise HpxferError(
            f"{folder}: weights must be stored here, got {error}; make it writable, or set resources.keep: none"
        ) from None
    return spec


def end(folder: Path | Uri) -> None:
    """Remove what no run needs: the marker, half-written files, and an empty folder."""
    with suppress(OSError, HpxferError):
        files = objects_at(folder)
        _sweep(files)
        files.remove(MARKER)


def _sweep(files: Objects) -> None:
    for name in files.stamps():
        if name.endswith(".tmp"):  # of a worker that was killed
            files.remove(name)


class Keeper:
    """Stores the weights of the trials of a stack, on its worker.

    It stores none where the worker cannot see the driver's folder. If it cannot write, it warns once, and the training
    goes on.
    """

    def __init__(self, spec: KeepSpec, stack: Stack) -> None:
        self._spec, self._trials = spec, {trial.id: trial for trial in stack.trials}
        self._warned = False

    def __call__(self, moment: Moment) -> None:
        """Store the weights of all trials that are alive."""
        from safetensors import SafetensorError

        from hpxfer.weights.files import write_own
        from hpxfer.weights.trained import weights_of

        try:
            if not self._spec.is_here():
                raise OSError("this worker does not see the folder of the driver")
            files = objects_at(self._spec.folder)
            for trial_id, row in moment.rows.items():
                trial, found = self._trials[trial_id], moment.snapshot
                weights = weights_of(trial, row, found.layout, found.parameters, found.router_bias)
                losses = losses_of(vars(moment.results[trial_id]))
                files.put(name_of(trial_id), lambda path, w=weights, found=losses: write_own(w, path, found))  # type: ignore[misc]
        except (OSError, SafetensorError, HpxferError, RuntimeError) as error:
            if not self._warned:
                _log.warning("weights are not kept in %s: %s", self._spec.folder, error)
            self._warned = True


def losses_of(numbers: Mapping[Any, Any]) -> dict[str, float]:
    """Return the losses that a result or a stored row has, by column."""
    found = {column: numbers.get(column) for column in LOSS_NUMBERS}
    return {name: float(loss) for name, loss in found.items() if loss is not None and not math.isnan(loss)}


def weights_from(folder: Path | Uri, trial: Trial, stored: Mapping[Any, Any]) -> TrialWeights:
    """Return the weights of a finished trial that a run kept in this folder. `stored` is its row in the store.

    A file with other losses than the stored ones is of a result that was never stored. Raises HpxferError if the
    weights were not kept.
    """
    from hpxfer.weights.files import read_facts, read_own

    files, name = objects_at(folder), name_of(trial.id)
    if name in files.stamps():
        with files.local_copy(name) as path:
            if read_facts(path).get("losses") == losses_of(stored):
                return read_own(path, trial)
    raise HpxferError(
        f"{folder}: the weights of trial {trial.id} were not kept; set resources.keep: last and run the sweep in a new "
        "folder"
    )


def chosen_trial(results: Results, spelled: str | None, *, best: bool) -> tuple[Trial, Mapping[Any, Any]]:
    """Return the finished trial whose id begins so, or the best, and its stored row.

    Raises HpxferError if there is none, or several.
    """
    if (spelled is None) == (not best):
        raise HpxferError(f"give one of --trial and --best, got {'both' if best else 'neither'}")
    from hpxfer.search import stored_trials

    finished = results.trials[results.trials["status"] == "finished"]
    if best:
        column = LOSS_COLUMNS[results.spec.judge.loss]
        finished = finished[finished[column].notna()].nsmallest(1, column)
    else:
        assert spelled is not None
        found = results.trials[results.trials["trial_id"].str.startswith(spelled.lower())]
        if len(found) != 1 or found["status"].iloc[0] != "finished":
            raise HpxferError(f"{results.folder}: {_why_not(spelled, found)}")
        finished = found
    for _, trial, row in stored_trials(results.expansion, finished):
        return trial, row
    what = "no trial that has finished" if finished.empty else f"trial {finished['trial_id'].iloc[0][:_SHOWN]} no more"
    raise HpxferError(f"{results.folder}: the sweep of this folder has {what}; run it first")


def _why_not(spelled: str, found: Any) -> str:
    if found.empty:
        fix = "`hpxfer plan RESULTS/sweep.yaml --trials` lists them"
        return f"--trial: no trial has an id that begins with {shown(spelled)}; {fix}"
    if len(found) > 1:
        ids = ", ".join(name[:_SHOWN] for name in found["trial_id"].head(3))
        return f"--trial: {shown(spelled)} is how {len(found)} ids begin, such as {ids}; give more of it"
    return f"--trial: must be a trial that has finished, got one that is {found['status'].iloc[0]}; choose another"
