"""At fixed HPs, does every larger shape do better, and by how much per doubling of the scale? Paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.joint_drift import by_common_seed, slope_of_seeds
from hpxfer.analysis.statistics.statistic import Chart, Found, Statistic, arms, by_axis, frame_of, listed
from hpxfer.intervals import mean_interval

COLUMNS = {
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
    "gain_nats": "by which the loss is below that of the shape before; None if a trial diverged or no seed is common",
    "gain_low_nats": "its 95% interval; None with fewer than two common seeds",
    "gain_high_nats": "its upper end",
    "monotone": "True if every gain is surely above zero, False if one is surely below, None if unknown",
}
MONOTONE = {True: "each next shape is surely better", False: "a next shape is surely worse"}
NO_STEP = "fewer than two shapes have a loss"


def gain_rows(shapes: Sequence[tuple[str, float, Mapping[int, float]]]) -> list[dict[str, Any]]:
    """Return a row per shape. `shapes` has its name, its scale, and seed -> loss in nats, +inf if it diverged."""
    ordered = sorted(shapes, key=lambda each: each[1])
    x, loss_SN = by_common_seed([(scale, losses) for _, scale, losses in ordered if _is_known(losses)])
    slope = slope_of_seeds(x, loss_SN) if loss_SN.size and np.ptp(x) > 0 else (None, None, None)
    of_axis = dict(zip(("slope_nats", "slope_low_nats", "slope_high_nats"), slope, strict=True))
    rows, before = list[dict[str, Any]](), dict[int, float]()
    for name, scale, losses in ordered:
        row = {"shape": name, "scale": scale, "num_seeds": len(losses), **of_axis, **_gain(before, losses)}
        if _is_known(losses):
            of_seeds = list(losses.values())
            row |= {"loss_nats": float(np.mean(of_seeds)), "lowest_nats": min(of_seeds), "highest_nats": max(of_seeds)}
        rows.append(row)
        before = dict(losses)
    monotone = _monotone(rows[1:])
    return [{**row, "monotone": monotone} for row in rows]


def _is_known(losses: Mapping[int, float]) -> bool:
    return bool(losses) and all(map(math.isfinite, losses.values()))


def _gain(before: Mapping[int, float], losses: Mapping[int, float]) -> dict[str, float | None]:
    pairs = [(before[seed], losses[seed]) for seed in losses if seed in before]
    is_known = pairs and np.isfinite(pairs).all()
    gain = mean_interval(np.subtract(*np.transpose(pairs))) if is_known else (None, None, None)
    return dict(zip(("gain_nats", "gain_low_nats", "gain_high_nats"), gain, strict=True))


def _monotone(steps: Sequence[Mapping[str, Any]]) -> bool | None:
    if any(step["gain_high_nats"] is not None and step["gain_high_nats"] < 0 for step in steps):
        return False
    return all(step["gain_low_nats"] is not None and step["gain_low_nats"] > 0 for step in steps) or None


def _gains(inputs: Inputs) -> Found:
    line, rows, unknown = inputs.judged, list[dict[str, Any]](), []
    for finding in sorted(line.report.findings if line else (), key=lambda finding: finding.key):
        value, found = finding.base_value, list[tuple[str, float, Mapping[int, float]]]()
        if line is not None and value is not None:
            cells = [(row, row.cell(value)) for row in line.by_key[finding.key].grid.rows]
            found = [(row.shape, row.scale, cell.by_seed if cell else {}) for row, cell in cells]
        if sum(bool(losses) for _, _, losses in found) < 2:
            unknown.append((f"{' '.join(finding.key)} {inputs.hp}", NO_BASE_VALUE if value is None else NO_STEP))
            continue
        of = {"axis": finding.axis, "parameterization": finding.parameterization, "hp": inputs.hp, "value": value}
        rows += [{**of, "scale_name": finding.scale_name, **row} for row in gain_rows(found)]
    frame = frame_of(rows, COLUMNS)
    spec = inputs.of_sweep.spec if inputs.of_sweep else None
    chart = Chart(
        x="scale",
        y="loss_nats",
        color="parameterization",
        panel="axis",
        low="lowest_nats",
        high="highest_nats",
        log=("x",),
    )
    return Found(
        frame=frame,
        title=by_axis(frame, lambda rows: listed(list(_said(rows)))),
        unknown=tuple(unknown),
        chart=chart if spec and (spec.has_fixed_hps or "gains" in (spec.judge.about or ())) else None,
    )


def _said(frame: pd.DataFrame) -> Iterator[str]:
    for name, rows in arms(frame):
        first = rows.iloc[0]
        slope, low, high = (first[end] for end in ("slope_nats", "slope_low_nats", "slope_high_nats"))
        interval = "" if pd.isna(low) else f" [{low:+.3f}, {high:+.3f}]"
        change = "no slope" if pd.isna(slope) else f"{slope:+.3f}{interval} nats per doubling of {first['scale_name']}"
        yield f"{name} {change} ({MONOTONE.get(first['monotone'], 'not each next shape is surely better')})"


GAINS = Statistic(
    name="gains",
    title="Does a larger model always win at the same HPs, and by how much?",
    note="Losses at the same HPs at every shape of an axis, as means over seeds; the band is their range. Gains over "
    "the shape before are paired over seeds; 95% intervals. Monotone: yes if every gain is surely above zero, no if "
    "one is surely below, empty if the seeds do not tell.",
    compute=_gains,
    columns=COLUMNS,
    of_lines=True,
    hidden=("scale_name", "lowest_nats", "highest_nats"),
)
