"""The arm that another arm is compared with over a whole run: the one that the user names, or one by default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.errors import HpxferError
from hpxfer.host import is_control, name_of
from hpxfer.model.cost import active_without_embeddings, flops_per_token
from hpxfer.results import Results, find_shape
from hpxfer.scaling.shape import Shape
from hpxfer.verdict import ShapeLosses


@dataclass(frozen=True, kw_only=True)
class ChosenArm:
    """The reference that the user names. What is None is that of the arm which is compared with it."""

    label: str | None  # of a parameterization
    shape: Shape | None


def chosen_arm(results: Results, spelled: str) -> ChosenArm:
    """Return the arm that a user names: a shape, a parameterization, or both: `w64`, `sp` or `sp w64`.

    Raises HpxferError, which lists the legal names, if there is no such arm.
    """
    where = f"{results.folder}: reference"
    labels = sorted(results.expansion.arms, key=len, reverse=True)
    label = next((each for each in labels if spelled == each or spelled.startswith(f"{each} ")), None)
    rest = spelled if label is None else spelled[len(label) :].strip()
    if label is not None and not rest:
        return ChosenArm(label=label, shape=None)
    try:
        found = find_shape(results.axis_shapes, rest, where)
    except HpxferError as error:
        raise HpxferError(f"{error}; or start with a parameterization: {', '.join(results.expansion.arms)}") from None
    (axis,) = (axis for axis in results.expansion.axes if axis.name == found.axis)
    shape = next(point.shape for point in axis.points if axis.label(point.shape) == found.shape)
    return ChosenArm(label=label, shape=shape)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a shape costs. None if nobody knows, or only a plug-in that is not loaded."""

    active: int | None = None  # parameters without embeddings
    flops_per_token: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Arms:
    """Every shape of every parameterization, as far as it is measured, and which of them an arm is compared with."""

    rows: Mapping[str, Mapping[Shape, ShapeLosses]]  # label of the parameterization -> its shapes on all axes
    chosen: ChosenArm | None
    cost: Mapping[Shape, Cost]
    control: str | None  # the arm that the others are compared with, by the rules of the sweep

    def reference(self, label: str, shape: Shape) -> tuple[str, Shape] | None:
        """Return the parameterization and the shape that an arm is compared with, or None.

        By default a MoE shape is compared with the dense shape of the most similar number of active parameters and, of
        several of them, the most similar number of tokens. Without a dense shape it is the control at the same shape,
        and of the control the base.
        """
        if self.chosen is None:
            found = self._default(label, shape)
        else:
            found = self.chosen.label or label, self.chosen.shape or shape
        return None if found == (label, shape) or found[1] not in self.rows.get(found[0], {}) else found

    def _default(self, label: str, shape: Shape) -> tuple[str, Shape]:
        own = self.rows[label]
        dense = [other for other in own if not other.num_experts]
        if dense and shape.num_experts:
            return label, min(dense, key=lambda other: self._distance(shape, other))
        if any(other.num_experts for other in own) and dense:
            return label, shape  # a dense shape is a reference itself
        controls = [each for each in self.rows if is_control(each, self.control) and name_of(each) == name_of(label)]
        controls += [each for each in self.rows if each == self.control]
        if controls and label not in controls:
            return controls[0], shape
        return label, next((other for other, row in own.items() if row.is_base), shape)

    def _distance(self, shape: Shape, other: Shape) -> tuple[float, float]:
        of, than = self.cost[shape].active, self.cost[other].active
        away = abs(math.log(of / than)) if of and than else math.inf
        return round(away, 3), abs(math.log(max(shape.tokens, 1) / max(other.tokens, 1)))


def arms_of(inputs: Inputs) -> Arms:
    """Return the arms of the judged HP."""
    rows: dict[str, dict[Shape, ShapeLosses]] = {}
    for (axis, label), estimates in {} if inputs.judged is None else inputs.judged.by_key.items():
        for row in estimates.grid.rows:
            rows.setdefault(label, {}).setdefault(inputs.shapes[axis, row.shape], row)
    spelled = inputs.references.arm
    return Arms(
        rows=rows,
        chosen=None if spelled is None else chosen_arm(inputs.results, spelled),
        cost={shape: cost_of(inputs.results, shape) for shape in dict.fromkeys(inputs.shapes.values())},
        control=inputs.rules.control,
    )


def cost_of(results: Results, shape: Shape) -> Cost:
    """Return what a shape of a sweep costs."""
    setting = results.expansion.setting_at(shape)
    try:
        active, flops = active_without_embeddings(shape, setting), flops_per_token(shape, setting)
    except HpxferError:
        return Cost()
    return Cost(active=active or None, flops_per_token=flops or None)  # of a user's own trainer, none are known
