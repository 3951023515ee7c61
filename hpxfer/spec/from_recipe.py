"""From a recipe to a sweep: `hps.recipe` fills in what the sweep leaves out, and what differs from it is said.

The base HPs, the initialization, the optimizer, the base shape and the parameterization with its conventions come from
the recipe. What the sweep gives wins. This happens before the sweep is checked, so that every rule holds for what comes
from a recipe too. A stored sweep spells all values out and is never filled in again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpxfer.errors import HpxferError, shown
from hpxfer.registry import rows_of
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.shape import Shape, shape_from_mapping
from hpxfer.spec.arms import short
from hpxfer.spec.checks import roles_of, without_effect
from hpxfer.spec.data_section import vocabulary
from hpxfer.spec.fields import validated
from hpxfer.spec.model_section import MODELS, GPTModel, MLPShape, ShapeSpec
from hpxfer.spec.recipe_file import (
    INIT,
    InitPart,
    ModelPart,
    RecipeFile,
    doubts,
    model_facts,
    read_recipe,
    training_facts,
)
from hpxfer.spec.sweep import HPsSpec, RecipeRef, ScheduleSpec, SweepSpec, base_values
from hpxfer.spec.ties import choice_of
from hpxfer.spec.yaml_file import KeyPath, YamlFile, read_yaml, spell

# Against a recipe: what a checked sweep has otherwise than the recipe that it starts from, and what it leaves out.
#
# The sweep is compared by what a recipe of its own base would say, section by section with all defaults. So no key is
# forgotten that recipes record. What a recipe does not know is not compared.

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
        model = model.model_copy(update={"position_std": GPTModel.model_fields["position_std"].default})
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


AT: KeyPath = ("hps", "recipe")
# HPs of a recipe that a sweep has in `training`.
_TRAINING = ("weight_decay", "eps")
_OF_SHAPE = ("batch_tokens", "steps")


@dataclass(frozen=True)
class Start:
    """The recipe that a sweep starts from, and key path -> its text of what it filled in."""

    recipe: RecipeFile
    filled: Mapping[KeyPath, str]


def with_recipe(file: YamlFile, folder: Path) -> tuple[YamlFile, Start | None]:
    """Return a sweep file with what its recipe fills in, and the recipe if it names one. A relative path starts at
    `folder`.

    Raises HpxferError, which names the line of `hps.recipe`, for a recipe that cannot be read, or that is of another
    family, optimizer or base shape.
    """
    named = _named(file)
    if named is None:
        return file, None
    path = Path(named["file"])
    path = path if path.is_absolute() else folder / path
    where = file.where(AT)
    if not path.is_file():
        raise HpxferError(f"{where}: must be a recipe.yaml, got {shown(named['file'])}, which is no file ({path})")
    try:
        read = read_yaml(path)
        recipe = read_recipe(read)
    except HpxferError as error:
        raise HpxferError(f"{where}: {error}") from None
    digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    if named.get("digest") not in (None, digest):
        raise HpxferError(f"{where}.digest: must be the digest of {path}, {digest}, got {shown(named['digest'])}")
    _check(recipe, file, path)
    return _filled(file, named, recipe, digest)


def _named(file: YamlFile) -> dict[str, Any] | None:
    """Return the section `hps.recipe` of a file, or None if there is none to read. Raise HpxferError if it is none."""
    hps = _section(file.data, "hps")
    if hps.get("recipe") is None:
        return None
    named = {"file": hps["recipe"]} if isinstance(hps["recipe"], str) else hps["recipe"]
    # Without the recipe, much of the sweep is missing too, and an error about that would say the wrong thing.
    found = validated(RecipeRef, file, named, at=AT)
    return None if found.gives is not None else dict(named)  # it was filled in when it was stored


def _section(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a section of a file that was not checked yet."""
    found = data.get(key)
    return found if isinstance(found, dict) else {}


def _check(recipe: RecipeFile, file: YamlFile, path: Path) -> None:
    """Raise HpxferError if the sweep has another family, optimizer or base shape than the recipe."""
    model, training = _section(file.data, "model"), _section(file.data, "training")
    for at, given, expected in (
        (("model", "family"), model.get("family", recipe.family), recipe.family),
        (("training", "optimizer"), training.get("optimizer", recipe.optimizer), recipe.optimizer),
    ):
        if given != expected:
            raise HpxferError(
                f"{file.where(at)}: must be {expected}, as in the recipe {path}, got {shown(given)}; its HPs mean "
                "nothing for another one"
            )
    if recipe.own_shape is not None or (own := _base_dims(model, recipe.family)) is None:
        return
    wanted = _dims(shape_from_mapping(recipe.base_shape, "the base"))
    name = next((name for name in wanted | own if own.get(name) != wanted.get(name)), None)
    if name is not None:
        where = file.where(("model", "base", name))
        rule = f"must be {wanted.get(name, 'left out')}, as in the recipe {path}, got {shown(own.get(name))}"
        raise HpxferError(f"{where}: {rule}; its HPs are those of its base")


def _base_dims(model: Mapping[str, Any], family: str) -> dict[str, int] | None:
    """Return the dimensions of the sweep's base, or None if it has none, or one for the schema to refuse."""
    section: Any = ShapeSpec if family == "gpt" else MLPShape
    try:
        return _dims(section.model_validate(model["base"]).shape()) if "base" in model else None
    except ValidationError:
        return None


def _dims(shape: Shape) -> dict[str, int]:
    """Return the dimensions of a shape without batch and steps, with its numbers of heads."""
    heads = {"num_heads": shape.query_heads, "kv_heads": shape.key_heads}
    sizes: dict[str, Any] = {**shape.dims(), **heads}
    return {name: size for name, size in sizes.items() if name not in _OF_SHAPE}


def _filled(file: YamlFile, named: Mapping[str, Any], recipe: RecipeFile, digest: str) -> tuple[YamlFile, Start]:
    data: dict[str, Any] = {key: dict(part) if isinstance(part, dict) else part for key, part in file.data.items()}
    filled: dict[KeyPath, str] = {}
    for at, value in _values(recipe, data):
        section, key = _section_for(data, at), str(at[-1])
        if key not in section:
            section[key] = value
            filled[at] = f"{spell(at)}: {spelled(value)}"
    if isinstance(tables := data.get("parameterizations"), list) and ("parameterizations",) not in filled:
        data["parameterizations"] = [
            _with_conventions(each, ("parameterizations", index), recipe, filled) for index, each in enumerate(tables)
        ]
    data["hps"]["recipe"] = {
        **named,
        "digest": digest,
        "origin": _origin(recipe),
        "gives": list(filled.values()),
        "doubts": list(doubts(recipe)) or None,
    }
    return replace(file, data=data), Start(recipe=recipe, filled=filled)


def _section_for(data: dict[str, Any], at: KeyPath) -> dict[str, Any]:
    """Return the section that holds the last key of a path, and make it where the file has none."""
    for name in map(str, at[:-1]):
        inner = data.get(name)
        data[name] = dict(inner) if isinstance(inner, dict) else {}
        data = data[name]
    return data


def _with_conventions(table: Any, at: KeyPath, recipe: RecipeFile, filled: dict[KeyPath, str]) -> Any:
    """Return a table of the sweep. That of the recipe gets the recipe's conventions, of which the sweep's own win."""
    chosen = recipe.parameterization
    arm = short(table)
    own = arm.get("conventions", {}) if isinstance(arm, dict) else None
    if not isinstance(own, dict) or arm.get("table") != chosen.name:
        return table
    more = {key: value for key, value in chosen.conventions.items() if key not in own}
    if not more:
        return table
    filled[*at, "conventions"] = f"conventions of {chosen.name}: {spelled(more)}"
    return {**arm, "conventions": {**more, **own}}


def _values(recipe: RecipeFile, data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    """Yield key path -> value of what a recipe fills in."""
    yield ("model", "family"), recipe.family
    if recipe.own_shape is not None:
        yield ("model", "own"), recipe.own_shape
    elif not isinstance(data.get("model"), dict) or "base" not in data["model"]:  # it was compared
        yield ("model", "base"), {key: value for key, value in recipe.base_shape.items() if key not in _OF_SHAPE}
    read = MODELS[recipe.family].model_fields
    for name, key in INIT.items():
        value = getattr(recipe.init, name)
        if key in read and (name != "matrix_std" or recipe.init.matrices == "constant"):
            yield ("model", key), value
    yield ("training", "optimizer"), recipe.optimizer
    for name in _TRAINING:
        yield ("training", name), getattr(recipe.hps, name)
    if "beta1" in rows_of("optimizer").get(recipe.optimizer).hps:
        yield ("training", "betas"), [recipe.hps.beta1, recipe.hps.beta2]
    chosen = recipe.parameterization
    table = {"table": chosen.name, "conventions": dict(chosen.conventions)}
    if "parameterizations" not in data:
        yield ("parameterizations",), [table]
    for name, field in HPsSpec.model_fields.items():
        value = getattr(recipe.hps, name, None)
        if name in ("recipe", "multipliers") or value is None:
            continue
        if value != field.default:  # which a sweep has without it
            yield ("hps", name), value
    for name, value in recipe.hps.multipliers.items():
        yield ("hps", "multipliers", name), value


def _origin(recipe: RecipeFile) -> str:
    """Return in words where a recipe comes from."""
    found = recipe.provenance
    if found.sweep is None:
        return "made by hand"
    return f"sweep {found.sweep}, {found.num_trials} trials, {found.measured or 'date unknown'}"
