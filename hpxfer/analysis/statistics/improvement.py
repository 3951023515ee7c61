"""Monotone improvement: at fixed HPs, does every larger shape do better? Paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.statistic import Found, Statistic, arms, by_axis, frame_of, listed
from hpxfer.intervals import mean_interval

COLUMNS = {
    "axis": "the axis of the sweep",
    "parameterization": "the arm",
    "hp": "the judged HP",
    "value": "of the HP, the same at every scale",
    "monotone": "True if every step is surely a gain, False if one is surely a loss, None if unknown",
    "scale": "of the smaller shape",
    "next_scale": "of the larger shape",
    "loss_nats": "of the smaller shape, mean over seeds; None where a seed diverged",
    "next_loss_nats": "of the larger shape",
    "gain_nats": "by which the loss falls; None if a trial diverged, or without a common seed",
    "low": "95% interval of the gain, nats; None with fewer than two common seeds",
    "high": "its upper end",
    "num_seeds": "of the gain",
}
NO_STEP = "no two neighboring scales have finite losses of a common seed"


def steps_between(scales: Sequence[float], losses: Sequence[Mapping[int, float]]) -> list[dict[str, Any]]:
    """Return a row per step from one scale to the next.

    `losses` holds one mapping per scale, from the seed to its loss in nats, +inf if it diverged.
    """
    order = sorted(range(len(scales)), key=lambda i: scales[i])
    steps = [
        {"scale": scales[i], "next_scale": scales[j], **_means(losses[i], losses[j]), **_step(losses[i], losses[j])}
        for i, j in pairwise(order)
    ]
    monotone = _monotone(steps)
    return [{"monotone": monotone, **step} for step in steps]


def _means(losses: Mapping[int, float], larger: Mapping[int, float]) -> dict[str, float | None]:
    means = (float(np.mean(list(of.values()))) if of else math.nan for of in (losses, larger))
    return {
        name: mean if math.isfinite(mean) else None
        for name, mean in zip(("loss_nats", "next_loss_nats"), means, strict=True)
    }


def _monotone(steps: Sequence[Mapping[str, Any]]) -> bool | None:
    if any(step["high"] is not None and step["high"] < 0 for step in steps):
        return False
    return True if steps and all(step["low"] is not None and step["low"] > 0 for step in steps) else None


def _step(losses: Mapping[int, float], larger: Mapping[int, float]) -> dict[str, Any]:
    common = [seed for seed in losses if seed in larger]
    finite = all(math.isfinite(loss) for seed in common for loss in (losses[seed], larger[seed]))
    if not common or not finite:
        return {"gain_nats": None, "low": None, "high": None, "num_seeds": 0}
    gain, low, high = mean_interval(np.array([losses[seed] - larger[seed] for seed in common]))
    return {"gain_nats": gain, "low": low, "high": high, "num_seeds": len(common)}


def _improvements(inputs: Inputs) -> Found:
    line, rows, unknown = inputs.judged, list[dict[str, Any]](), []
    for finding in sorted(line.report.findings if line else (), key=lambda finding: finding.key):
        of = {"axis": finding.axis, "parameterization": finding.parameterization, "hp": inputs.hp}
        why = NO_BASE_VALUE
        if line is not None and finding.base_value is not None:
            grid = line.by_key[finding.key].grid.rows
            losses = [{} if (cell := row.cell(finding.base_value)) is None else cell.by_seed for row in grid]
            steps = steps_between([row.scale for row in grid], losses)
            if any(step["num_seeds"] for step in steps):
                rows += [{**of, "value": finding.base_value, **step} for step in steps]
                continue
            why = NO_STEP
        unknown.append((f"{' '.join(finding.key)} {inputs.hp}", why))
    frame = frame_of(rows, COLUMNS)
    return Found(frame=frame, title=by_axis(frame, lambda rows: listed(list(_said(rows)))), unknown=tuple(unknown))


def _said(frame: pd.DataFrame) -> Iterator[str]:
    words = {True: "yes", False: "no"}
    for name, rows in arms(frame):
        yield f"{name} {words.get(rows['monotone'].iloc[0], 'not known')}"


IMPROVEMENT = Statistic(
    name="improvement",
    title="Does a larger model always win?",
    note="Gain in nats from one scale to the next at the same HPs, paired over seeds; 95% intervals. Monotone: yes if "
    "every step is surely a gain, no if one is surely a loss, empty if the seeds do not tell.",
    compute=_improvements,
    columns=COLUMNS,
    of_lines=True,
)
