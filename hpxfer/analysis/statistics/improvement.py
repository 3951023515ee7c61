"""At fixed HPs, does every larger shape do better, and by how much per doubling of the scale? Paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.joint_drift import by_common_seed, slope_of_seeds
from hpxfer.analysis.statistics.statistic import Chart, Found, Statistic, arms, by_axis, frame_of, listed
from hpxfer.analysis.statistics.transferred import transferred
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


GAIN_COLUMNS = {
    "axis": "the axis of the sweep",
    "parameterization": "the arm",
    "hp": "the judged HP",
    "value": "of the HP, the same at every scale",
    "scale_name": "what the scale is",
    "shape": "the name of the shape",
    "scale": "of the shape",
    "loss_nats": "mean over seeds; None where a seed diverged or nothing ended",
    "lowest_nats": "the lowest loss of a seed",
    "highest_nats": "the highest one",
    "num_seeds": "of the mean",
    "slope_nats": "change of the loss per doubling of the scale, over the shapes and seeds that have a loss",
    "slope_low_nats": "its 95% interval, from seeds and from the scatter about the line; None where neither is known",
    "slope_high_nats": "its upper end",
    "next_shapes": "whether each next shape is better, in words",
}


def gain_rows(shapes: Sequence[tuple[str, float, Mapping[int, float]]]) -> list[dict[str, Any]]:
    """Return a row per shape. `shapes` has its name, its scale, and seed -> loss in nats, +inf if it diverged."""
    ordered = sorted(shapes, key=lambda each: each[1])
    kept = [(scale, losses) for _, scale, losses in ordered if losses and all(map(math.isfinite, losses.values()))]
    x, loss_SN = by_common_seed(kept)
    slope: tuple[float | None, ...] = (None, None, None)
    if loss_SN.size and np.ptp(x) > 0:
        slope = slope_of_seeds(x, loss_SN)
    steps = steps_between([scale for _, scale, _ in ordered], [losses for _, _, losses in ordered])
    of_axis: dict[str, Any] = dict(zip(("slope_nats", "slope_low_nats", "slope_high_nats"), slope, strict=True))
    rows = []
    for name, scale, losses in ordered:
        is_known = losses and all(map(math.isfinite, losses.values()))
        of_seeds = tuple(losses.values())
        known = (float(np.mean(of_seeds)), min(of_seeds), max(of_seeds)) if is_known else (None, None, None)
        of_shape: dict[str, Any] = {"shape": name, "scale": scale, "num_seeds": len(losses)}
        of_shape |= dict(zip(("loss_nats", "lowest_nats", "highest_nats"), known, strict=True))
        rows.append({**of_shape, **of_axis, "next_shapes": next_shapes(steps)})
    return rows


def next_shapes(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return in words at how many steps the next shape is better."""
    if not steps:
        return "there is no next shape"
    num = f"of {len(steps)} next shapes"
    if all(step["low"] is None for step in steps):
        lower = sum((step["gain_nats"] or 0.0) > 0 for step in steps)
        return f"{lower} {num} lower, with no two seeds to tell how surely"
    better = sum(step["low"] is not None and step["low"] > 0 for step in steps)
    worse = sum(step["high"] is not None and step["high"] < 0 for step in steps)
    if better == len(steps):
        return "each next shape is surely better"
    return f"{better} {num} surely better" + (f", {worse} surely worse" if worse else "")


def _gains(inputs: Inputs) -> Found:
    rows, unknown = list[dict[str, Any]](), []
    known = inputs.once(transferred)
    for finding in known.findings:
        of: dict[str, Any] = {"axis": finding.axis, "parameterization": finding.parameterization, "hp": inputs.hp}
        of |= {"value": finding.base_value, "scale_name": finding.scale_name}
        found = [(one.row.shape, one.row.scale, one.cell.by_seed) for one in known.along[finding.key]]
        if any(losses for _, _, losses in found):
            rows += [{**of, **row} for row in gain_rows(found)]
        else:
            why = NO_BASE_VALUE if finding.base_value is None else "no shape has a loss"
            unknown.append((f"{' '.join(finding.key)} {inputs.hp}", why))
    frame = frame_of(rows, GAIN_COLUMNS)
    chart = Chart(
        x="scale",
        y="loss_nats",
        color="parameterization",
        panel="axis",
        low="lowest_nats",
        high="highest_nats",
        log=("x",),
    )
    title = by_axis(frame, lambda rows: listed(list(_gained(rows))))
    asked = inputs.results.spec.has_fixed_hps or "gains" in (inputs.results.spec.judge.about or ())
    return Found(frame=frame, title=title, unknown=tuple(unknown), chart=chart if asked else None)


def _gained(frame: pd.DataFrame) -> Iterator[str]:
    for name, rows in arms(frame):
        first = rows.iloc[0]
        slope, low, high = (first[end] for end in ("slope_nats", "slope_low_nats", "slope_high_nats"))
        interval = "" if pd.isna(low) else f" [{low:+.3f}, {high:+.3f}]"
        change = "no slope" if pd.isna(slope) else f"{slope:+.3f}{interval} nats per doubling of {first['scale_name']}"
        yield f"{name} {change} ({first['next_shapes']})"


GAINS = Statistic(
    name="gains",
    title="How does the loss change with the scale at the same HPs?",
    note="Losses at the same HPs at every shape of an axis, as means over seeds. The band is the range of seeds.",
    compute=_gains,
    columns=GAIN_COLUMNS,
    hidden=("scale_name",),
)
