"""Against a recipe: what a checked sweep has otherwise than the recipe that it starts from, and what it leaves out.

The sweep is compared by what a recipe of its own base would say, section by section with all defaults. So no key is
forgotten that recipes record. What a recipe does not know is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpxfer.scaling.evaluate import parameterization
from hpxfer.spec.base_values import base_values
from hpxfer.spec.checks import roles_of, without_effect
from hpxfer.spec.model_section import ModelSpec
from hpxfer.spec.recipe_file import InitPart, ModelPart, RecipeFile
from hpxfer.spec.recipe_parts import INIT, model_facts, training_facts
from hpxfer.spec.sweep import HPsSpec, ScheduleSpec, SweepSpec
from hpxfer.spec.ties import choice_of
from hpxfer.spec.vocabulary import vocabulary
from hpxfer.spec.yaml_file import KeyPath, spell

# Where a sweep has what is not in the section of the same name.
_HPS: dict[str, KeyPath] = {
    "weight_decay": ("training", "weight_decay"),
    "eps": ("training", "eps"),
    "beta1": ("training", "betas", 0),
    "beta2": ("training", "betas", 1),
}
_MODEL = {"bias_rule": "balance.bias", "balance_loss": "balance.aux"}


def without_useless(spec: SweepSpec, filled: Mapping[KeyPath, str]) -> SweepSpec:
    """Return the sweep without what a recipe filled in and its own model does not use, such as the weight of a loss.

    `filled` holds key path -> its text of what the recipe filled in.
    """
    hps, model, roles = spec.hps, spec.model, roles_of(spec)
    useless: dict[KeyPath, str] = {}
    for path, text in filled.items():
        name = str(path[-1])
        if path[0] == "hps" and (why := without_effect(spec, name, roles)):
            useless[path] = f"{text} ({why.partition(';')[0]})"
            if path[1] == "multipliers":
                kept = {key: value for key, value in hps.multipliers.items() if key != name}
                hps = hps.model_copy(update={"multipliers": kept})
            else:
                hps = hps.model_copy(update={name: HPsSpec.model_fields[name].default})
    if ("model", "position_std") in filled and model.positions != "learned":
        path = ("model", "position_std")
        useless[path] = f"{filled[path]} (it goes with positions: learned, not {model.positions})"
        model = model.model_copy(update={"position_std": ModelSpec.model_fields["position_std"].default})
    assert hps.recipe is not None
    gives = tuple(text for path, text in filled.items() if path not in useless)
    named = hps.recipe.model_copy(update={"gives": gives, "left_out": tuple(useless.values()) or None})
    return spec.model_copy(update={"hps": hps.model_copy(update={"recipe": named}), "model": model})


def compared(spec: SweepSpec, recipe: RecipeFile) -> SweepSpec:
    """Return a checked sweep that states what it has otherwise than its recipe."""
    assert spec.hps.recipe is not None
    instead = tuple(
        f"{path if isinstance(path, str) else spell(path)}: {spelled(own)}, in the recipe {spelled(theirs)}"
        for path, own, theirs in _differing(spec, recipe)
    )
    named = spec.hps.recipe.model_copy(update={"instead": instead})
    return spec.model_copy(update={"hps": spec.hps.model_copy(update={"recipe": named})})


def _differing(spec: SweepSpec, recipe: RecipeFile) -> Iterator[tuple[KeyPath | str, Any, Any]]:
    """Yield (key path, value of the sweep, value of the recipe) of all that differs."""
    for parts in (_hps(spec, recipe), _init(spec, recipe), _model(spec, recipe), _training(spec, recipe)):
        yield from ((path, own, theirs) for path, (own, theirs) in parts.items() if own != theirs)
    yield from _tables(spec, recipe)


Pairs = dict[KeyPath, tuple[Any, Any]]  # key path -> value of the sweep, value of the recipe


def _hps(spec: SweepSpec, recipe: RecipeFile) -> Pairs:
    given = {name: value for name, value in recipe.hps if name != "multipliers"} | recipe.hps.multipliers
    own, roles = base_values(spec), roles_of(spec)
    return {
        _HPS.get(name, ("hps", *(("multipliers",) if "." in name else ()), name)): (
            own.get(name, 1.0),
            given.get(name, 1.0),
        )
        for name in given | own
        if without_effect(spec, name, roles) is None
    }


def _init(spec: SweepSpec, recipe: RecipeFile) -> Pairs:
    own = vars(spec.model.base_init(spec.data.inputs))
    pairs = {name: (own[name], getattr(recipe.init, name)) for name in InitPart.model_fields}
    if spec.model.positions != "learned":
        del pairs["position_std"]
    return {("model", INIT[name]): pair for name, pair in pairs.items()}


def _model(spec: SweepSpec, recipe: RecipeFile) -> Pairs:
    chosen = next((each for each in spec.parameterizations if each.table == recipe.parameterization.name), None)
    own = model_facts(spec, None if chosen is None else choice_of(chosen))
    known = recipe.model
    pairs: Pairs = {}
    for name in ModelPart.model_fields:
        theirs = getattr(known, name)
        if name != "options" and theirs is not None and name in own:
            pairs["model", _MODEL.get(name, name)] = own[name], theirs
    # These say more than the fields of the same name.
    options = {name: value for name, value in (recipe.model.options or {}).items() if name in own["options"]}
    return {**pairs, **{("model", name): (own["options"][name], value) for name, value in options.items()}}


def _training(spec: SweepSpec, recipe: RecipeFile) -> Pairs:
    own = training_facts(spec)
    theirs = {name: size for name, size in recipe.base_shape.items() if name in own}
    if recipe.training is not None:
        theirs |= dict(recipe.training)
    at: dict[str, KeyPath] = {"precision": ("precision",)}
    pairs: Pairs = {at.get(name, ("training", name)): (own[name], value) for name, value in theirs.items()}
    found = recipe.provenance
    if found.tokenizer is not None:
        tokenizer, vocab_size = vocabulary(spec.data)
        pairs["data", "tokenizer"] = tokenizer, found.tokenizer
        pairs["data", "vocab_size"] = vocab_size, found.vocab_size
    return pairs


def _tables(spec: SweepSpec, recipe: RecipeFile) -> Iterator[tuple[KeyPath | str, Any, Any]]:
    """Yield the conventions of the recipe's table that differ, or the tables of the sweep if it is not among them."""
    wanted = recipe.parameterization
    found = [each for each in spec.parameterizations if each.table == wanted.name]
    if not found:
        yield ("parameterizations",), ", ".join(each.table for each in spec.parameterizations), wanted.name
    theirs = dict(parameterization(wanted.name, wanted.conventions).conventions)
    for each in found:
        for key, own in choice_of(each).conventions:
            if own != theirs[key]:
                yield f"conventions of {each.table}: {key}", own, theirs[key]


def spelled(value: Any) -> str:
    """Return a value of a sweep or of a recipe in words."""
    if isinstance(value, ScheduleSpec):
        given = {"warmup": value.warmup, "decay_length": value.decay_length, "final_fraction": value.final_fraction}
        return f"{value.decay} ({spelled({name: str(each) for name, each in given.items() if each})})"
    if isinstance(value, dict):
        return ", ".join(f"{key} {spelled(each)}" for key, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return " and ".join(map(spelled, value))
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
