"""Unattached: whether a model lacks the forward multipliers of a recipe, as far as that can be seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpxfer.recipe.forward_hooks import EXPERTS, SCALING, declared
from hpxfer.recipe.known_models import known_model, known_sites
from hpxfer.recipe.wrappers import class_of, plain_modules, unwrapped

if TYPE_CHECKING:
    import torch

    from hpxfer.scaling.shape import Shape


class UnattachedWarning(UserWarning):
    """The recipe has forward multipliers, and nothing multiplies by them as far as can be seen."""


def unattached(model: torch.nn.Module, target: Shape, numbers: Mapping[str, float]) -> str | None:
    """Return in words which multipliers the model lacks, or None.

    `numbers` are those that the model does not multiply by itself as its config says. `Recipe.attach` leaves a mark on
    the model, for multipliers by hand too: a model without the mark is taken to multiply by none of them.
    """
    given = declared(model)
    if given is not None:
        wrong = [key for key, by in numbers.items() if not _same(by, given.get(key, 1.0))]
        spelled = ", ".join(f"{key} {given.get(key, 1.0):.6g} in place of {numbers[key]:.6g}" for key in wrong)
        return f"the attached multipliers are those of another recipe or shape: {spelled}" if wrong else None
    ours = known_model(model) is None or not class_of(unwrapped(model)).__module__.startswith("transformers.")
    missing = _missing(target, numbers) if ours else _missing_in_known(model, target, numbers)
    if not missing:
        return None
    by_hand = ", ".join(f"'{key}'" for key, by in numbers.items() if by != 1.0)
    return (
        f"this {class_of(unwrapped(model)).__name__} does not multiply by {', '.join(missing)}, and trains otherwise "
        "than the recipe says: call recipe.attach(model, shape) before init_ and param_groups; of a model whose code "
        f"multiplies by them say so: recipe.attach(model, shape, by_hand=[{by_hand}])"
    )


def _missing(target: Shape, numbers: Mapping[str, float]) -> list[str]:
    """Return the multipliers that change a model with common attention, and with gates as its recipe says."""
    net = dict(numbers)
    if "attn_logits" in net:
        net["attn_logits"] /= target.head_dim**-0.5
    product = " x ".join(reversed([key for key in EXPERTS if key in net]))
    if product:  # both multiply the sum over the active experts
        net[product] = math.prod(net.pop(key) for key in EXPERTS if key in net)
    return [f"{key} ({numbers.get(key, by):.6g})" for key, by in net.items() if not _same(by, 1.0)]


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
