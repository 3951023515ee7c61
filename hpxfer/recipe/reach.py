"""Reach: whether a target shape can come from the base, and how far from what was measured it lies. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError
from hpxfer.scaling.coverage import ModelFacts, coverage_warnings
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.table import Optimizer

if TYPE_CHECKING:
    from hpxfer.recipe.file import FittedPart
    from hpxfer.scaling.shape import Shape

# What a range is kept of. Hidden sizes are kept as ratios: they follow the width.
MODEL_DIMS = (
    *("width", "depth", "num_experts", "num_active", "expert_ratio"),
    *("num_shared", "shared_ratio", "num_groups", "dense_ratio", "head_dim"),
)
SCHEDULE_DIMS = ("batch_tokens", "steps")
DIMS = (*MODEL_DIMS, *SCHEDULE_DIMS)
SAME = 1e-9


class OutOfRangeWarning(UserWarning):
    """The target lies outside what the recipe was fitted on, or where its HP is not known to transfer."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How a recipe scales: its table, for which optimizer, from which base, and what is known of the model."""

    choice: Parameterization
    optimizer: Optimizer
    base: Shape
    facts: ModelFacts

    def not_covered(self, target: Shape) -> tuple[list[str], list[str]]:
        """Return what the source does not cover: of the way from base to target shape, and all else.

        Batch and duration are no part of a model's shape: they belong to the second.
        """

        def said(base: Shape, target: Shape) -> list[str]:
            return coverage_warnings(self.choice, base, target, self.facts, self.optimizer)

        bare = replace(target, batch_tokens=0, steps=0)
        of_the_model = said(bare, bare)  # nothing moves
        way = [one for one in said(replace(self.base, batch_tokens=0, steps=0), bare) if one not in of_the_model]
        return way, [one for one in said(self.base, target) if one not in way]


def dim(shape: Shape, name: str) -> float:
    """Return one of DIMS; 0 for what the shape does not have or does not say."""
    return shape.shared_width / shape.width if name == "shared_ratio" else float(getattr(shape, name))


def check_ancestor(rule: Rule, fitted: FittedPart | None, target: Shape) -> None:
    """Raise HpxferError if the table has no way from the base shape to the target's, and nobody measured one.

    A sweep may have gone where its table's source does not go. What it measured is a matter of its verdict, and of
    `beyond`; any other step is refused.
    """
    way, _ = rule.not_covered(target)
    if way and not _was_measured(rule.base, fitted, target):
        choice, base = rule.choice, rule.base
        raise HpxferError(
            f"target_shape: must be a shape that {choice.label()} leads to from the recipe's base {base.label()}, "
            f"got {target.label()}: {'; '.join(way)}; take a base that differs from the target in "
            f"{', '.join(choice.table.axes)} only, or a parameterization that covers the rest"
        )


def beyond(rule: Rule, fitted: FittedPart | None, target: Shape) -> list[str]:
    """Return in words all that takes `target` outside the fitted range and what the parameterization covers."""
    base, out = rule.base, []
    moved = _moved(base, target)
    for name, value in moved.items() if fitted else ():
        low, high = _range(base, fitted, name)
        if value and not _inside(value, low, high):  # 0 is a layer that is not there
            where = f"from {low:g} to {high:g}" if low != high else f"at {low:g} only" if low else "without it"
            out.append(f"{name} {value:g}: fitted {where}")
    for axis_name, axis in fitted.axes.items() if fitted else ():
        if fitted and axis.verdict != "transfers" and moved.keys() & axis.dims.keys():
            out.append(f"{fitted.hp} along the axis {axis_name}: the verdict is {axis.verdict!r}")
    way, others = rule.not_covered(target)
    return [*out, *way, *others]


def _moved(base: Shape, target: Shape) -> dict[str, float]:
    """Return the dimensions in which the target differs from the base; what a side does not say does not move."""
    out = {}
    for name in DIMS:
        old, new = dim(base, name), dim(target, name)
        unknown = name in SCHEDULE_DIMS and not (old and new)
        if not unknown and abs(new - old) > SAME * old:
            out[name] = new
    return out


def _range(base: Shape, fitted: FittedPart | None, name: str) -> tuple[float, float]:
    ends = [end for axis in (fitted.axes.values() if fitted else ()) for end in axis.dims.get(name, ())]
    return min([dim(base, name), *ends]), max([dim(base, name), *ends])


def _was_measured(base: Shape, fitted: FittedPart | None, target: Shape) -> bool:
    """Return whether every dimension of the model that moves stays within what the recipe's sweep went through."""
    moved = _moved(base, target)
    return all(_inside(moved[name], *_range(base, fitted, name)) for name in MODEL_DIMS if name in moved)


def _inside(value: float, low: float, high: float) -> bool:
    return low * (1 - SAME) <= value <= high * (1 + SAME)


def check_embeddings(rule: Rule, tied: bool | None) -> None:
    """Raise HpxferError if the conventions do not go with a model whose embeddings are tied, or are not."""
    base = rule.base

    def said(tied: bool | None) -> list[str]:
        facts = replace(rule.facts, tied_embeddings=tied)
        return coverage_warnings(rule.choice, base, base, facts, rule.optimizer)

    if wrong := [one for one in said(tied) if one not in said(None)]:
        raise HpxferError("\n".join(f"roles: {one}" for one in wrong))
