"""Base points: cautions about base values that their own grid does not have.

The grid of lr and the grid of init_scale are two lines, which meet where both HPs have their base values. With
`hps.lr: 0.0156` beside the grid point 2^-6 = 0.015625 they meet nowhere, and the sweep trains both values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from hpxfer.spec.base_values import base_values
from hpxfer.spec.sweep import HPsSpec, TrainingSpec
from hpxfer.trial import Expansion

_BETAS = ("beta1", "beta2")  # which stand in one list


def base_point_cautions(expansion: Expansion) -> Iterator[str]:
    """Yield a caution for each base value that is no point of its grid: where it lies, or that it has no effect.

    Arms are named where they move the base value.
    """
    known = set[str]()
    for part in expansion.parts:
        cautions = set(_of_part(part)) - known
        known |= cautions
        of_arm = "" if part.name is None else f"arm {part.name}: "
        yield from (f"{of_arm}{caution}" for caution in _of_part(part) if caution in cautions)


def _of_part(expansion: Expansion) -> Iterator[str]:
    spec = expansion.spec
    if spec.search_row.is_box or any(spec.search_row.why_no_line(spec, name) for name in spec.grid):
        return
    for name, values in spec.grid.items():
        base, points = base_values(spec).get(name, 1.0), values.numbers()
        there = any(math.isclose(base, point, rel_tol=1e-9) for point in points) if spec.product else base in points
        if there or (name == "lr" and spec.hps.lr is None):
            continue
        near = min(points, key=lambda point: abs(point - base))
        where = f"{_key(name)}: {base!r} is no point of grid.{name}, of which the nearest is {near!r}"
        if others := [other for other in spec.grid if other != name]:
            how = "cannot be read" if spec.product else f"meet that of {name} nowhere"
            yield f"{where}; the lines of {' and '.join(others)} run through it, and {how}"
        elif spec.search_row.tunes == "lines" and base != _default(name):
            yield f"{where}; no other line runs through it, so it has no effect"


def _default(name: str) -> Any:
    """Return the base value that an HP has where the file gives none: of lr, None."""
    if "." in name:
        return 1.0
    if name in _BETAS:
        return TrainingSpec.model_fields["betas"].default[_BETAS.index(name)]
    section = TrainingSpec if name in TrainingSpec.model_fields else HPsSpec
    return section.model_fields[name].default


def _key(name: str) -> str:
    """Return the key of the sweep file that holds the base value of an HP."""
    if name in _BETAS:
        return f"training.betas[{_BETAS.index(name)}]"
    if name in TrainingSpec.model_fields:
        return f"training.{name}"
    return f"hps.multipliers.{name}" if "." in name else f"hps.{name}"
