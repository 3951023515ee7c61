"""Arms with HPs or a balance of their own, in one sweep with others.

The sweep under such an arm is a sweep of plain tables, whose base values the arm moves. So each line of the grid runs
through the arm's own base values, and a trial's id follows from its HPs and its balance: arms in which both are equal
share their trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import check_hp_name, check_hp_value
from hpxfer.spec.arms_section import ParameterizationSpec
from hpxfer.spec.fields import Problem
from hpxfer.spec.sweep import SweepSpec
from hpxfer.spec.yaml_file import KeyPath, spell

_OF_TRAINING = ("weight_decay", "eps")
_BETAS = ("beta1", "beta2")


def arm_label(table: str, name: str | None) -> str:
    """Return the label of an arm, e.g. `completep-moe (tuned)`. `hpxfer.verdict.shape_names` reads it."""
    return table if name is None else f"{table} ({name})"


def parts_of(spec: SweepSpec) -> tuple[tuple[str | None, SweepSpec], ...]:
    """Return (name, the sweep under them) of the arms that share a name, HPs and balance, in order.

    A sweep of plain tables is its own only part.
    """
    if all(arm.is_plain for arm in spec.parameterizations):
        return ((None, spec),)
    parts: list[list[ParameterizationSpec]] = []
    for arm in spec.parameterizations:
        part = next((part for part in parts if part[0].own == arm.own), None)
        if part is None:
            parts.append(part := [])
        part.append(arm)
    return tuple((part[0].name, _under(spec, part)) for part in parts)


def _under(spec: SweepSpec, arms: Sequence[ParameterizationSpec]) -> SweepSpec:
    """Return the sweep of some arms, as one of plain tables with the arms' HPs and balance as its own."""
    given, model, balance = arms[0].given(), spec.model, arms[0].balance
    if balance is not None:
        model = model.model_copy(update={"balance": balance})
        if balance.aux == "none":
            given = {"aux_weight": 0.0, **given}
    of_training: dict[str, Any] = {name: given.pop(name) for name in _OF_TRAINING if name in given}
    if any(name in given for name in _BETAS):
        betas = zip(_BETAS, spec.training.betas, strict=False)
        of_training["betas"] = tuple(given.pop(name, beta) for name, beta in betas)
    multipliers = {**spec.hps.multipliers, **{name: value for name, value in given.items() if "." in name}}
    scalars = {name: value for name, value in given.items() if "." not in name}
    return spec.model_copy(
        update={
            "parameterizations": tuple(arm.plain() for arm in arms),
            "model": model,
            "hps": spec.hps.model_copy(update={**scalars, "multipliers": multipliers}),
            "training": spec.training.model_copy(update=of_training),
        }
    )


def arm_problems(
    spec: SweepSpec,
    without_effect: Callable[[SweepSpec, str], str | None],
    joint: Callable[[SweepSpec], Iterator[Problem]],
) -> Iterator[Problem]:
    """Yield what is wrong with the HPs and the balance of arms.

    `without_effect` returns why an HP changes nothing. `joint` yields the rules that join base HPs with other keys.
    """
    own = [(index, arm) for index, arm in enumerate(spec.parameterizations) if not arm.is_plain]
    found = list(joint(spec)) if own else []
    for index, arm in own:
        at: KeyPath = ("parameterizations", index)
        under = _under(spec, [arm])
        problems = list(_hp_problems(under, at, arm, without_effect))
        yield from problems
        if not problems:
            yield from ((at, f"{spell(path)}: {text}") for path, text in joint(under) if (path, text) not in found)


def _hp_problems(
    spec: SweepSpec, at: KeyPath, arm: ParameterizationSpec, without_effect: Callable[[SweepSpec, str], str | None]
) -> Iterator[Problem]:
    multipliers = {} if arm.hps is None else arm.hps.multipliers
    for name, value in arm.given().items():
        key: KeyPath = (*at, "hps", *(("multipliers",) if name in multipliers else ()), name)
        if name in multipliers and "." not in name:
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
