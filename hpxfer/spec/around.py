"""Around: `grid: {lr: {around: [-2, 2]}}` scans octaves from the base value, which may come from a recipe."""

from __future__ import annotations

import math

from hpxfer.spec.base_values import base_values
from hpxfer.spec.fields import GridValues
from hpxfer.spec.sweep import SweepSpec


def centered(spec: SweepSpec) -> SweepSpec:
    """Return the sweep with exponents of two in the place of `around`.

    It stays where it is malformed, or where there is no base value above zero. The rules of the grid then refuse it.
    """
    if all(values.around is None for values in spec.grid.values()):
        return spec
    known = base_values(spec)
    grid = {
        name: _centered(values, known.get(name, 1.0 if "." in name else None)) for name, values in spec.grid.items()
    }
    return spec.model_copy(update={"grid": grid})


def _centered(values: GridValues, base: float | None) -> GridValues:
    """Return the values of one HP around its base value."""
    is_alone = values.values is None and values.log2 is None
    is_range = values.around is not None and len(values.around) == 2 and values.around[0] <= values.around[1]
    if values.around is None or not is_range or not is_alone or base is None or not 0 < base < math.inf:
        return values
    low, high = (math.log2(base) + octaves for octaves in values.around)
    return GridValues(log2=(low, high), step=values.step)
