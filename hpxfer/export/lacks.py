"""Lacks: what a target cannot hold, each with the call that does it there. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hpxfer.export.plan import Plan
from hpxfer.recipe.forward_sites import EXPERTS
from hpxfer.scaling.roles import ROLES

SAME = 1e-9


@dataclass(frozen=True, kw_only=True)
class Lack:
    """One thing that a target cannot hold."""

    what: str  # e.g. `forward multiplier readout 0.25`
    call: str  # what does it, as code or in words


def forward_lacks(
    plan: Plan, sites: Mapping[str, str], held: Collection[str] = (), by_model: Mapping[str, str] | None = None
) -> list[Lack]:
    """Return the forward multipliers other than 1 that the target does not hold.

    `sites` maps a key to the pattern of the module that a hook multiplies, `held` are the keys that the target's own
    settings hold, and `by_model` maps a key that no hook can multiply there to what the user does.
    """
    numbers = {key: number for key, number in plan.forward.items() if key not in held}
    ones = [key for key, number in numbers.items() if math.isclose(number, 1.0, rel_tol=SAME)]
    experts = math.prod(numbers.get(key, 1.0) for key in EXPERTS)
    if math.isclose(experts, 1.0, rel_tol=SAME):
        ones += [key for key in EXPERTS if key in numbers and key not in ones]
    open_keys = [key for key in numbers if key not in ones]
    by_model = {key: call for key, call in (by_model or {}).items() if key in open_keys}
    hooked = [key for key in open_keys if key not in by_model]
    pairs = ", ".join(f"({sites[key]!r}, {key!r})" for key in hooked if key in sites)
    by_hand = [key for key in plan.forward if key not in hooked or key not in sites]
    by_call: dict[str, list[str]] = {}
    for key in open_keys:
        if key in by_model:
            call = by_model[key]
        elif key in sites:
            call = f"recipe.attach(model, shape, sites=[{pairs}], by_hand={by_hand!r})"
        else:
            call = f"multiply in the model: {plan.resolved.base.sites()[key]}"
        by_call.setdefault(call, []).append(f"{key} {numbers[key]:.6g}")
    return [
        Lack(what=f"forward {'multiplier' if len(keys) == 1 else 'multipliers'} {', '.join(keys)}", call=call)
        for call, keys in by_call.items()
    ]


def init_lacks(plan: Plan, native: Mapping[str, float | None]) -> list[Lack]:
    """Return a lack if the target's own initialization gives a parameter another std than the recipe.

    `native` maps each name to the std that the target gives it, or None if it has no setting for it. Gains that start
    at one and biases that start at zero do so everywhere.
    """
    wrong = [
        row
        for row in plan.rows
        if ROLES[row.role.split("+")[0]] not in ("ones", "zeros")
        and not _same_std(native.get(row.name), 0.0 if isinstance(row.init, str) else row.init)
    ]
    lacks = []
    if wrong:
        roles = list(dict.fromkeys(role for row in wrong for role in row.role.split("+")))
        lacks.append(
            Lack(
                what=f"the init std of {', '.join(roles)}",
                call="recipe.init_(model, hpxfer.export.read_roles('hpxfer.json'), shape), on the whole model",
            )
        )
    if plan.recipe.parameterization.structure().tied_experts:
        lacks.append(
            Lack(
                what="the same draw for all experts of a layer at the start",
                call="recipe.init_(model, hpxfer.export.read_roles('hpxfer.json'), shape)",
            )
        )
    return lacks


def other_lacks(plan: Plan) -> list[Lack]:
    """Return what neither a target nor hpxfer can do: rules of a table that the model itself must follow."""
    return [Lack(what="a rule of the table", call=sentence) for sentence in plan.resolved.by_hand]


def _same_std(native: float | None, wanted: float) -> bool:
    return native is not None and math.isclose(native, wanted, rel_tol=1e-6, abs_tol=1e-15)
