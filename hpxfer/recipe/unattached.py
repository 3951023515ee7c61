"""Unattached: whether a model lacks the forward multipliers of a recipe, as far as that can be seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpxfer.recipe.forward_hooks import SCALING, declared
from hpxfer.recipe.known_models import known_model, known_sites
from hpxfer.recipe.wrappers import class_of, plain_modules, unwrapped

if TYPE_CHECKING:
    import torch

    from hpxfer.scaling.shape import Shape

# The multipliers that this process asked for as numbers. A model that was written with them needs no hooks.
_HANDED_OUT: set[frozenset[tuple[str, float]]] = set()


class UnattachedWarning(UserWarning):
    """The recipe has forward multipliers, and nothing multiplies by them as far as can be seen."""


def handed_out(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the forward multipliers for somebody who may write them into a model, and remember that."""
    _HANDED_OUT.add(frozenset(numbers.items()))
    return dict(numbers)


def unattached(model: torch.nn.Module, target: Shape, numbers: Mapping[str, float]) -> str | None:
    """Return in words which multipliers the model lacks, or None.

    `Recipe.attach` leaves a mark on the model, for multipliers by hand too. A model of `transformers` multiplies by
    none of these numbers by itself. A model of the user's own may: it is taken to do so if this process asked for the
    numbers.
    """
    given = declared(model)
    if given is not None:
        wrong = [key for key, by in numbers.items() if not _same(by, given.get(key, 1.0))]
        spelled = ", ".join(f"{key} {given.get(key, 1.0):.6g} in place of {numbers[key]:.6g}" for key in wrong)
        return f"the attached multipliers are those of another recipe or shape: {spelled}" if wrong else None
    ours = known_model(model) is None or not class_of(unwrapped(model)).__module__.startswith("transformers.")
    if ours and frozenset(numbers.items()) in _HANDED_OUT:
        return None
    missing = _missing(target, numbers) if ours else _missing_in_known(model, target, numbers)
    if not missing:
        return None
    return (
        f"this {class_of(unwrapped(model)).__name__} does not multiply by {', '.join(missing)}, and trains otherwise "
        "than the recipe says: call recipe.attach(model, shape) before init_ and param_groups; of a model that "
        "multiplies by itself say recipe.attach(model, shape, sites=(), by_hand=recipe.forward_multipliers(shape))"
    )


def _missing(target: Shape, numbers: Mapping[str, float]) -> list[str]:
    """Return the multipliers that change a model with common attention, and with gates as its recipe says."""
    net = dict(numbers)
    if "attn_logits" in net:
        net["attn_logits"] /= target.head_dim**-0.5
    if "expert_out" in net:
        net["expert_out"] *= net.pop("route_scale", 1.0)
    return [f"{key} ({numbers[key]:.6g})" for key, by in net.items() if not _same(by, 1.0)]


def _missing_in_known(model: torch.nn.Module, target: Shape, numbers: Mapping[str, float]) -> list[str]:
    """Return the multipliers that change a known model. Two that cancel at one module change nothing."""
    modules, net, keys = plain_modules(model), dict[str, float](), dict[str, list[str]]()
    missing = dict[str, None]()
    for name, key in known_sites(model, numbers):
        if key == "attn_logits":
            if not _same(getattr(modules[name], SCALING, target.head_dim**-0.5), numbers[key]):
                missing[key] = None
        else:
            net[name] = net.get(name, 1.0) * numbers[key]
            keys.setdefault(name, []).append(key)
    missing |= {key: None for name, by in net.items() if not _same(by, 1.0) for key in keys[name]}
    return [f"{key} ({numbers[key]:.6g})" for key in missing]


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9)
