"""What every role gets at a shape, of a table between two shape files, of a sweep, or of a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host import has_cuda
from hpxfer.model.cost import train_flops
from hpxfer.model.families import FAMILIES
from hpxfer.model.parameters import ParameterSpec
from hpxfer.recipe import Recipe, load_sweep, own_roles, stated
from hpxfer.registry import rows_of
from hpxfer.scaling.coverage import ModelFacts
from hpxfer.scaling.evaluate import Multipliers, Parameterization, parameterization, resolve
from hpxfer.scaling.explain import BaseValues, Explanation, explain
from hpxfer.scaling.muon import by, moves
from hpxfer.scaling.numbers import OF_TENSOR, TensorNumbers, number_lines, numbers_of
from hpxfer.scaling.shape import Shape, check_attention, load_shape
from hpxfer.scaling.table import Column, Conventions
from hpxfer.spec import SweepSpec, arm_label, choice_of, data_sizes, decided, model_roles, under
from hpxfer.trial import DataRef, Expansion, base_hps


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What every role gets, and every tensor of the target if the options of its model are known."""

    roles: Explanation
    tensors: tuple[TensorNumbers, ...] = ()
    note: str | None = None  # what the reader of the values should know

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        tensors = [one.to_dict() for one in self.tensors]
        return {**self.roles.to_dict(), **({"tensors": tensors} if tensors else {})}

    def text(self) -> str:
        """Return aligned tables."""
        lines = number_lines(self.tensors, (*OF_TENSOR, "note"))
        return "\n".join(
            [self.roles.table(), *(["", "Tensors of the model at the target", *lines] if self.tensors else [])]
        )


def layout_numbers(
    tensors: Iterable[ParameterSpec], values: Mapping[str, Multipliers], optimizer: Column
) -> tuple[TensorNumbers, ...]:
    """Return what the tensors of a family's layout get."""
    return tuple(
        numbers_of(
            one.role,
            values[one.role],
            by=by(optimizer, one.role),
            name=one.name,
            size=one.size,
            scale=(rows_of("optimizer").get(optimizer).matrices.scaled(one)[1],) if moves(optimizer, one.role) else (),
            note=f"in {one.layers} blocks" if one.blocks else None,
        )
        for one in tensors
    )


def explain_files(
    name: str, base: Path, target: Path, conventions: Conventions, column: Column | None, facts: ModelFacts
) -> Explained:
    """Explain a table between the shapes of two files. `facts` are what a shape does not say of the model."""
    choice, ends = parameterization(name, conventions), (load_shape(base), load_shape(target))
    first: Column = next(iter(choice.table.rows))
    return Explained(roles=_explained(choice, *ends, column or first, facts=facts))


def explain_sweep(
    path: Path, name: str | None, target: Path | None, conventions: Conventions, column: Column | None
) -> Explained:
    """Explain an arm of a sweep, by default the first one, or another table, by default at the largest shape."""
    given = load_sweep(path)
    choice, spec = of_sweep(decided(given, cuda=has_cuda(given.resources.device)), name, conventions)
    expansion = Expansion(spec, DataRef(digest="", **data_sizes(spec.data)))
    hps, setting = base_hps(spec), expansion.setting
    largest = max(expansion.shapes, key=lambda shape: train_flops(shape, expansion.setting_at(shape)))
    shape = load_shape(target) if target else largest
    roles = {role for one in (spec.base_shape, shape) for role in model_roles(one, spec.model)}
    found = _explained(
        *(choice, spec.base_shape, shape, column or setting.column),
        values=BaseValues(hps=hps, init=setting.init, route_scale=spec.model.route_scale),
        facts=expansion.facts(choice, shape),
        # A bias that no rule moves is not trained.
        roles=roles if spec.model.balance.bias != "none" else roles - {"router_bias"},
    )
    # The roles speak of the balancing rule; a bias that the optimizer trains is one of the tensors.
    known = choice, spec.base_shape, shape, found.optimizer, hps, setting.init
    numbers = resolve(*known, learned_bias_std=setting.mlp.learned_bias_std)
    return Explained(
        roles=found,
        tensors=layout_numbers(FAMILIES.get(setting.family).parameters(shape, setting), numbers, found.optimizer),
        note=f"the sweep scans lr and names no base value: shown at {hps.lr:g}" if spec.hps.lr is None else None,
    )


def of_sweep(
    spec: SweepSpec, name: str | None, conventions: Mapping[str, float | str]
) -> tuple[Parameterization, SweepSpec]:
    """Return a parameterization, and the sweep with the HPs and the balance of its arm.

    It is that of the arm of this label, else the table of this name, by default the first arm. The conventions are
    added to those that the sweep gives it. A table that no arm has is taken under the sweep's own HPs.
    """
    arms = spec.parameterizations
    by_label = {arm_label(choice_of(arm).label(), arm.name): arm for arm in arms}
    found = arms[0] if name is None else by_label.get(name) or next((arm for arm in arms if arm.table == name), None)
    if found is None:
        return parameterization(str(name), conventions), spec
    return parameterization(found.table, {**found.conventions, **conventions}), under(spec, [found])


def explain_recipe(path: Path, name: str | None, target: Path | None, column: Column | None) -> Explained:
    """Explain a recipe, by default at its own base."""
    recipe = Recipe.load(path)
    if name is not None and name != recipe.parameterization.name:
        raise HpxferError(f"--parameterization {name}: the recipe was tuned under {recipe.parameterization.name}")
    model, base = recipe.file.model, recipe.base_shape
    found = _explained(
        *(recipe.parameterization, base, load_shape(target) if target else base, column or recipe.column),
        values=BaseValues(hps=recipe.hps, init=recipe.init, route_scale=recipe.file.fixed["route_scale"]),
        facts=ModelFacts(gate=model.gate, tied_embeddings=model.tied_embeddings),
        roles=own_roles(recipe.file),
    )
    tuned = ", ".join(f"{name} {value}" for name, value in stated(recipe.file).items())
    note = (
        f"tuned on {tuned}; a shape does not say these of the target, whose HPs may differ: compare them, or give "
        "--model the config.json of a model of transformers, or call recipe.explain(model)"
    )
    return Explained(roles=found, note=note)


def _explained(choice: Parameterization, base: Shape, target: Shape, column: Column, **more: Any) -> Explanation:
    if problem := check_attention(base, target):
        raise HpxferError(f"the target {problem}")
    return explain(choice, base, target, column, **more)
