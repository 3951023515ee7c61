"""Tensors: what a recipe gives each tensor of the sweep's model at another shape. Pure."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.model.families import FAMILIES
from hpxfer.model.parameters import ParameterSpec
from hpxfer.recipe import Recipe
from hpxfer.recipe.assign import BALANCED
from hpxfer.recipe.explain import TensorRow
from hpxfer.recipe.resolved import Base, Resolved
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape

if TYPE_CHECKING:
    from hpxfer.trial import Setting


@dataclass(frozen=True, kw_only=True)
class TargetHPs:
    """The HPs at a target: of each tensor, and of the forward pass. Empty if `why_not` says why there are none."""

    rows: tuple[TensorRow, ...] = ()  # in the order of the model
    forward: Mapping[str, float] | None = None  # key of `Recipe.forward_multipliers` -> factor
    sites: Mapping[str, str] | None = None  # key -> what is multiplied by it
    betas: tuple[float, float] | None = None  # None if the optimizer has none
    router_bias_lr: float | None = None  # the rate of the balancing rule; None without one
    by_hand: tuple[str, ...] = ()  # what the model must do itself, one sentence each
    cautions: tuple[str, ...] = ()  # how the target lies beyond what was measured
    why_not: str | None = None


def target_hps(recipe: Recipe, target: Shape, setting: Setting) -> TargetHPs:
    """Return the HPs of every tensor of a model with this setting at the target."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            values, forward = recipe.multipliers(target), recipe.forward_multipliers(target)
            at = Resolved(Base(recipe.file), target)
            rate = recipe.router_bias_lr(target) if setting.balance.bias != "none" and BALANCED in values else None
            tensors = FAMILIES.get(setting.family).parameters(target, setting)
            rows = tuple(_row(tensor, values[tensor.role]) for tensor in tensors)
        except HpxferError as error:
            return TargetHPs(why_not=str(error))
    said: dict[str, Any] = {
        str(one.message): None for one in caught if type(one.message).__module__.startswith("hpxfer.")
    }
    return TargetHPs(
        rows=rows,
        forward=forward,
        sites=recipe.forward_sites(),
        betas=at.betas,
        router_bias_lr=rate,
        by_hand=at.by_hand,
        cautions=tuple(said),
    )


def _row(tensor: ParameterSpec, at: Multipliers) -> TensorRow:
    kind = ROLES[tensor.role]
    return TensorRow(
        name=tensor.name,
        role=tensor.role,
        size=tensor.size,
        init="ones" if kind == "ones" else at.init_std or "zeros",
        lr=at.lr,
        eps=at.eps,
        weight_decay=at.weight_decay,
        note=f"in {tensor.layers} blocks" if tensor.blocks else None,
    )
