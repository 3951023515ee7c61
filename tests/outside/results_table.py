"""The table of a results folder, as `hpxfer judge` reads it."""

from __future__ import annotations

import pandas as pd

from hpxfer.results import Results
from hpxfer.search.verdict_rules import judged_by

# The status of a trial -> that of a run. One that was stopped early, or was not run, has no result at the end.
_STATUS = {"finished": "finished", "diverged": "diverged", "failed": "failed", "stopped": "running"}


def table_of(results: Results, loss: str | None = None) -> pd.DataFrame:
    """Return one row per cell of every line of a sweep, with the columns of `hpxfer.outside.columns`.

    `loss` is one of those of `judge.loss`, by default the one that the sweep is judged by. HPs whose line cannot be
    read, or that the search scans no line of, have no rows. Raises HpxferError for an unknown loss.
    """
    judged, steps = judged_by(results.spec, loss), results.trials.set_index("trial_id")["steps"]
    parts = []
    for hp in sorted(results.spec.grid, key=lambda name: name != results.spec.judged_hp):
        if results.why_no_line(hp) is not None:
            continue
        line = results.line(hp, judged.name)
        parts.append(
            pd.DataFrame(
                {
                    "arm": line["parameterization"],
                    "axis": line["axis"],
                    "scale_name": line["scale_name"],
                    "scale": line["scale"],
                    "shape": line["shape"],
                    "is_base": line["is_base"],
                    "hp": hp,
                    "value": line["value"],
                    "seed": line["seed"],
                    "loss": line["loss"],
                    "status": line["status"].map(_STATUS).fillna("running"),
                    "run_id": line["trial_id"],
                    "steps": line["trial_id"].map(steps),
                    "loss_name": judged.words,
                    "unit": judged.unit,
                }
            )
        )
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
