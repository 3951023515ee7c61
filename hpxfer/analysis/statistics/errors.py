"""Classification errors of each arm and shape at the HPs that were transferred to it, and how far arms are apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.statistic import Chart, Found, Statistic, arms, by_axis, frame_of, listed
from hpxfer.analysis.statistics.transferred import Curve, TrainedShape, Transferred, curves_by_trial, transferred
from hpxfer.host import is_control, scale_text
from hpxfer.intervals import mean_interval
from hpxfer.store import ERROR_COLUMNS

TRAIN = {"train_top5_error": "top-5 training error", "train_error": "training error"}  # arms differ in the first known
ERRORS = (*TRAIN, *ERROR_COLUMNS)
COLUMNS = {
    "axis": "the axis of the sweep",
    "parameterization": "the arm",
    "hp": "the judged HP",
    "value": "of the HP, transferred from the base",
    "scale_name": "what the scale is",
    "shape": "the name of the shape",
    "scale": "of the shape",
    "num_seeds": "of the means",
    "train_top5_error": "share of the samples of the final window of training; None where a seed diverged",
    "train_error": "the same, where the first class counts",
    "validation_top5_error": "share of the held-out samples",
    "validation_error": "the same, where the first class counts",
    "against": "the arm that this arm is compared with; None for that arm itself",
    "compared": "the error that is compared",
    "difference_points": "that error minus the one of the other arm at this shape, in points, paired by seed",
    "difference_se": "its standard error; None with fewer than two common seeds",
    "low_points": "its 95% interval",
    "high_points": "its upper end",
}
NO_ERRORS = "a seed diverged, or no trial has errors"


def error_difference(of_seed: Mapping[int, float], other: Mapping[int, float]) -> dict[str, float | None]:
    """Return the mean of errors minus others at the same seeds in points, with its standard error and 95% interval."""
    by_seed = np.array([100 * (of_seed[seed] - other[seed]) for seed in of_seed if seed in other])
    if not by_seed.size:
        return {}
    mean, low, high = mean_interval(by_seed)
    se = float(by_seed.std(ddof=1)) / math.sqrt(by_seed.size) if by_seed.size > 1 else None
    return {"difference_points": mean, "difference_se": se, "low_points": low, "high_points": high}


def _by_seed(
    inputs: Inputs, known: Transferred, one: TrainedShape, measured: Mapping[str, Mapping[str, Curve | float]]
) -> dict[str, dict[int, float]]:
    """Return error -> seed -> its value at a shape; no values where a seed diverged."""
    setting = inputs.results.expansion.setting_at(one.shape)
    start = setting.steps - setting.final_window_steps
    trials = {} if known.diverged_steps.keys() & set(one.trials) else one.cell.trial_of
    found = {
        name: {seed: _number(measured[name].get(trial), start) for seed, trial in trials.items()} for name in ERRORS
    }
    return {name: {seed: x for seed, x in of.items() if math.isfinite(x)} for name, of in found.items()}


def _number(measured: Curve | float | None, start: int) -> float:
    """Return an error as it is, or the mean of a curve of errors from a step on."""
    if isinstance(measured, tuple):
        steps, values = measured
        return float(values[steps >= start].mean()) if (steps >= start).any() else math.nan
    return math.nan if measured is None else measured


def _errors(inputs: Inputs) -> Found:
    trials, known = inputs.results.trials, inputs.once(transferred)
    if trials[list(ERROR_COLUMNS)].isna().all(axis=None):
        return Found(frame=frame_of((), COLUMNS))
    ids = {trial for along in known.along.values() for one in along for trial in one.trials}
    measured: dict[str, Any] = {name: curves_by_trial(inputs.results.curves, name, ids) for name in TRAIN}
    measured |= {name: trials.set_index("trial_id")[name].to_dict() for name in ERROR_COLUMNS}
    found = {
        (*key, one.row.shape): _by_seed(inputs, known, one, measured)
        for key, along in known.along.items()
        for one in along
    }
    compared = next((name for name in TRAIN if any(errors[name] for errors in found.values())), "validation_error")
    order = sorted(inputs.results.expansion.arms, key=lambda label: not is_control(label, inputs.rules.control))
    rows, unknown = list[dict[str, Any]](), []
    for finding in known.findings:
        against = next(label for label in order if (finding.axis, label) in known.along)
        of: dict[str, Any] = {"axis": finding.axis, "parameterization": finding.parameterization, "hp": inputs.hp}
        of |= {"value": finding.base_value, "scale_name": finding.scale_name, "compared": compared}
        of |= {"against": None if against == finding.parameterization else against}
        if finding.base_value is None:
            unknown.append((f"{' '.join(finding.key)} {inputs.hp}", NO_BASE_VALUE))
        for one in known.along[finding.key]:
            errors = found[(*finding.key, one.row.shape)]
            means = {name: float(np.mean(list(by_seed.values()))) for name, by_seed in errors.items() if by_seed}
            unknown += [] if means else [(f"{' '.join(finding.key)} {one.row.shape}", NO_ERRORS)]
            row = {"shape": one.row.shape, "scale": one.row.scale, "num_seeds": len(errors[compared]), **means}
            other = found.get((finding.axis, against, one.row.shape), {}).get(compared, {})
            rows.append({**of, **row, **(error_difference(errors[compared], other) if of["against"] else {})})
    frame = frame_of(rows, COLUMNS)
    title = by_axis(frame, lambda rows: listed(list(_said(rows))))
    chart = Chart(x="scale", y=compared, color="parameterization", panel="axis", log=("x",))
    return Found(frame=frame, title=title, unknown=tuple(unknown), chart=chart)


def _said(frame: pd.DataFrame) -> Iterator[str]:
    """Yield by how many points each arm is lower or higher than the one it is compared with, at the largest shape."""
    for name, rows in arms(frame):
        last: Any = rows.sort_values("scale").iloc[-1]
        points, error = last["difference_points"], TRAIN.get(last["compared"], "validation error")
        at, than = f"at {last['scale_name']} {scale_text(last['scale'])}", last["against"]
        if pd.isna(than):
            mean = last[last["compared"]]
            alone = f"{error} of {name} " + ("not known" if pd.isna(mean) else f"{mean:.3f}")
            yield from [f"{alone} {at}"] if frame["against"].isna().all() else []
        elif pd.isna(points):
            yield f"{error} of {name} and {than} {at} not known"
        elif last["low_points"] <= 0 <= last["high_points"]:
            known = f"{points:+.2g} +- {last['difference_se']:.2g} points"
            yield f"no difference is seen in the {error} of {name} and {than} {at} ({known})"
        else:
            spread = "" if pd.isna(last["difference_se"]) else f" +- {last['difference_se']:.2g}"
            side = f"points {'lower' if points < 0 else 'higher'} than that of {than} {at}"
            unsure = "" if spread else ", with no two seeds to tell how surely"
            yield f"{error} of {name} {abs(points):.2g}{spread} {side}{unsure}"


CLASSIFICATION_ERRORS = Statistic(
    name="errors",
    title="Which arm makes fewer errors at the transferred HP?",
    note="Errors are shares of the samples, as means over seeds. Differences of arms are in points, paired by seed, "
    "with 95% intervals.",
    compute=_errors,
    columns=COLUMNS,
    hidden=("scale_name", "hp", "compared"),
)
