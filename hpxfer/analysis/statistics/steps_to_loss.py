"""Which arms of a sweep are compared over their whole runs, with which reference, and the answers of all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from hpxfer.analysis.references import ReferenceCurve
from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.reference_arm import Cost, arms_of
from hpxfer.analysis.statistics.same_loss import (
    CURVE,
    REACHED,
    ArmRun,
    Row,
    against_arm,
    against_curve,
    curve_from,
    curve_of,
)
from hpxfer.analysis.statistics.statistic import Found, Statistic, arms, by_axis, frame_of, listed
from hpxfer.analysis.statistics.transferred import Curve, TrainedShape, curves_by_trial, transferred
from hpxfer.scaling.shape import Shape
from hpxfer.spec import DataSpec, PointData
from hpxfer.verdict import ShapeLosses

LABELS = {
    "axis": "the axis of the sweep",
    "parameterization": "of the arm",
    "hp": "the judged HP",
}
NO_PAIR = "no two arms to compare: no dense shape, no control and one shape"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The arms of one parameterization along one axis against their references, and the curves of all of them."""

    rows: tuple[Row, ...] = ()
    curves: tuple[Row, ...] = ()
    why_not: str | None = None


def _answers(inputs: Inputs) -> list[tuple[dict[str, str], Compared]]:
    known, by_arm = inputs.once(transferred), arms_of(inputs)
    best = {
        (label, shape): found
        for label, rows in by_arm.rows.items()
        for shape, row in rows.items()
        if (found := _at_best(row, shape)) is not None
    }
    groups = (*known.along.values(), best.values())
    used = {trial for group in groups for trained in group for trial in trained.trials}
    curves = curves_by_trial(inputs.results.curves, "train_loss_nats", used) if used else {}

    def run(trained: TrainedShape, of: str = "") -> ArmRun:
        return _run(trained, of, curves, by_arm.cost[trained.shape], inputs.training_data(trained.shape))

    out = []
    for finding in known.findings:
        labels = {"axis": finding.axis, "parameterization": finding.parameterization, "hp": inputs.hp}
        if finding.base_value is None:
            out.append((labels, Compared(why_not=NO_BASE_VALUE)))
            continue
        pairs: list[tuple[ArmRun, ArmRun | None]] = []
        for trained in known.along[finding.key]:
            key = by_arm.reference(finding.parameterization, trained.shape)
            against = None if key is None else best.get(key)
            if key is not None and against is not None and against.trials != trained.trials:
                own = key[0] == finding.parameterization
                pairs.append((run(trained), run(against, "" if own else f"{key[0]} ")))
            else:
                pairs.append((run(trained), None))
        out.append((labels, compared(pairs, inputs.references.curves)))
    return out


def compared(pairs: Sequence[tuple[ArmRun, ArmRun | None]], elsewhere: Sequence[ReferenceCurve]) -> Compared:
    """Return a row for every arm and each of its references, and the curves of all.

    `pairs` are the arms, by scale, and the arm that each is compared with, or None where it is a reference itself.
    """
    rows = [against_arm(reference, arm) for arm, reference in pairs if reference is not None]
    rows += [against_curve(curve, arm) for curve in elsewhere for arm, _ in pairs]
    references = {reference.name: reference for _, reference in pairs if reference is not None}
    drawn = [curve_of(reference, "reference") for reference in references.values()]
    drawn += [curve_of(arm, "arm") for arm, _ in pairs if arm.name not in references]
    drawn += [curve_from(curve) for curve in elsewhere]
    points = tuple(row for curve in drawn for row in curve)
    return Compared(rows=tuple(rows), curves=points, why_not=None if rows else NO_PAIR)


def _reached(inputs: Inputs) -> Found:
    every = inputs.once(_answers)
    frame = frame_of(({**labels, **row} for labels, of in every for row in of.rows), LABELS | REACHED)
    unknown = [(" ".join(labels.values()), of.why_not) for labels, of in every if of.why_not is not None]
    return Found(
        frame=frame, title=by_axis(frame, lambda rows: listed([*map(_best, arms(rows))])), unknown=tuple(unknown)
    )


def _best(arm: tuple[str, pd.DataFrame]) -> str:
    name, rows = arm
    best = rows.sort_values("speed_up", ascending=False, kind="stable").iloc[0]
    if not best["speed_up"] > 0:
        return f"{name} at no shape"
    speed = best["speed_up"]
    factor = f"{speed:.3g}x earlier" if speed >= 1 else f"{1 / speed:.3g}x later"
    return f"{name} {factor} than {best['reference']} at {best['arm']}"


def _curves(inputs: Inputs) -> Found:
    every = inputs.once(_answers)
    kept = (({**labels, **row}) for labels, of in every if of.why_not is None for row in of.curves)
    return Found(frame=frame_of(kept, LABELS | CURVE))


def _at_best(row: ShapeLosses, shape: Shape) -> TrainedShape | None:
    """Return a shape at the HP value with its lowest mean loss; None if a seed diverged at every value."""
    cells = [(cell.mean, cell) for cell in row.cells if cell.mean is not None]
    if not cells:
        return None
    return TrainedShape(row=row, cell=min(cells, key=lambda found: found[0])[1], shape=shape)


def _run(trained: TrainedShape, of: str, curves: Mapping[str, Curve], cost: Cost, data: DataSpec | PointData) -> ArmRun:
    """Return a shape at its HP value as an arm, its name preceded by `of`."""
    losses = trained.cell.by_seed
    diverged = frozenset(seed for seed, loss in losses.items() if math.isinf(loss))
    return ArmRun(
        name=f"{of}{trained.row.shape}",
        value=trained.cell.value,
        curves={
            seed: curves[trial]
            for seed, trial in trained.cell.trial_of.items()
            if seed not in diverged and trial in curves
        },
        diverged=diverged,
        planned=frozenset(seed for seed, _ in trained.cell.trials),
        batch_tokens=trained.shape.batch_tokens,
        data=data.source,
        data_digest=data.digest,
        flops_per_token=cost.flops_per_token,
        active=cost.active,
    )


STEPS_TO_LOSS = Statistic(
    name="steps_to_loss",
    title="After how many steps has each arm the loss of its reference?",
    note="When an arm has the training loss that its reference ends at. The speed-up is the steps of the whole "
    "reference over those of the arm. Arms have the HP transferred from the base, a reference its own best one. Losses "
    "are means over the last tenth of the steps so far. Medians and ranges over paired seeds; an arm that diverged "
    "does not reach the loss. Arms that train on different data are not compared.",
    compute=_reached,
    columns=LABELS | REACHED,
    hidden=("elsewhere",),
)
LOSS_CURVES = Statistic(
    name="loss_curves",
    title="The training losses of the arms and of their references",
    compute=_curves,
    columns=LABELS | CURVE,
    is_table=False,
)
