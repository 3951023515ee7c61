"""What was observed along an axis, held to the two sources of predictions: a table's own rows, and what is stable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpxfer.coordinates.derive import NOT_DERIVED, derive
from hpxfer.coordinates.measure import (
    TOLERANCE,
    ByScale,
    Kind,
    Observation,
    Prediction,
    by_scale,
    everywhere,
    fit,
    over_blocks,
    over_layers,
)
from hpxfer.coordinates.path_facts import PathFacts
from hpxfer.coordinates.report import AxisReport, not_tested
from hpxfer.coordinates.stability import good_table
from hpxfer.scaling.coverage import ModelFacts, coverage_warnings
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column

Names = Mapping[tuple[str, str], tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Path:
    """A table along a path of shapes, and what the derivation reads of the model on it."""

    choice: Parameterization
    optimizer: Column
    axis: str
    scale_name: str
    scales: tuple[float, ...]
    base: Shape
    shapes: tuple[Shape, ...]
    facts: PathFacts
    gate: str
    roles: tuple[str, ...]  # of the tensors that the optimizer moves
    names: Names = field(default_factory=dict)  # what predictions are about -> its name in this family
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # measures, of which nothing is predicted


def answers(
    path: Path,
    observations: Sequence[Observation],
    *,
    more: Sequence[Prediction] = (),
    tolerance: float = TOLERANCE,
    notes: Sequence[str] = (),
) -> AxisReport:
    """Return the report of an axis: does the model follow the table's rows, and do features keep their size?

    `more` are further predictions that follow from the rows.
    """
    measures = [seen for seen in observations if seen.quantity in path.kinds]
    observations = [seen for seen in observations if seen.quantity not in path.kinds]
    whole = [*(seen for seen in observations if seen.layer is None), *over_layers(observations)]
    rows = _named((*more, *derive(path.choice, path.optimizer, path.facts), *NOT_DERIVED), path.names)
    good = _named(good_table(path.choice, path.optimizer, path.facts), path.names)
    stability = fit((seen for seen in whole if any(each.is_about(seen) for each in good)), good, tolerance)
    fits = fit([*whole, *everywhere(observations, len(path.shapes))], rows, tolerance)
    # A table follows its own rows, right or wrong. A module that follows those of a recipe is wired by them.
    judged = (*fits, *stability) if more else stability
    plain = {named: what for what, named in path.names.items()}
    judged = tuple(
        replace(each, quantity=quantity, role=role)
        for each in judged
        for quantity, role in [plain.get((each.quantity, each.role), (each.quantity, each.role))]
    )
    model = ModelFacts(gate=path.gate, tied_embeddings=path.facts.tied_embeddings)
    return AxisReport(
        axis=path.axis,
        scale_name=path.scale_name,
        scales=path.scales,
        shapes=tuple(shape.label() for shape in path.shapes),
        warnings=(*coverage_warnings(path.choice, path.base, path.shapes[-1], model, path.optimizer), *notes),
        fits=fits,
        stability=stability,
        measures=_by_scale(measures, path),
        not_tested=not_tested(path.choice, path.optimizer, judged, path.roles, path.facts.gate_sums_over),
    )


def _named(predictions: Iterable[Prediction], names: Names) -> tuple[Prediction, ...]:
    """Return the predictions under the names that the family has for what they are about."""
    out = []
    for each in predictions:
        quantity, role = names.get((each.quantity, each.role), (each.quantity, each.role))
        out.append(replace(each, quantity=quantity, role=role))
    return tuple(out)


def _by_scale(measures: Sequence[Observation], path: Path) -> tuple[ByScale, ...]:
    """Return the measures at every scale: over all blocks, and of every block that all shapes have."""
    if any(each.layer is not None for each in measures):
        measures = [*over_blocks(measures, path.kinds), *everywhere(measures, len(path.shapes))]
    return by_scale(measures, path.kinds)
