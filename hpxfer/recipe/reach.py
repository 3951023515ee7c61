"""Reach: how far from what was measured a target shape lies. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpxfer.scaling.evaluate import Parameterization, coverage_warnings

if TYPE_CHECKING:
    from hpxfer.recipe.file import FittedPart
    from hpxfer.shape import Shape

# What a range is kept of. expert_width follows from width and expert_ratio.
DIMS = ("width", "depth", "num_experts", "num_active", "expert_ratio", "dense_width", "shared_width")
SAME = 1e-9


class OutOfRangeWarning(UserWarning):
    """The target lies outside what the recipe was fitted on, or where its HP is not known to transfer."""


def beyond(fitted: FittedPart, choice: Parameterization, base: Shape, target: Shape) -> list[str]:
    """Return in words all that takes `target` outside the fitted range and what the parameterization covers."""
    moved = {name: float(getattr(target, name)) for name in DIMS if not _same(target, base, name)}
    out = []
    for name, value in moved.items():
        ends = [end for axis in fitted.axes.values() for end in axis.dims.get(name, ())]
        low, high = (pick([float(getattr(base, name)), *ends]) for pick in (min, max))
        if value and not low * (1 - SAME) <= value <= high * (1 + SAME):  # 0 is a layer that is not there
            where = f"from {low:g} to {high:g}" if low != high else f"at {low:g} only" if low else "without it"
            out.append(f"{name} {value:g}: fitted {where}")
    for axis_name, axis in fitted.axes.items():
        if axis.verdict != "transfers" and moved.keys() & axis.dims.keys():
            out.append(f"{fitted.hp} along the axis {axis_name}: the verdict is {axis.verdict!r}")
    return out + coverage_warnings(choice, base, target)


def _same(target: Shape, base: Shape, name: str) -> bool:
    return bool(abs(getattr(target, name) - getattr(base, name)) <= SAME * getattr(base, name))
