"""Plan: all that an export of one recipe at one shape says, before a target spells it."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hpxfer.errors import HpxferError, cut
from hpxfer.export.names import Named
from hpxfer.export.schedule import Phases, phases
from hpxfer.export.stand_in import stand_in
from hpxfer.recipe import OtherModelWarning, OutOfRangeWarning, Recipe
from hpxfer.recipe.explain import TensorRow
from hpxfer.recipe.fitted_range import check_covered, out_of_range
from hpxfer.recipe.match import AT, Roles, match_roles
from hpxfer.recipe.patterns import pairs_of_roles, spelled
from hpxfer.recipe.propose_roles import roles_of_names
from hpxfer.recipe.resolved import Base, Resolved
from hpxfer.recipe.roles_by_place import Proposal
from hpxfer.scaling.shape import Shape

Pairs = tuple[tuple[str, str], ...]
MOST_NAMES = 600  # characters of the names in one message


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters with equal LR, eps and weight decay."""

    names: tuple[str, ...]
    roles: tuple[str, ...]
    lr: float
    eps: float
    weight_decay: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a recipe gives a model of this shape, parameter by parameter.

    `rows` has one row per parameter, and none if the model's names are not known. `sizes_known` says whether the sizes
    in the rows are the user's.
    """

    recipe: Recipe
    shape: Shape
    rows: tuple[TensorRow, ...]
    sizes_known: bool
    cautions: tuple[str, ...]

    @cached_property
    def resolved(self) -> Resolved:
        return Resolved(Base(self.recipe.file), self.shape)

    @property
    def forward(self) -> dict[str, float]:
        """Key -> absolute forward multiplier, as `Recipe.forward_multipliers` gives them."""
        return self.resolved.forward

    @property
    def betas(self) -> tuple[float, float] | None:
        return self.resolved.betas

    @property
    def phases(self) -> Phases | None:
        return phases(self.recipe.file, self.shape)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the recipe as hpxfer writes it."""
        return hashlib.sha256(self.recipe.dump().encode()).hexdigest()

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups of what the optimizer trains, in the order of the model's parameters."""
        found: dict[tuple[float, float, float], list[TensorRow]] = {}
        for row in self.rows:
            if row.lr is not None and row.eps is not None and row.weight_decay is not None:
                found.setdefault((row.lr, row.eps, row.weight_decay), []).append(row)
        return tuple(
            Group(
                names=tuple(row.name for row in rows),
                roles=tuple(dict.fromkeys(role for row in rows for role in row.role.split("+"))),
                lr=lr,
                eps=eps,
                weight_decay=weight_decay,
            )
            for (lr, eps, weight_decay), rows in found.items()
        )


def make_plan(recipe: Recipe, shape: Shape, parameters: Sequence[Named] | None, known: Pairs, where: str) -> Plan:
    """Return the plan. `known` are a target's own pairs of name pattern and role, and `where` names the parameters.

    A role that a name carries wins over the patterns among the names, these win over the pairs, and the pairs over what
    `hpxfer.roles` knows. A list of names shows
    too little of the model to say in what it differs from the base's. Raises HpxferError if a parameter has no role, if
    a size is not that of its role at this shape, or if the table does not cover the target.
    """
    extra = [(one.name, one.role or "") for one in parameters or () if one.is_pattern]
    parameters = None if parameters is None else [one for one in parameters if not one.is_pattern]
    rule, fitted = Base(recipe.file).rule, recipe.file.fitted
    check_covered(rule, fitted, shape)
    beyond = out_of_range(rule, fitted, shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfRangeWarning)
        warnings.simplefilter("ignore", OtherModelWarning)
        role_of = {} if parameters is None else _role_of(parameters, extra, known, where)
        rows = () if parameters is None else _rows(recipe, shape, parameters, role_of, known)
    label = shape.label(schedule=bool(shape.steps))
    cautions = [f"the target {label} is beyond what was measured: {'; '.join(beyond)}"] if beyond else []
    guesses = {(one.role, one.guess): name for name, one in reversed(role_of.items()) if one.guess}
    cautions += [f"{name} is taken for {role} {why}" for (role, why), name in reversed(guesses.items())]
    return Plan(
        recipe=recipe,
        shape=shape,
        rows=rows,
        sizes_known=parameters is not None and all(one.size is not None for one in parameters),
        cautions=tuple(cautions),
    )


def _rows(
    recipe: Recipe, shape: Shape, parameters: Sequence[Named], role_of: Mapping[str, Proposal], known: Pairs
) -> tuple[TensorRow, ...]:
    names = {name: one.role for name, one in role_of.items()}
    # A pattern may match a tensor that cannot have its role. So an unknown size is that of the role that the name says.
    by_name = roles_of_names({one.name: one.size for one in parameters}, (), known, "names")
    without = {one.name for one in parameters if one.role is None and AT not in names[one.name]}
    sized = names | {name: by_name[name].role for name in without & by_name.keys()}
    pairs = pairs_of_roles(names)
    # Checked before the model is made, whose sizes follow from the roles.
    match_roles([one.name for one in parameters], [], pairs, Base(recipe.file).refused(shape))
    return recipe.explain(stand_in(parameters, names, sized, shape), pairs, shape).rows


def _role_of(parameters: Sequence[Named], extra: Roles, known: Pairs, where: str) -> dict[str, Proposal]:
    """Return name -> role. Raise HpxferError, which lists the names, if some have none."""
    given = {one.name: Proposal(role=one.role) for one in parameters if one.role is not None}
    by_name = {**roles_of_names({one.name: one.size for one in parameters}, extra, known, where), **given}
    if without := [one.name for one in parameters if one.name not in by_name]:
        raise HpxferError(
            f"{where}: every parameter must have a role, got none for {cut(', '.join(spelled(without)), MOST_NAMES)}; "
            "write the role behind the name in the file of --names, e.g. 'layers.0.wq.weight 64x64 attn_q', or behind "
            "a pattern, e.g. '*.wq.weight attn_q'"
        )
    return {one.name: by_name[one.name] for one in parameters}
