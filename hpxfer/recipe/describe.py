"""Describe: what a recipe gives at a target shape, as text. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpxfer.host.output import aligned
from hpxfer.recipe.assign import BALANCED
from hpxfer.recipe.forward_sites import EXPERTS
from hpxfer.recipe.tuned_on import stated
from hpxfer.scaling.roles import ROLES

if TYPE_CHECKING:
    from hpxfer.scaling.evaluate import Multipliers
    from hpxfer.scaling.shape import Shape
    from hpxfer.spec.recipe_file import RecipeFile

HEADER = ("role", "init std", "peak LR", "eps", "weight decay")


def description(
    recipe: RecipeFile,
    target: Shape,
    *,
    values: Mapping[str, Multipliers],
    forward: Sequence[tuple[str, float, str]],
    betas: tuple[float, float] | None,
    by_hand: Sequence[str],
    cautions: Sequence[str],
) -> str:
    """Return the description.

    `forward` holds (key, multiplier, what is multiplied), and `by_hand` what the model must do itself.
    """
    rows = [HEADER, *(_row(role, at) for role, at in values.items() if role != BALANCED)]
    parts = [
        [
            f"{recipe.parameterization.name}, {recipe.optimizer}, {_origin(recipe)}",
            f"target {_spell(target.dims())}{_schedule(recipe, target)}",
            f"base   {_spell(recipe.base_shape)}",
            f"tuned on: {', '.join(f'{name} {value}' for name, value in stated(recipe).items())}",
        ],
        [
            "Multiply in the forward pass",
            *(f"  {key:<11}  {value:<12.6g}  {where}" for key, value, where in [*forward, *_product(forward)]),
        ],
        ["Optimizer and initialization", *(f"  {line}" for line in aligned(rows))],
    ]
    if betas is not None:
        parts[-1].append(f"  betas {betas[0]:.6g}, {betas[1]:.6g}")
    rule = recipe.model.bias_rule
    if BALANCED in values and rule != "none":
        above = f"load - {target.kappa:g}"
        step = f"sign({above})" if rule == "sign" else f"({above})"
        text = f"bias -= {values[BALANCED].lr:g} * {step} after every step, outside the optimizer"
        parts.append([f"Router bias: {text}"])
    parts += [[f"By hand: {sentence}"] for sentence in by_hand]
    if cautions:
        parts.append([f"warning: {caution}" for caution in cautions])
    return "\n\n".join("\n".join(part) for part in parts)


def _product(forward: Sequence[tuple[str, float, str]]) -> list[tuple[str, float, str]]:
    """Return the product of the numbers that multiply the routed experts, where there are two of them."""
    numbers = [value for key, value, _ in forward if key in EXPERTS]
    where = f"{' x '.join(reversed(EXPERTS))}: what the routed experts get in all"
    return [("product", math.prod(numbers), where)] if len(numbers) > 1 else []


def _schedule(recipe: RecipeFile, target: Shape) -> str:
    """Return that a target without batch and steps gets those of the base."""
    return " (batch_tokens and steps as at the base)" if recipe.base_shape.get("steps") and not target.steps else ""


def _origin(recipe: RecipeFile) -> str:
    if recipe.fitted is None:
        return "made by hand, so that no sweep says how well it transfers"
    search = recipe.provenance.search
    by = f" with {search.kind} over {', '.join(search.hps)}, {search.num_trials} trials" if search else ""
    return f"tuned by the sweep {recipe.provenance.sweep}{by}: {recipe.fitted.hp} {recipe.fitted.value:g}"


def _spell(parts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in parts.items())


def _row(role: str, at: Multipliers) -> tuple[str, ...]:
    std = "ones" if ROLES[role] == "ones" else f"{at.init_std:.6g}"
    return (role, std, *(f"{value:.6g}" for value in (at.lr, at.eps, at.weight_decay)))
