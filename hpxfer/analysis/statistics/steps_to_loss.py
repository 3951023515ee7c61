"""Which arms of a sweep are compared over their whole runs, with which reference, and the answers of all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpxfer.analysis.references import ReferenceCurve
from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.reference_arm import Cost, arms_of
from hpxfer.analysis.statistics.same_loss import (
    ArmRun,
    LossCurve,
    Reached,
    against_arm,
    against_curve,
    curve_from,
    curve_of,
)
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.analysis.statistics.transferred import Curve, TrainedShape, curves_by_trial, transferred
from hpxfer.scaling.shape import Shape
from hpxfer.spec import DataSpec, PointData
from hpxfer.verdict import ShapeLosses


@dataclass(frozen=True, kw_only=True)
class StepsToLoss:
    """The arms of one parameterization along one axis against their references, and the curves of all of them."""

    axis: str
    parameterization: str
    hp: str
    value: float | None = None  # of the HP, transferred from the base to every arm
    rows: tuple[Reached, ...] = ()
    curves: tuple[LossCurve, ...] = ()
    why_not: str | None = None


def _answers(inputs: Inputs) -> list[StepsToLoss]:
    known, arms = inputs.once(transferred), arms_of(inputs)
    best = {
        (label, shape): found
        for label, rows in arms.rows.items()
        for shape, row in rows.items()
        if (found := _at_best(row, shape)) is not None
    }
    groups = (*known.along.values(), best.values())
    used = {trial for group in groups for trained in group for trial in trained.trials}
    curves = curves_by_trial(inputs.results.curves, "train_loss_nats", used) if used else {}

    def run(trained: TrainedShape, of: str = "") -> ArmRun:
        return _run(trained, of, curves, arms.cost[trained.shape], inputs.training_data(trained.shape))

    out = []
    for finding in known.findings:
        blank = StepsToLoss(
            axis=finding.axis, parameterization=finding.parameterization, hp=inputs.hp, value=finding.base_value
        )
        if finding.base_value is None:
            out.append(replace(blank, why_not=NO_BASE_VALUE))
            continue
        pairs: list[tuple[ArmRun, ArmRun | None]] = []
        for trained in known.along[finding.key]:
            key = arms.reference(finding.parameterization, trained.shape)
            against = None if key is None else best.get(key)
            if key is not None and against is not None and against.trials != trained.trials:
                own = key[0] == finding.parameterization
                pairs.append((run(trained), run(against, "" if own else f"{key[0]} ")))
            else:
                pairs.append((run(trained), None))
        out.append(compared(pairs, inputs.references.curves, blank))
    return out


def compared(
    pairs: Sequence[tuple[ArmRun, ArmRun | None]], elsewhere: Sequence[ReferenceCurve], blank: StepsToLoss
) -> StepsToLoss:
    """Return `blank` with a row for every arm and each of its references, and the curves of all.

    `pairs` are the arms, by scale, and the arm that each is compared with, or None where it is a reference itself.
    """
    rows = [against_arm(reference, arm) for arm, reference in pairs if reference is not None]
    rows += [against_curve(curve, arm) for curve in elsewhere for arm, _ in pairs]
    references = {reference.name: reference for _, reference in pairs if reference is not None}
    drawn = [curve_of(reference, "reference") for reference in references.values()]
    drawn += [curve_of(arm, "arm") for arm, _ in pairs if arm.name not in references]
    curves = [curve for curve in drawn if curve is not None] + [curve_from(curve) for curve in elsewhere]
    why = None if rows else "no two arms to compare: no dense shape, no control and one shape"
    return replace(blank, rows=tuple(rows), curves=tuple(curves), why_not=why)


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
    title="Steps to the same loss",
    note="When an arm has the training loss that its reference ends at. The speed-up is the steps of the whole "
    "reference over those of the arm. Arms have the HP transferred from the base, a reference its own best one. Losses "
    "are means over the last tenth of the steps so far. Medians and ranges over paired seeds; an arm that diverged "
    "does not reach the loss. Arms that train on different data are not compared.",
    compute=_answers,
    parts="rows",
)
