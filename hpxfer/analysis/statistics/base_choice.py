"""Which base is large enough? Every measured shape as the base, what tuning there costs, and the one to choose."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import pandas as pd

from hpxfer.analysis.statistics.bases import BaseReading, read_bases
from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Found, Statistic, arms, by_axis, frame_of, listed
from hpxfer.errors import HpxferError
from hpxfer.host import shape_label
from hpxfer.model.cost import train_flops
from hpxfer.registry import registry
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.monomial import ONE, ZERO
from hpxfer.verdict import Finding, JudgedLine, LossGrid, Rules

COLUMNS = {
    "axis": "the axis of the sweep",
    "parameterization": "the arm",
    "hp": "an HP that is scanned",
    "scale_name": "what the scale is",
    "in_brief": "the smallest shape to tune at, and what the optimum does from shape to shape",
    "shape": "a shape as the base",
    "scale": "of the shape",
    "tuned_value": "the HP that is best there, in units of the sweep's base",
    "verdict": "on this shape and all larger ones; None at the largest",
    "transfer_chance": "the probability that the HP can be reused from here on",
    "loss_given_up_nats": "at the largest shape; None if the HP diverges there",
    "loss_given_up_low": "its 95% interval, nats",
    "loss_given_up_high": "its upper end",
    "limit_nats": "the largest loss given up that counts as none",
    "octaves_to_next": "by which the optimum of the next shape lies above that of this one",
    "octaves_low": "its 95% interval",
    "octaves_high": "its upper end",
    "tuning_flops": "of all trials of the HP's line at this shape",
    "diverges": "whether the HP diverges at the largest shape",
    "recommended": "whether this is the smallest shape to tune at",
    "advice": "in one sentence",
    "trend": "what the steps of the optimum do from shape to shape",
    "transfers_from": "the smallest shape whose HP can be reused at all larger ones",
}


def _bases(inputs: Inputs) -> Found:
    unscaled, flops = set[str](), dict[tuple[str, str], float | None]()
    if inputs.of_sweep is not None:
        expanded = inputs.results.expansion.arms
        unscaled = {label for label, (_, choice) in expanded.items() if not scales_training(choice)}
        flops = _trial_flops(inputs)
    readings = [reading for line in inputs.lines for reading in _of_line(line, inputs.rules, unscaled, flops)]
    unknown = [(f"{' '.join(each.key)} {each.hp}", each.why_not) for each in readings if each.why_not is not None]
    frame = frame_of((row for each in readings if each.why_not is None for row in _rows(each)), COLUMNS)
    of_judged = frame[frame["hp"] == inputs.hp]
    return Found(frame=frame, title=by_axis(of_judged, _said), unknown=tuple(unknown))


def _rows(reading: BaseReading) -> Iterator[dict[str, Any]]:
    of = {
        name: getattr(reading, name)
        for name in ("axis", "parameterization", "hp", "scale_name", "in_brief", "advice", "trend", "transfers_from")
    }
    for row in reading.bases:
        yield {
            **of,
            **asdict(row),
            "loss_given_up_nats": None if row.loss_given_up_nats == math.inf else row.loss_given_up_nats,
            "diverges": row.loss_given_up_nats == math.inf,
            "recommended": reading.name(row) == reading.recommended,
        }


def _said(frame: pd.DataFrame) -> str:
    return listed([f"{name} {_recommended(rows)}" for name, rows in arms(frame)])


def _recommended(rows: pd.DataFrame) -> str:
    found = rows[rows["recommended"].astype(bool)]
    return shape_label(found["scale_name"].iloc[0], found["scale"].iloc[0]) if len(found) else "none"


def _of_line(
    line: JudgedLine, rules: Rules, unscaled: set[str], flops: Mapping[tuple[str, str], float | None]
) -> list[BaseReading]:
    """Return the readings of one line. Grids without a base are read too, as the noise of seeds is pooled over all."""
    grids = [estimates.grid for estimates in line.estimates]
    finding_of = {finding.key: finding for finding in line.report.findings}
    readings = read_bases(line.estimates, [finding_of[grid.key] for grid in grids], line.hp, rules)
    return [
        replace(_blank(grid, line.hp), why_not=why)
        if (why := _why_not(finding_of[grid.key], unscaled))
        else _with_flops(reading, grid, flops)
        for reading, grid in zip(readings, grids, strict=True)
    ]


def _why_not(finding: Finding, unscaled: Collection[str]) -> str | None:
    """Return why no base is named for an arm; None if one may be."""
    if finding.parameterization in unscaled:
        return f"{finding.parameterization} has no base: nothing scales with it"
    if finding.lacking:
        return f"no base is seen to be large enough: {', '.join(finding.lacking)}"
    return None


def _blank(grid: LossGrid, hp: str) -> BaseReading:
    return BaseReading(axis=grid.axis, parameterization=grid.parameterization, hp=hp)


def scales_training(choice: Parameterization) -> bool:
    """Return whether a table scales an LR, an eps, a weight decay or an output with the ratios shape/base.

    A table that scales none of them, such as `sp`, trains every shape with the same numbers, whatever the base is. Its
    initialization alone depends on the shape, by the fan-in. The table of a plug-in that is not loaded counts as one
    that scales.
    """
    if choice.name not in registry("parameterization"):
        return True
    table = choice.table
    factors = [table.route_scale, table.one_minus_beta]
    for column in table.rows:
        for row in choice.rows(column):
            factors += [row.lr, row.eps, row.weight_decay, row.forward]
    return any(factor not in (ONE, ZERO) for factor in factors)


def _trial_flops(inputs: Inputs) -> dict[tuple[str, str], float | None]:
    """Return (axis, name of a shape) -> the FLOPs of one trial.

    None if they are not known: those of a plug-in that is not loaded, or of a user's own trainer.
    """
    expansion = inputs.results.expansion
    out: dict[tuple[str, str], float | None] = {}
    for key, shape in inputs.shapes.items():
        try:
            out[key] = train_flops(shape, expansion.setting_at(shape)) or None  # 0: a user's own trainer
        except HpxferError:
            out[key] = None
    return out


def _with_flops(reading: BaseReading, grid: LossGrid, flops: Mapping[tuple[str, str], float | None]) -> BaseReading:
    """Return a reading with the FLOPs of all planned trials of the line at each shape."""
    num_trials = {row.shape: row.num_trials for row in grid.rows}
    bases = [
        replace(base, tuning_flops=None if each is None else each * num_trials[base.shape])
        for base in reading.bases
        for each in (flops.get((reading.axis, base.shape)),)
    ]
    return replace(reading, bases=tuple(bases))


BASES = Statistic(
    name="bases",
    title="Which base is large enough?",
    note="A row tunes the HP at one shape and uses it at all larger ones. In brief: the smallest shape to tune at, and "
    "what the steps of the optimum from shape to shape do. The verdict is on this shape and all larger ones, the loss "
    "is given up at the largest one, and intervals hold 95%. The tuned value is in units of the sweep's base.",
    compute=_bases,
    columns=COLUMNS,
    hidden=("scale_name", "advice", "trend", "transfers_from", "diverges", "recommended"),
    of_lines=True,
)
