"""Whether a target follows from the base and lies within what was measured. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError, shown
from hpxfer.scaling.coverage import ModelFacts, coverage_warnings
from hpxfer.scaling.shape import check_attention

if TYPE_CHECKING:
    from hpxfer.recipe.file import FittedPart
    from hpxfer.recipe.recipe import Recipe
    from hpxfer.scaling.shape import Shape

# The dimensions whose fitted range a recipe holds. Hidden sizes are ratios, because they follow the width.
MODEL_DIMS = (
    *("width", "depth", "num_experts", "num_active", "expert_ratio"),
    *("num_shared", "shared_ratio", "num_groups", "dense_ratio", "head_dim"),
)
SCHEDULE_DIMS = ("batch_tokens", "steps")
DIMS = (*MODEL_DIMS, *SCHEDULE_DIMS)
SAME = 1e-9


class OutOfRangeWarning(UserWarning):
    """The target lies outside the range that the recipe was fitted on, or its HP is not known to transfer there."""


def not_covered(recipe: Recipe, target: Shape) -> tuple[list[str], list[str]]:
    """Return what the table's source does not cover: of the changes from base to target shape, and of all else.

    Batch and duration are not part of a model's shape, and belong to the second list.
    """
    base, bare = (replace(shape, batch_tokens=0, steps=0) for shape in (recipe.base_shape, target))
    unchanged = _not_covered(recipe, bare, bare)
    changes = [warning for warning in _not_covered(recipe, base, bare) if warning not in unchanged]
    others = _not_covered(recipe, recipe.base_shape, target)
    return changes, [warning for warning in others if warning not in changes]


def _not_covered(recipe: Recipe, base: Shape, target: Shape, tied: bool | None = None) -> list[str]:
    """Return the warnings. Whether embeddings are tied is a fact of the user's model, and not of the base."""
    made = recipe.file.provenance.made == "by a sweep"
    facts = ModelFacts(gate=recipe.file.model.gate, heads_are_known=made, tied_embeddings=tied)
    return coverage_warnings(recipe.parameterization, base, target, facts, recipe.column)


def dim(shape: Shape, name: str) -> float:
    """Return one of DIMS. It is 0 where the shape has no such part or does not give it."""
    return shape.shared_width / (shape.width or 1) if name == "shared_ratio" else float(getattr(shape, name))


def check_covered(recipe: Recipe, target: Shape) -> None:
    """Raise HpxferError if neither the table's source nor the recipe's sweep covers the changes from base to target.

    A sweep may measure changes that its table's source does not cover. `out_of_range` warns about these.
    """
    choice, base = recipe.parameterization, recipe.base_shape
    if problem := check_attention(base, target):
        raise HpxferError(f"target_shape: {problem}")
    changes, _ = not_covered(recipe, target)
    if changes and not _was_measured(base, recipe.file.fitted, target):
        raise HpxferError(
            f"target_shape: must be a shape that {choice.label()} leads to from the recipe's base {base.label()}, "
            f"got {target.label()}: {'; '.join(changes)}; take a base that differs from the target in "
            f"{', '.join(choice.table.axes)} only, or a parameterization that covers the rest"
        )


def out_of_range(recipe: Recipe, target: Shape) -> list[str]:
    """Return in words how `target` lies outside the fitted range and outside what the parameterization covers."""
    base, fitted, out = recipe.base_shape, recipe.file.fitted, []
    moved = _moved(base, target)
    for name, value in moved.items() if fitted else ():
        low, high = _range(base, fitted, name)
        if value and not _inside(value, low, high):  # 0 means that there is no such layer
            where = f"from {low:g} to {high:g}" if low != high else f"at {low:g} only" if low else "without it"
            out.append(f"{name} {value:g}: fitted {where}")
    for axis_name, axis in fitted.axes.items() if fitted else ():
        if fitted and axis.verdict != "transfers" and moved.keys() & axis.dims.keys():
            out.append(f"{fitted.hp} along the axis {axis_name}: the verdict is {shown(axis.verdict)}")
    changes, others = not_covered(recipe, target)
    return [*out, *changes, *others]


def _moved(base: Shape, target: Shape) -> dict[str, float]:
    """Return the dimensions in which the target differs from the base, as far as both give them."""
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
    """Return whether each dimension of the model that differs stays within the range of the recipe's sweep."""
    moved = _moved(base, target)
    return all(_inside(moved[name], *_range(base, fitted, name)) for name in MODEL_DIMS if name in moved)


def _inside(value: float, low: float, high: float) -> bool:
    return low * (1 - SAME) <= value <= high * (1 + SAME)


def check_embeddings(recipe: Recipe, tied: bool | None) -> None:
    """Raise HpxferError if the conventions do not suit a model whose embeddings are tied, or are not tied."""
    base = recipe.base_shape
    unknown = _not_covered(recipe, base, base)
    if wrong := [warning for warning in _not_covered(recipe, base, base, tied) if warning not in unknown]:
        raise HpxferError("\n".join(f"roles: {warning}" for warning in wrong))
