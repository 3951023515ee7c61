"""A recipe from base HPs that are known without a sweep. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import hpxfer
from hpxfer.errors import HpxferError, shown
from hpxfer.recipe.file import OF_A_SWEEP, RECIPE_VERSION, VERSION_KEY, ModelPart, RecipeFile, read_recipe
from hpxfer.scaling.evaluate import BaseInit, parameterization
from hpxfer.scaling.hps import HPs, check_hp_name
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Conventions
from hpxfer.spec import YamlFile

WHERE = "Recipe.from_hps"
# What each recipe must know about its base model. The rest may stay unknown.
MODEL = {"gate": "sigmoid", "attention_scale": "1/d_head"}


def made_by_hand(
    name: str,
    base: Shape,
    hps: HPs | Mapping[str, float],
    *,
    optimizer: str,
    conventions: Conventions,
    init: BaseInit,
    model: Mapping[str, Any],
) -> RecipeFile:
    """Return the checked recipe file. Raises HpxferError with one line for each broken rule."""
    choice = parameterization(name, conventions)
    if not isinstance(init, BaseInit):
        raise HpxferError(f"{WHERE}: init: must be a hpxfer.scaling.evaluate.BaseInit, got {shown(init)}")
    values = asdict(hps if isinstance(hps, HPs) else _hps(hps))
    unknown: dict[str, Any] = dict.fromkeys(ModelPart.model_fields)
    data = {
        VERSION_KEY: RECIPE_VERSION,
        "family": "gpt",
        "parameterization": {"name": choice.name, "conventions": dict(choice.conventions)},
        "optimizer": optimizer,
        "base_shape": base.dims(),
        "hps": {**values, "multipliers": dict(values["multipliers"])},
        "init": asdict(init),
        "model": {**unknown, **MODEL, **model},
        "training": None,
        "fitted": None,
        "provenance": {
            "made": "by hand",
            **dict.fromkeys(OF_A_SWEEP),
            "measured": None,
            "hpxfer": hpxfer.__version__,
            "versions": {},
        },
    }
    return read_recipe(YamlFile(name=WHERE, data=data, lines={}))


def _hps(given: Mapping[str, float]) -> HPs:
    if not isinstance(given, Mapping):
        raise HpxferError(f"{WHERE}: hps: must be HPs or a mapping of name to number, got {shown(given)}")
    if "lr" not in given:
        raise HpxferError(f"{WHERE}: hps: must give lr, the base LR, got {', '.join(given) or 'nothing'}")
    numbers = {}
    for name, value in given.items():
        try:
            check_hp_name(name)
            numbers[name] = float(value)
        except HpxferError as error:
            raise HpxferError(f"{WHERE}: hps: {name}: {error}") from None
        except (TypeError, ValueError):
            raise HpxferError(f"{WHERE}: hps: {name}: must be a number, got {shown(value)}") from None
    out = HPs(lr=numbers["lr"])
    for name, number in numbers.items():
        out = out.with_value(name, number)
    return out
