"""Variants: the same tables under other base HPs or another balance, in one sweep. An arm is a table under a variant.

The sweep under a variant is a sweep without variants, whose base values the variant moves. So each line of the grid
runs through the variant's own base values, and a trial's id follows from its HPs and its balance: arms in which both
are equal share their trials.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from hpxfer.errors import HpxferError, shown
from hpxfer.scaling.hps import check_hp_name, check_hp_value
from hpxfer.spec.base_values import base_values
from hpxfer.spec.problem import Problem
from hpxfer.spec.sweep import SweepSpec
from hpxfer.spec.variants_section import VariantHPs, VariantSpec
from hpxfer.spec.yaml_file import KeyPath

# The variant that changes nothing. Its arms have the labels that they have in a sweep without variants.
DEFAULT = "default"
MAX_NAME = 40  # characters; a name is part of labels in tables and figures
_OF_TRAINING = ("weight_decay", "eps")
_BETAS = ("beta1", "beta2")


def variants_of(spec: SweepSpec) -> tuple[tuple[str, SweepSpec], ...]:
    """Return (name, the sweep under it) of every variant, or the sweep itself as the default one."""
    if spec.variants is None:
        return ((DEFAULT, spec),)
    return tuple((name, _under(spec, variant)) for name, variant in spec.variants.items())


def arm_label(table: str, variant: str) -> str:
    """Return the label of a table under a variant, e.g. `completep-moe (tuned)`, or that of the table under `default`.

    `hpxfer.verdict.labels` reads it.
    """
    return table if variant == DEFAULT else f"{table} ({variant})"


def given_hps(hps: VariantHPs) -> dict[str, float]:
    """Return HP -> value, for those that a variant gives."""
    scalars = {name: value for name, value in vars(hps).items() if name != "multipliers" and value is not None}
    return {**scalars, **hps.multipliers}


def _under(spec: SweepSpec, variant: VariantSpec) -> SweepSpec:
    given, model = given_hps(variant.hps), spec.model
    if variant.balance is not None:
        model = model.model_copy(update={"balance": variant.balance})
        if variant.balance.aux == "none":
            given = {"aux_weight": 0.0, **given}
    of_training: dict[str, Any] = {name: given.pop(name) for name in _OF_TRAINING if name in given}
    if any(name in given for name in _BETAS):
        of_training["betas"] = tuple(
            given.pop(name, beta) for name, beta in zip(_BETAS, spec.training.betas, strict=False)
        )
    multipliers = {**spec.hps.multipliers, **{name: value for name, value in given.items() if "." in name}}
    scalars = {name: value for name, value in given.items() if "." not in name}
    return spec.model_copy(
        update={
            "variants": None,
            "model": model,
            "hps": spec.hps.model_copy(update={**scalars, "multipliers": multipliers}),
            "training": spec.training.model_copy(update=of_training),
        }
    )


def variant_problems(
    spec: SweepSpec,
    without_effect: Callable[[SweepSpec, str], str | None],
    joint: Callable[[SweepSpec], Iterator[Problem]],
) -> Iterator[Problem]:
    """Yield what is wrong with the variants.

    `without_effect` returns why an HP changes nothing. `joint` yields the rules that join base HPs with other keys.
    """
    if spec.variants is None:
        return
    if not spec.variants:
        yield ("variants",), "must name at least one variant, e.g. {default: {}, tuned: {hps: {...}}}; or take it out"
    found, broken = list(joint(spec)), False
    for name, variant in spec.variants.items():
        at: KeyPath = ("variants", name)
        under = _under(spec, variant)
        problems = [*_name_problems(at, name), *_hp_problems(under, at, variant.hps, without_effect)]
        if name == DEFAULT and (given_hps(variant.hps) or variant.balance):
            problems.append((at, f"must change nothing, because {DEFAULT} names the base HPs; choose another name"))
        yield from problems
        broken = broken or bool(problems)
        if not problems:
            yield from ((at, f"{_spelled(path)}: {text}") for path, text in joint(under) if (path, text) not in found)
    if not broken:
        yield from _equal(spec)


def _name_problems(at: KeyPath, name: str) -> Iterator[Problem]:
    if len(name) > MAX_NAME or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        rule = "letters, digits, '.', '_' and '-', starting with a letter or digit"
        yield at, f"a variant's name must have at most {MAX_NAME} {rule}, got {shown(name)}"


def _hp_problems(
    spec: SweepSpec, at: KeyPath, hps: VariantHPs, without_effect: Callable[[SweepSpec, str], str | None]
) -> Iterator[Problem]:
    for name, value in given_hps(hps).items():
        key: KeyPath = (*at, "hps", *(("multipliers",) if name in hps.multipliers else ()), name)
        if name in hps.multipliers and "." not in name:
            yield key, "must be a dotted name, e.g. router.lr_mult"
            continue
        try:
            check_hp_name(name)
            check_hp_value(name, value)
        except HpxferError as error:
            yield key, str(error)
            continue
        if why := without_effect(spec, name):
            yield key, why


def _equal(spec: SweepSpec) -> Iterator[Problem]:
    """Yield the variants whose base HPs and balance are those of an earlier one."""
    seen: dict[frozenset[tuple[str, Any]], str] = {}
    for name, under in variants_of(spec):
        values: frozenset[tuple[str, Any]] = frozenset(
            (hp, value) for hp, value in base_values(under).items() if "." not in hp or value != 1.0
        ) | {("balance", under.model.balance.setting())}
        if values in seen:
            yield ("variants", name), f"must differ from {seen[values]}, got the same base HPs; take one of them out"
        seen.setdefault(values, name)


def _spelled(path: KeyPath) -> str:
    return ".".join(map(str, path))
