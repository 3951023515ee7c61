"""Curves over training, by trial."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpxfer.verdict.loss_grid import Floats

Curve = tuple[NDArray[np.int64], Floats]  # steps ascending, values


def curves_by_trial(curves: pd.DataFrame, metric: str, trial_ids: Collection[str]) -> dict[str, Curve]:
    """Return trial_id -> curve of a metric. Of a metric with several layers, each step has the largest value."""
    kept = curves[(curves["metric"] == metric).to_numpy() & curves["trial_id"].isin(trial_ids).to_numpy()]
    code_R, names = pd.factorize(kept["trial_id"])
    step_R, value_R = kept["step"].to_numpy(np.int64), kept["value"].to_numpy(float)
    if not step_R.size:
        return {}
    order = np.lexsort((step_R, code_R))
    code_R, step_R, value_R = np.asarray(code_R)[order], step_R[order], value_R[order]
    first_R = np.concatenate([[True], (np.diff(code_R) != 0) | (np.diff(step_R) != 0)])
    start = np.flatnonzero(first_R)
    largest, code, step = np.maximum.reduceat(value_R, start), code_R[start], step_R[start]
    cuts = np.flatnonzero(np.diff(code)) + 1
    parts = zip(np.split(code, cuts), np.split(step, cuts), np.split(largest, cuts), strict=True)
    return {str(names[codes[0]]): (steps, values) for codes, steps, values in parts}
