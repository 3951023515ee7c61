"""Regimes: three ways in which width N, expert width N_e, experts M and active experts K grow (MSSP, Table 1).

I    N, N_e together            M, K fixed
II   N, M, K together           N_e fixed
III  N, N_e, M, K together
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from hpxfer.scaling.table import Table
from hpxfer.scaling.tables import PARAMETERIZATIONS

DIMS = ("width", "expert_width", "experts", "active")
REGIMES = {
    "I": ("width", "expert_width"),
    "II": ("width", "experts", "active"),
    "III": ("width", "expert_width", "experts", "active"),
}
SAME = 1e-9


def follows(regime: str, at: Mapping[str, float]) -> bool:
    """Return whether the ratios lie on the regime's path: its dimensions grow by the same factor, the others stay."""
    growth = at["width"]
    return all(math.isclose(at[dim], growth if dim in REGIMES[regime] else 1.0, rel_tol=SAME) for dim in DIMS)


def regime_warning(table: Table, at: Mapping[str, float]) -> str | None:
    """Return how the path leaves the table's regime, and which regime it follows instead. Return None if it stays."""
    assert table.regime is not None
    if follows(table.regime, at):
        return None
    path = ", ".join(f"{dim} x{at[dim]:g}" for dim in DIMS)
    fits = [regime for regime in REGIMES if follows(regime, at)]
    family = table.name.removesuffix(table.regime.lower())
    fix = f"it follows regime {fits[0]}" if fits else "it follows none of the regimes"
    if fits and (sibling := family + fits[0].lower()) in PARAMETERIZATIONS:
        fix += f": use {sibling}"
    moving = ", ".join(REGIMES[table.regime])
    rule = f"{table.name} is for regime {table.regime}, where {moving} grow by one factor and the rest stays"
    return f"{rule}: {path}; {fix}"
