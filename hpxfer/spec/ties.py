"""Ties: which of equal experts a router chooses. Each table of a sweep has its own answer.

A router that starts at exact zero gives every expert the same score. Were the lowest index chosen, all tokens would go
to the same experts. MSSP therefore asks for a random choice (Table B.2, footnote). Tables without such a router meet no
ties to speak of. They keep the lowest index, and their trials keep their ids.

A stored sweep spells out the value of every table whose routers start at zero (`resolved`).
"""

from __future__ import annotations

from hpxfer.errors import HpxferError, shown
from hpxfer.registry import rows_of
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.tables import is_known
from hpxfer.spec.arms import ParameterizationSpec
from hpxfer.spec.axes import axes_of
from hpxfer.spec.model_section import Ties
from hpxfer.spec.sweep import SweepSpec

# The std of the bias of `fixed_bias`, in units of the router's logits. It changes a sigmoid gate by 0.005: as far as
# one step of the balancing rule moves a score at its default rate of 0.01 and a load that is 0.5 off. Ids stand for
# this number.
FIXED_BIAS_STD = 0.02


def choice_of(chosen: ParameterizationSpec) -> Parameterization:
    """Return the parameterization that a sweep names. One that is not registered here has the conventions given."""
    if is_known(chosen.table):
        return parameterization(chosen.table, chosen.conventions)
    return Parameterization(name=chosen.table, conventions=tuple(sorted(chosen.conventions.items())))


def ties_of(spec: SweepSpec, choice: Parameterization | None) -> Ties:
    """Return how ties are broken under a table of a sweep; without `choice`, under a table that says nothing."""
    given: Ties | dict[str, Ties] | None = spec.model.ties
    if isinstance(given, str):
        return given
    if choice is None:
        return "index"
    known = given or {}
    return known.get(choice.label(), known.get(choice.name, "random" if _has_zero_router(spec, choice) else "index"))


def ties_at(spec: SweepSpec, choice: Parameterization | None, shape: Shape) -> Ties:
    """Return how ties are broken under a table at a shape: by `index` where it makes no difference."""
    ties = ties_of(spec, choice)
    no_choice = shape.num_active == shape.num_experts
    return "index" if not shape.num_experts or (no_choice and ties == "random") else ties


def resolved(spec: SweepSpec) -> SweepSpec:
    """Return the sweep with a value for every table whose routers start at zero, if they have experts to choose from.

    It is the value that the file gives, else `random`.
    """
    given, shapes = spec.model.ties, (point.shape for axis in axes_of(spec) for point in axis.points)
    if isinstance(given, str) or not any(0 < shape.num_active < shape.num_experts for shape in shapes):
        return spec
    choices = [choice_of(chosen) for chosen in spec.parameterizations]
    values: dict[str, Ties] = {
        choice.label(): ties_of(spec, choice)
        for choice in choices
        if {choice.label(), choice.name} & (given or {}).keys() or _has_zero_router(spec, choice)
    }
    same = len(values) == len(choices) and len(set(values.values())) == 1
    ties = next(iter(values.values())) if same else values or None
    return spec.model_copy(update={"model": spec.model.model_copy(update={"ties": ties})})


def ties_problem(spec: SweepSpec) -> str | None:
    """Return what is wrong with the tables that `model.ties` names."""
    legal = set[str]()
    for chosen in spec.parameterizations if isinstance(spec.model.ties, dict) else ():
        try:
            legal |= {chosen.table, choice_of(chosen).label()}
        except HpxferError:
            return None  # reported by itself
    unknown = [name for name in spec.model.ties if name not in legal] if isinstance(spec.model.ties, dict) else []
    return (
        f"must name tables of the sweep, got {shown(unknown[0])}; legal: {', '.join(sorted(legal))}"
        if unknown
        else None
    )


def _has_zero_router(spec: SweepSpec, choice: Parameterization) -> bool:
    return choice.zero_router(rows_of("optimizer").get(spec.training.optimizer).column)
