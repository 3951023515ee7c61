"""Every shape at the HP value that was transferred to it, with its trials, curves and parameter counts."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.intervals import Floats
from hpxfer.scaling.shape import Shape
from hpxfer.verdict import Finding, SeedLosses, ShapeLosses

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


Key = tuple[str, str]  # axis, parameterization


@dataclass(frozen=True, kw_only=True)
class TrainedShape:
    """One shape of one parameterization at one HP value. `cell` has no losses where no trial has a result."""

    row: ShapeLosses
    cell: SeedLosses
    shape: Shape

    @property
    def trials(self) -> tuple[str, ...]:
        """The ids of the trials that have a result, by seed."""
        return tuple(self.cell.trial_of.values())


@dataclass(frozen=True, kw_only=True, eq=False)
class Transferred:
    """What the statistics at the transferred HP share."""

    findings: tuple[Finding, ...]  # on the judged HP, by axis and parameterization
    along: Mapping[Key, tuple[TrainedShape, ...]]  # the shapes at a finding's base value, by scale; none without one
    # For each parameterization the HP that all axes transferred, and the distinct shapes of all axes at it.
    over_all: Mapping[str, tuple[float | None, tuple[TrainedShape, ...]]]
    curves: Mapping[str, Curve]  # trial_id -> training loss in nats
    diverged_steps: Mapping[str, int]  # trial_id -> step, of the trials that diverged
    params: Mapping[str, Mapping[str, float]]  # trial_id -> number of parameters, by how they are counted

    def complete_curves(self, trained: TrainedShape) -> dict[int, Curve]:
        """Return seed -> curve; empty if a seed diverged."""
        if any(trial in self.diverged_steps for trial in trained.trials):
            return {}
        return {seed: self.curves[trial] for seed, trial in trained.cell.trial_of.items() if trial in self.curves}


def transferred(inputs: Inputs) -> Transferred:
    """Return the shapes at the HPs that the report on the judged HP transferred; nothing if there is no such report."""
    known = () if inputs.judged is None else inputs.judged.report.findings
    findings = tuple(sorted(known, key=lambda finding: finding.key))
    along = {finding.key: _trained(inputs, finding.key, finding.base_value) for finding in findings}
    over_all = {}
    for label in sorted({finding.parameterization for finding in findings}):
        members = [finding for finding in findings if finding.parameterization == label]
        value = members[0].base_value  # one base hands on one value along all axes
        every = [trained for finding in members for trained in _trained(inputs, finding.key, value)]
        over_all[label] = (value, _distinct(every))
    groups = [*along.values(), *(found for _, found in over_all.values())]
    used = {trial for group in groups for trained in group for trial in trained.trials}
    trials = inputs.results.trials[inputs.results.trials["trial_id"].isin(used)]
    diverged = trials[trials["diverged_step"].notna()]
    return Transferred(
        findings=findings,
        along=along,
        over_all=over_all,
        curves=curves_by_trial(inputs.results.curves, "train_loss_nats", used) if used else {},
        diverged_steps={
            str(trial): int(step) for trial, step in zip(diverged["trial_id"], diverged["diverged_step"], strict=True)
        },
        params=params_of(trials),
    )


def params_of(trials: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return trial_id -> number of parameters by how they are counted, see `scaling_fit.COUNTS`.

    `without embedding` leaves out the embeddings of tokens and positions and an untied readout. These grow with the
    vocabulary and the context, not with the network.
    """
    out = {}
    columns = ("trial_id", "params_total", "params_active", "width", "vocab_size", "context", "setting")
    for trial, total, active, width, vocabulary, context, setting in zip(
        *(trials[name] for name in columns), strict=True
    ):
        tables = 1 if '"tied_embeddings":true' in setting or json.loads(setting).get("tied_embeddings") else 2
        embedding = float(width * (tables * vocabulary + context))
        out[str(trial)] = {
            "total": float(total),
            "active": float(active),
            "total without embedding": float(total) - embedding,
            "active without embedding": float(active) - embedding,
        }
    return out


def _trained(inputs: Inputs, key: Key, value: float | None) -> tuple[TrainedShape, ...]:
    """Return the shapes along an axis at one HP value, by scale; none without a value."""
    if inputs.judged is None or value is None:
        return ()
    nothing = SeedLosses(value=value, seeds=(), losses=(), num_missing=0)
    return tuple(
        TrainedShape(row=row, cell=row.cell(value) or nothing, shape=inputs.shapes[row.axis, row.shape])
        for row in inputs.judged.by_key[key].grid.rows
    )


def _distinct(every: Sequence[TrainedShape]) -> tuple[TrainedShape, ...]:
    """Return each shape once, as the base is on every axis."""
    first: dict[Shape, TrainedShape] = {}
    for trained in every:
        first.setdefault(trained.shape, trained)
    return tuple(first.values())
