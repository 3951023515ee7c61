"""A recipe from the results of a sweep and the report on them. Pure: the same results give the same recipe."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import hpxfer
from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.recipe.facts import model_facts, training_facts
from hpxfer.recipe.file import (
    RECIPE_VERSION,
    AxisPart,
    FittedPart,
    HPsPart,
    InitPart,
    LossName,
    ModelPart,
    ProvenancePart,
    RecipeFile,
    SearchPart,
    TablePart,
    TrainingPart,
)
from hpxfer.recipe.recipe import Recipe
from hpxfer.recipe.resolved import DIMS, dim
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.search import judged_by, kind_of, tuned, tunes_points
from hpxfer.spec import SweepSpec, arm_budget, axes_of
from hpxfer.trial import base_hps

if TYPE_CHECKING:
    from hpxfer.analysis import Finding, Optimum, ShapeFinding, TransferReport
    from hpxfer.host import JudgedLoss
    from hpxfer.results import Results


def recipe_of(results: Results, parameterization: str | None = None) -> Recipe:
    """Return the recipe of one parameterization of a sweep with any search, by default of the first one.

    Raises HpxferError if nothing has been tuned at the base.
    """
    if tunes_points(results.spec):
        return _recipe_of_point(results, arm_of(results, parameterization))
    from hpxfer.analysis import transfer_report

    return recipe_from_results(results, transfer_report(results), parameterization)


def recipe_from_results(results: Results, report: TransferReport, parameterization: str | None = None) -> Recipe:
    """Return the recipe of one arm of a sweep, given by its label, its name or its table, by default of the first one.

    The judged HP takes its best measured value at the base, and each other HP its base value. A search that tunes
    points, and a product grid at the base alone, gives all HPs of its best point, and says nothing about transfer.
    Raises HpxferError if the base has no optimum.
    """
    label = arm_of(results, parameterization)
    if tunes_points(results.spec):
        return _recipe_of_point(results, label)
    part, choice = results.expansion.arms[label]
    spec = part.spec
    if spec.has_fixed_hps:
        why = f"every HP has one value, so that nothing was tuned; scan at least 3 values in grid.{report.hp}"
        raise HpxferError(f"{results.folder}: no recipe for {label}: {why}")
    findings = [finding for finding in report.findings if finding.parameterization == label]
    base, value = _base(findings, f"{results.folder}: no recipe for {label}", report.hp)
    hps = base_hps(spec).with_value(report.hp, value)
    return _recipe(spec, choice, hps, _fitted(spec, report, findings, base, value), _provenance(results))


def _recipe_of_point(results: Results, label: str) -> Recipe:
    """Return the recipe of the point that a search tuned at the base."""
    part, choice = results.expansion.arms[label]
    spec, found = part.spec, tuned(results, label)
    search = SearchPart(
        kind=spec.search.kind,
        hps=kind_of(spec).hps(spec),
        budget=arm_budget(spec),
        num_trials=found.num_trials,
        num_points=found.num_points,
        why=found.why,
        bounds=found.bounds,
    )
    fitted = FittedPart(
        hp=spec.judged_hp,
        value=found.hps.get(spec.judged_hp),
        optimum=None,
        optimum_of_seeds=None,
        open_because=f"it is the best of the points that {spec.search.kind} tried, not the bottom of a fitted line",
        loss=spec.judge.loss,
        **_loss(judged_by(spec), statistics.median(found.losses)),
        axes={},
    )
    provenance = _provenance(results).model_copy(update={"search": search})
    return _recipe(spec, choice, found.hps, fitted, provenance)


def _recipe(
    spec: SweepSpec, choice: Parameterization, hps: HPs, fitted: FittedPart, provenance: ProvenancePart
) -> Recipe:
    init = spec.model.base_init(spec.data.inputs)
    assert spec.precision != "auto", "a stored sweep names the precision of its trials"
    return Recipe(
        RecipeFile(
            hpxfer_recipe=RECIPE_VERSION,
            family=spec.model.family,
            parameterization=TablePart(name=choice.name, conventions=dict(choice.conventions)),
            optimizer=spec.training.optimizer,
            base_shape={name: size for name, size in spec.base_shape.dims().items() if isinstance(size, int)},
            own_shape=spec.base_shape.own_dims or None,
            hps=HPsPart(**{**vars(hps), "multipliers": dict(hps.multipliers)}),
            init=InitPart(**vars(init)),
            model=ModelPart(**model_facts(spec, choice)),
            training=TrainingPart(**training_facts(spec)),
            fitted=fitted,
            provenance=provenance,
        )
    )


def arm_of(results: Results, name: str | None) -> str:
    """Return the label of an arm of the sweep, by its label, or by its name or its table if no other arm has it.

    The table of a plug-in need not be registered here.
    """
    arms = results.expansion.arms
    if name is None or name in arms:
        return name or next(iter(arms))
    found = [label for label, (part, choice) in arms.items() if name in (part.name, choice.name)]
    if not found:
        raise HpxferError(f"parameterization: must be one of the sweep's, got {shown(name)}; {nearest(name, arms)}")
    if len(found) > 1:
        raise HpxferError(
            f"parameterization: must name one of the sweep's, got {shown(name)}; give {' or '.join(found)}"
        )
    return found[0]


def _base(findings: Sequence[Finding], where: str, hp: str) -> tuple[ShapeFinding, float]:
    """Return the finding at the base shape and the best measured value of the HP there."""
    base = next((shape for finding in findings for shape in finding.shapes if shape.is_base), None)
    if base is None:
        raise HpxferError(f"{where}: the base shape has no trials in the report; run the sweep again")
    value = findings[0].base_value
    if value is None or base.best_loss is None:
        why = base.optimum.open_because or "no optimum"
        rule = f"{hp} must have an optimum at the base, got none"
        raise HpxferError(f"{where}: {rule}: {why}; run it again, or scan more values in grid.{hp}")
    return base, value


def _fitted(
    spec: SweepSpec, report: TransferReport, findings: Sequence[Finding], base: ShapeFinding, value: float
) -> FittedPart:
    optimum = base.optimum
    estimate = optimum.log2_value if optimum.kind == "interior" else None
    assert base.best_loss is not None
    return FittedPart(
        hp=report.hp,
        value=value,
        optimum=None if estimate is None else 2.0**estimate,
        optimum_of_seeds=_of_seeds(optimum),
        open_because=optimum.open_because,
        loss=cast(LossName, report.loss),
        **_loss(report.judged, base.best_loss),
        axes={finding.axis: _axis(spec, finding) for finding in findings},
    )


def _loss(judged: JudgedLoss, loss: float) -> dict[str, Any]:
    """Return a loss in the fields of its unit."""
    if judged.unit == "nats":
        return {"loss_nats": loss}
    return {"loss_nats": None, "unit": judged.unit, "loss_value": loss}


def _of_seeds(optimum: Optimum) -> tuple[float, float] | None:
    if optimum.seed_low_log2 is None or optimum.seed_high_log2 is None:
        return None
    return 2.0**optimum.seed_low_log2, 2.0**optimum.seed_high_log2


def _axis(spec: SweepSpec, finding: Finding) -> AxisPart:
    """Return how far and how well the HP transfers. Shapes without a result at the transferred HP do not count."""
    measured = [shape for shape in finding.shapes if shape.is_base or shape.transferred != "missing"]
    labels = {shape.shape for shape in measured}
    shapes = [
        point.shape
        for path in axes_of(spec)
        if path.name == finding.axis
        for point in path.points
        if path.label(point.shape) in labels
    ]
    ends = {name: [pick(dim(shape, name) for shape in shapes) for pick in (min, max)] for name in DIMS}
    worst = finding.worst.regret_nats if finding.worst else None
    largest: float | Literal["diverges"] | None = "diverges" if worst == math.inf else worst
    in_nats = finding.judged.unit == "nats"
    return AxisPart(
        scale_name=finding.scale_name,
        range=(min(shape.scale for shape in measured), max(shape.scale for shape in measured)),
        dims={name: (low, high) for name, (low, high) in ends.items() if low != high},
        verdict=finding.verdict,
        largest_regret_nats=largest if in_nats else None,
        noise_nats=finding.noise_nats if in_nats else None,
        largest_regret=None if in_nats else largest,
        noise=None if in_nats else finding.noise_nats,
    )


def _provenance(results: Results) -> ProvenancePart:
    """Return where the numbers come from. Stored trials that the sweep no longer has do not count."""
    spec = results.spec
    trials = results.trials[results.trials["trial_id"].isin(results.cells["trial_id"])]
    done = trials[trials["status"] != "failed"]
    versions: dict[str, set[str]] = {}
    for text in done["versions"].dropna().unique():
        for name, version in json.loads(text).items():
            versions.setdefault(name, set()).add(version)
    data = results.expansion.data
    last = done["finished_at"].dropna().max()
    return ProvenancePart(
        made="by a sweep",
        sweep=spec.name,
        data_digest=data.digest,
        tokenizer=data.tokenizer,
        vocab_size=data.vocab_size,
        num_trials=len(done),
        seeds=spec.seeds,
        measured=last[:10] if isinstance(last, str) else None,
        hpxfer=hpxfer.__version__,
        versions={name: tuple(sorted(found)) for name, found in sorted(versions.items())},
        recipe=None if spec.hps.recipe is None else f"{spec.hps.recipe.digest}, {spec.hps.recipe.origin}",
        plugins=tuple(plugin.name for plugin in spec.plugins or ()) or None,
    )
