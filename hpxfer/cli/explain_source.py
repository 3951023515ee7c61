"""What `hpxfer explain` explains: shapes and values out of shape files, a sweep or a recipe."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError, shown
from hpxfer.registry import registry
from hpxfer.scaling.coverage import ModelFacts
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.explain import BaseValues
from hpxfer.scaling.shape import Shape, check_attention, load_shape
from hpxfer.scaling.table import Column, Conventions
from hpxfer.spec.arms import arm_label
from hpxfer.spec.arms_section import convention_value
from hpxfer.spec.ties import choice_of

if TYPE_CHECKING:
    from hpxfer.model.parameters import ParameterSpec
    from hpxfer.recipe import Recipe
    from hpxfer.spec import SweepSpec


@dataclass(frozen=True, kw_only=True)
class Source:
    """What to explain."""

    choice: Parameterization
    optimizer: Column
    base: Shape
    target: Shape
    values: BaseValues | None
    facts: ModelFacts
    note: str | None = None  # what the reader of the values should know
    tensors: tuple[ParameterSpec, ...] = ()  # those of the target, if the options of its model are known
    roles: frozenset[str] | None = None  # those of the model at the base and the target, if its options are known

    def __post_init__(self) -> None:
        if problem := check_attention(self.base, self.target):
            raise HpxferError(f"the target {problem}")


def read_conventions(given: Iterable[str]) -> dict[str, float | str]:
    """Return the conventions in texts such as `router_init=zero`. A value that looks like a number becomes a number."""
    out: dict[str, float | str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise HpxferError(f"--convention must be KEY=VALUE, got {shown(text)}")
        if key in out:
            raise HpxferError(f"--convention {key} stands twice; keep one")
        out[key] = convention_value(value)
    return out


def model_facts(gate: str | None, tied: bool | None) -> ModelFacts:
    """Return the facts of a model that the command line gives beside its shape."""
    if gate is not None:
        registry("gate").get(gate, "--gate")
    return ModelFacts(gate=gate, tied_embeddings=tied)


def from_files(
    name: str | None, base: Path | None, target: Path | None, conventions: Conventions, facts: ModelFacts
) -> Source:
    """Return the source made of a name, conventions and two shape files."""
    choice = None if name is None else parameterization(name, conventions)
    if choice is None or base is None or target is None:
        raise HpxferError(
            "explain needs --parameterization, --base and --target, or --sweep, or --recipe; --list shows the names"
        )
    column = next(iter(choice.table.rows))
    ends = load_shape(base), load_shape(target)
    return Source(choice=choice, optimizer=column, base=ends[0], target=ends[1], values=None, facts=facts)


def from_sweep(
    path: Path,
    name: str | None,
    base: Path | None,
    target: Path | None,
    conventions: Conventions,
    facts: ModelFacts,
) -> Source:
    """Return the source that a sweep gives. By default it is the first parameterization at the largest shape."""
    from hpxfer.host.machine import has_cuda
    from hpxfer.model.cost import train_flops
    from hpxfer.model.families import FAMILIES
    from hpxfer.spec.precision import decided
    from hpxfer.spec.vocabulary import data_sizes
    from hpxfer.store.sweep_file import load_given
    from hpxfer.trial import DataRef, Expansion, base_hps

    _refuse_base(base, "--sweep")
    _refuse_facts(facts, "--sweep")
    given = load_given(path)
    spec = decided(given, cuda=has_cuda(given.resources.device))
    choice = of_sweep(spec, name, conventions)
    expansion = Expansion(spec, DataRef(digest="", **data_sizes(spec.data)))
    label = next(iter(expansion.arms)) if name is None else name
    if label in expansion.arms:
        expansion = expansion.arms[label][0]
        spec = expansion.spec
    hps, setting = base_hps(spec), expansion.setting
    largest = max(expansion.shapes, key=lambda shape: train_flops(shape, expansion.setting_at(shape)))
    shape = load_shape(target) if target else largest
    return Source(
        choice=choice,
        optimizer=setting.column,
        base=spec.base_shape,
        target=shape,
        values=BaseValues(hps=hps, init=setting.init, route_scale=spec.model.route_scale),
        facts=expansion.facts(choice, shape),
        note=f"the sweep scans lr and names no base value: shown at {hps.lr:g}" if spec.hps.lr is None else None,
        tensors=tuple(FAMILIES.get(setting.family).parameters(shape, setting)),
        roles=_roles(spec, shape),
    )


def _roles(spec: SweepSpec, target: Shape) -> frozenset[str]:
    """Return the roles of the model at the base and the target. A bias that no rule moves is not trained."""
    from hpxfer.spec.blocks import model_roles

    found = frozenset(role for shape in (spec.base_shape, target) for role in model_roles(shape, spec.model))
    return found if spec.model.balance.bias != "none" else found - {"router_bias"}


def of_sweep(spec: SweepSpec, name: str | None, conventions: Conventions) -> Parameterization:
    """Return a parameterization: of the sweep's arm of this label, else the table of this name, by default the first.

    Add the conventions to those that the sweep gives it.
    """
    arms = spec.parameterizations
    by_label = {arm_label(choice_of(arm).label(), arm.name): arm for arm in arms}
    found = arms[0] if name is None else by_label.get(name) or next((arm for arm in arms if arm.table == name), None)
    if found is None:
        return parameterization(str(name), conventions)
    return parameterization(found.table, {**found.conventions, **conventions})


def from_recipe(
    path: Path,
    name: str | None,
    base: Path | None,
    target: Path | None,
    conventions: Conventions,
    facts: ModelFacts,
) -> Source:
    """Return the source that a recipe gives. By default the target is its own base shape."""
    from hpxfer.recipe import Recipe
    from hpxfer.recipe.resolved import Base
    from hpxfer.spec.recipe_file import own_roles

    _refuse_base(base, "--recipe")
    _refuse_facts(facts, "--recipe")
    if conventions:
        raise HpxferError("--convention: the recipe was tuned under its own conventions; leave it out")
    recipe = Recipe.load(path)
    if name is not None and name != recipe.parameterization.name:
        raise HpxferError(f"--parameterization {name}: the recipe was tuned under {recipe.parameterization.name}")
    model = recipe.file.model
    return Source(
        choice=recipe.parameterization,
        optimizer=recipe.column,
        base=recipe.base_shape,
        target=load_shape(target) if target else recipe.base_shape,
        values=BaseValues(hps=recipe.hps, init=recipe.init, route_scale=Base(recipe.file).fixed["route_scale"]),
        facts=ModelFacts(gate=model.gate, tied_embeddings=model.tied_embeddings),
        note=_tuned_on(recipe),
        roles=own_roles(recipe.file),
    )


def _tuned_on(recipe: Recipe) -> str:
    """Return what a recipe was tuned on, which no shape says of the target."""
    from hpxfer.recipe.fitted_range import stated

    facts = ", ".join(f"{name} {value}" for name, value in stated(recipe.file).items())
    return (
        f"tuned on {facts}; a shape does not say these of the target, whose HPs may differ: compare them, or give "
        "--model the config.json of a model of transformers, or call recipe.explain(model)"
    )


def _refuse_base(base: Path | None, other: str) -> None:
    if base is not None:
        raise HpxferError(f"--base: {other} has a base shape of its own; leave one out")


def _refuse_facts(facts: ModelFacts, other: str) -> None:
    if facts != ModelFacts():
        raise HpxferError(f"--gate and --tied/--untied: {other} says what the model is; leave them out")
