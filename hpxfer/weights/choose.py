"""Choose: the trial whose weights are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpxfer.errors import HpxferError, shown
from hpxfer.results import Results
from hpxfer.search import stored_trials
from hpxfer.store import LOSS_COLUMNS
from hpxfer.trial import Trial

_SHOWN = 12  # characters of an id that a message shows


def chosen_trial(results: Results, spelled: str | None, *, best: bool) -> tuple[Trial, Mapping[Any, Any]]:
    """Return the finished trial whose id begins so, or the best, and its stored row.

    Raises HpxferError if there is none, or several.
    """
    if (spelled is None) == (not best):
        raise HpxferError(f"give one of --trial and --best, got {'both' if best else 'neither'}")
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
