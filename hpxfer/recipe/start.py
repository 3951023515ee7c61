"""Load a sweep that may start from a recipe: `hps.recipe` fills in what the file leaves out, and differences are said.

The base HPs, the initialization, the optimizer, the base shape and the parameterization with its conventions come from
the recipe. What the sweep gives wins. This happens before the sweep is checked, so that every rule holds for what comes
from a recipe too. A stored sweep spells all values out and is never filled in again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpxfer.errors import HpxferError, shown
from hpxfer.recipe.facts import INIT, INIT_OPTIONS, doubts, model_facts, own_options, training_facts
from hpxfer.recipe.file import RecipeFile, read_recipe
from hpxfer.registry import rows_of
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.muon import NAME as MUON
from hpxfer.scaling.muon import kind_of
from hpxfer.scaling.shape import Shape, shape_from_mapping
from hpxfer.spec import (
    GPTModel,
    HPsSpec,
    KeyPath,
    RecipeRef,
    ScheduleSpec,
    SweepSpec,
    YamlFile,
    base_values,
    checked,
    choice_of,
    draft,
    located,
    plugins_in,
    read_yaml,
    roles_of,
    short,
    spell,
    validated,
    vocabulary,
    with_overrides,
    without_effect,
)
from hpxfer.store import require_whole

AT: KeyPath = ("hps", "recipe")
_OF_SHAPE = ("batch_tokens", "steps")
# Where a sweep has what a recipe has under another name, or in another section.
_HPS: dict[str, KeyPath] = {
    "weight_decay": ("training", "weight_decay"),
    "eps": ("training", "eps"),
    "beta1": ("training", "betas", 0),
    "beta2": ("training", "betas", 1),
}
_MODEL = {"bias_rule": "balance.bias", "balance_loss": "balance.aux"}


def load_sweep(
    path: str | Path, *, plugins: Sequence[str] = (), trusted: bool = True, overrides: Sequence[str] = ()
) -> SweepSpec:
    """Return the checked sweep in a YAML file, as `hpxfer.spec.load_sweep` does, filled in from the recipe it names.

    The file may be the sweep.yaml of a results folder. If that is damaged, the error says how to repair it.

    >>> sweep = hpxfer.load_sweep("sweeps/quickstart.yaml", overrides=["seeds=2"])
    >>> sweep.name, sweep.seeds
    ('quickstart', (0, 1))
    """
    path = Path(path)
    if trusted:
        require_whole(path)
    file, folder = with_overrides(read_yaml(path), overrides), path.resolve().parent
    if trusted:
        plugins_in(file, folder, plugins)  # whose names a recipe may have
    found = _recipe_of(file, folder) if trusted else None
    if found is None:
        spec = checked(draft(file, folder, plugins, trusted=trusted), file, folder, trusted=trusted)
    else:
        file, recipe = found
        spec = _without_useless(draft(file, folder, plugins), file.filled)
        spec = _compared(checked(spec, file, folder), recipe)
    return located(spec, folder)


def _recipe_of(file: YamlFile, folder: Path) -> tuple[YamlFile, RecipeFile] | None:
    """Return a sweep file with what its recipe fills in, and the recipe, or None if it names none to read.

    A relative path starts at `folder`. Raises HpxferError, which names the line of `hps.recipe`, for a recipe that
    cannot be read, or that is of another family, optimizer or base shape.
    """
    hps = _section(file.data, "hps")
    if hps.get("recipe") is None:
        return None
    named = {"file": hps["recipe"]} if isinstance(hps["recipe"], str) else hps["recipe"]
    # Without the recipe, much of the sweep is missing too, and an error about that would say the wrong thing.
    if validated(RecipeRef, file, named, at=AT).gives is not None:
        return None  # it was filled in when it was stored
    path, where = folder / named["file"], file.where(AT)
    if not path.is_file():
        raise HpxferError(f"{where}: must be a recipe.yaml, got {shown(named['file'])}, which is no file ({path})")
    try:
        recipe = read_recipe(read_yaml(path))
    except HpxferError as error:
        raise HpxferError(f"{where}: {error}") from None
    digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    if named.get("digest") not in (None, digest):
        raise HpxferError(f"{where}.digest: must be the digest of {path}, {digest}, got {shown(named['digest'])}")
    for at, expected, got in _other_base(recipe, file):
        rule = f"must be {'left out' if expected is None else expected}, as in the recipe {path}, got {shown(got)}"
        raise HpxferError(f"{file.where(at)}: {rule}; its HPs are those of its base")
    return _filled(file, named, recipe, digest), recipe


def _section(data: Any, key: str) -> dict[str, Any]:
    """Return a section of a file that was not checked yet."""
    found = data.get(key) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _other_base(recipe: RecipeFile, file: YamlFile) -> Iterator[tuple[KeyPath, Any, Any]]:
    """Yield the family, the optimizer or the dimension that differs: (key path, of the recipe, of the sweep)."""
    model = _section(file.data, "model")
    for section, key, expected in (("model", "family", recipe.family), ("training", "optimizer", recipe.optimizer)):
        if _one_spelling(key, given := _section(file.data, section).get(key, expected)) != expected:
            yield (section, key), expected, given
    if recipe.own_shape is not None or "base" not in model:
        return
    section = rows_of("family").get(recipe.family).section
    try:
        own = _dims(section.base_class().model_validate(model["base"]).shape())
    except ValidationError:
        return  # the schema refuses it
    wanted = _dims(shape_from_mapping(recipe.base_shape, "the base"))
    for name in wanted | own:
        if own.get(name) != wanted.get(name):
            yield ("model", "base", name), wanted.get(name), own.get(name)


def _one_spelling(kind: str, name: Any) -> Any:
    """Return the name of a row as it is registered. The schema refuses one that is not."""
    try:
        return rows_of(kind).spelled(name) if isinstance(name, str) else name
    except HpxferError:
        return name


def _dims(shape: Shape) -> dict[str, Any]:
    """Return the dimensions of a shape without batch and steps, with its numbers of heads."""
    sizes = {**shape.dims(), "num_heads": shape.query_heads, "kv_heads": shape.key_heads}
    return {name: size for name, size in sizes.items() if name not in _OF_SHAPE}


def _filled(file: YamlFile, named: Mapping[str, Any], recipe: RecipeFile, digest: str) -> YamlFile:
    data: dict[str, Any] = {key: dict(part) if isinstance(part, dict) else part for key, part in file.data.items()}
    filled: dict[KeyPath, str] = {}
    tables = data.get("parameterizations")
    for at, value in _values(recipe, data):
        section = data
        for name in map(str, at[:-1]):
            section[name] = _section(section, name).copy()
            section = section[name]
        if str(at[-1]) not in section:
            section[str(at[-1])] = value
            filled[at] = f"{spell(at)}: {spelled(value)}"
    if isinstance(tables, list):
        arms = enumerate(tables)
        data["parameterizations"] = [
            _with_conventions(each, ("parameterizations", index), recipe, filled) for index, each in arms
        ]
    found = recipe.provenance
    by_hand, date = "made by hand", found.measured or "date unknown"
    data["hps"]["recipe"] = {
        **named,
        "digest": digest,
        "origin": by_hand if found.sweep is None else f"sweep {found.sweep}, {found.num_trials} trials, {date}",
        "gives": list(filled.values()),
        "doubts": list(doubts(recipe)) or None,
    }
    return replace(file, data=data, filled=filled)


def _with_conventions(table: Any, at: KeyPath, recipe: RecipeFile, filled: dict[KeyPath, str]) -> Any:
    """Return a table of the sweep. That of the recipe gets the recipe's conventions, of which the sweep's own win."""
    chosen, arm = recipe.parameterization, short(table)
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
    elif "base" not in _section(data, "model"):  # it was compared
        yield ("model", "base"), {key: value for key, value in recipe.base_shape.items() if key not in _OF_SHAPE}
    section = rows_of("family").get(recipe.family).section
    for name, key in INIT.items():
        if key in section.model_fields and (name != "matrix_std" or recipe.init.matrices == "constant"):
            yield ("model", key), getattr(recipe.init, name)
    for name, value in (recipe.model.options or {}).items():
        if name in INIT_OPTIONS:
            yield ("model", *name.split(".")), value
    yield ("training", "optimizer"), recipe.optimizer
    for name in ("weight_decay", "eps"):
        yield ("training", name), getattr(recipe.hps, name)
    if "beta1" in rows_of("optimizer").get(recipe.optimizer).hps:
        yield ("training", "betas"), [recipe.hps.beta1, recipe.hps.beta2]
    chosen = recipe.parameterization
    yield ("parameterizations",), [{"table": chosen.name, "conventions": dict(chosen.conventions)}]
    # Under Muon no momentum given is not a momentum of zero, as it is under SGD.
    defaults = {"adamw_lr": 0.0, **({"momentum": None} if kind_of(recipe.optimizer) == MUON else {})}
    for name, field in HPsSpec.model_fields.items():
        value = getattr(recipe.hps, name, None)
        if name not in ("recipe", "multipliers") and value not in (None, defaults.get(name, field.default)):
            yield ("hps", name), value
    for name, value in recipe.hps.multipliers.items():
        yield ("hps", "multipliers", name), value


def _without_useless(spec: SweepSpec, filled: Mapping[KeyPath, str]) -> SweepSpec:
    """Return the sweep without what a recipe filled in and its own model does not use, such as the weight of a loss."""
    hps, model, roles = spec.hps, spec.model, roles_of(spec)
    useless: dict[KeyPath, str] = {}
    for path, text in filled.items():
        name = str(path[-1])
        if path[0] == "hps" and (why := without_effect(spec, name, roles)):
            useless[path] = f"{text} ({why.partition(';')[0]})"
            kept = {key: value for key, value in hps.multipliers.items() if key != name}
            default = HPsSpec.model_fields[name].default if path[1] == name else None
            hps = hps.model_copy(update={"multipliers": kept} if path[1] == "multipliers" else {name: default})
    if (path := ("model", "position_std")) in filled and model.positions != "learned":
        useless[path] = f"{filled[path]} (it goes with positions: learned, not {model.positions})"
        model = model.model_copy(update={"position_std": GPTModel.model_fields["position_std"].default})
    gives = tuple(text for path, text in filled.items() if path not in useless)
    spec = spec.model_copy(update={"hps": hps, "model": model})
    return _with_ref(spec, gives=gives, left_out=tuple(useless.values()) or None)


def _with_ref(spec: SweepSpec, **changes: tuple[str, ...] | None) -> SweepSpec:
    assert spec.hps.recipe is not None
    named = spec.hps.recipe.model_copy(update=changes)
    return spec.model_copy(update={"hps": spec.hps.model_copy(update={"recipe": named})})


# What a checked sweep has otherwise than its recipe. It is compared by what a recipe of its own base would say, section
# by section with all defaults, so that no key is forgotten that recipes record. What a recipe does not know is not
# compared.

Pairs = dict[KeyPath, tuple[Any, Any]]  # key path -> value of the sweep, value of the recipe


def _compared(spec: SweepSpec, recipe: RecipeFile) -> SweepSpec:
    """Return a checked sweep that states what it has otherwise than its recipe."""
    pairs = {**_hps(spec, recipe), **_init(spec, recipe), **_model(spec, recipe), **_training(spec, recipe)}
    found = [(spell(path), own, theirs) for path, (own, theirs) in pairs.items() if own != theirs]
    found += _tables(spec, recipe)
    instead = (f"{name}: {spelled(own)}, in the recipe {spelled(theirs)}" for name, own, theirs in found)
    return _with_ref(spec, instead=tuple(instead))


def _hps(spec: SweepSpec, recipe: RecipeFile) -> Pairs:
    given = {name: value for name, value in recipe.hps if name != "multipliers"} | recipe.hps.multipliers
    own, roles = base_values(spec), roles_of(spec)
    return {
        _HPS.get(name, ("hps", "multipliers", name) if "." in name else ("hps", name)): (
            own.get(name, 1.0),
            given.get(name, 1.0),
        )
        for name in given | own
        if without_effect(spec, name, roles) is None
    }


def _init(spec: SweepSpec, recipe: RecipeFile) -> Pairs:
    own = vars(spec.model.base_init(spec.data.inputs))
    read = [name for name in INIT if name != "position_std" or spec.model.positions == "learned"]
    return {("model", INIT[name]): (own[name], getattr(recipe.init, name)) for name in read}


def _model(spec: SweepSpec, recipe: RecipeFile) -> Pairs:
    chosen = next((each for each in spec.parameterizations if each.table == recipe.parameterization.name), None)
    own = model_facts(spec, None if chosen is None else choice_of(chosen))
    options = own.pop("options", {})
    by_family = {key for section in own_options(recipe).values() for key in section}
    theirs = {name: getattr(recipe.model, name) for name in own if name not in by_family}
    pairs: Pairs = {
        ("model", _MODEL.get(name, name)): (own[name], value) for name, value in theirs.items() if value is not None
    }
    # These say more than the fields of the same name.
    named = {name: value for name, value in (recipe.model.options or {}).items() if name in options}
    return {**pairs, **{("model", name): (options[name], value) for name, value in named.items()}}


def _training(spec: SweepSpec, recipe: RecipeFile) -> Pairs:
    own, found = training_facts(spec), recipe.provenance
    theirs = {name: size for name, size in recipe.base_shape.items() if name in own}
    theirs |= dict(recipe.training or {})
    pairs: Pairs = {
        ("precision",) if name == "precision" else ("training", name): (own[name], value)
        for name, value in theirs.items()
    }
    if found.tokenizer is not None:
        tokenizer, vocab_size = vocabulary(spec.data)
        pairs["data", "tokenizer"] = tokenizer, found.tokenizer
        pairs["data", "vocab_size"] = vocab_size, found.vocab_size
    return pairs


def _tables(spec: SweepSpec, recipe: RecipeFile) -> Iterator[tuple[str, Any, Any]]:
    """Yield the conventions of the recipe's table that differ, or the tables of the sweep if it is not among them."""
    wanted = recipe.parameterization
    found = [each for each in spec.parameterizations if each.table == wanted.name]
    if not found:
        yield "parameterizations", ", ".join(each.table for each in spec.parameterizations), wanted.name
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
