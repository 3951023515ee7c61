"""The statistics: what a report says besides the verdict. Each is one file here and one line in the table below.

A statistic of the user's is registered by a plug-in: `register_statistic(Statistic(name=..., title=..., compute=...))`.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Chart, Found, Statistic
from hpxfer.errors import HpxferError, shown
from hpxfer.registry import Registry

__all__ = ["STATISTICS", "Chart", "Found", "Inputs", "Statistic", "register_statistic"]

# In the order in which reports show them.
STATISTICS: Registry[Statistic] = Registry(
    "statistic",
    {
        "search_best": "hpxfer.analysis.statistics.searches:SEARCH_BEST",
        "search_steps": "hpxfer.analysis.statistics.searches:SEARCH_STEPS",
        "pair_optima": "hpxfer.analysis.statistics.searches:PAIR_OPTIMA",
        "bases": "hpxfer.analysis.statistics.base_choice:BASES",
        "joint": "hpxfer.analysis.statistics.joint_drift:JOINT",
        "surfaces": "hpxfer.analysis.statistics.surface:SURFACES",
        "pair_cells": "hpxfer.analysis.statistics.surface:PAIR_CELLS",
        "gains": "hpxfer.analysis.statistics.gains:GAINS",
        "errors": "hpxfer.analysis.statistics.errors:CLASSIFICATION_ERRORS",
        "collapse": "hpxfer.analysis.statistics.collapse:COLLAPSE",
        "collapse_curves": "hpxfer.analysis.statistics.collapse:COLLAPSE_CURVES",
        "normalized_curves": "hpxfer.analysis.statistics.collapse:NORMALIZED_CURVES",
        "balance": "hpxfer.analysis.statistics.routers:BALANCE",
        "routers": "hpxfer.analysis.statistics.routers:ROUTERS",
        "stability": "hpxfer.analysis.statistics.stability:STABILITY",
        "loss_fits": "hpxfer.analysis.statistics.scaling_fit:LOSS_FITS",
        "power_laws": "hpxfer.analysis.statistics.scaling_fit:POWER_LAWS",
        "losses_by_size": "hpxfer.analysis.statistics.scaling_fit:LOSSES_BY_SIZE",
        "experts_size": "hpxfer.analysis.statistics.experts_size:EXPERTS_SIZE",
        "steps_to_loss": "hpxfer.analysis.statistics.steps_to_loss:STEPS_TO_LOSS",
        "loss_curves": "hpxfer.analysis.statistics.steps_to_loss:LOSS_CURVES",
    },
)
# Keys of a report's JSON that no statistic may take.
RESERVED = ("sweep", "hp", "loss", "reports", "report", "follow_up", "notes", "statistics", "about")


def register_statistic(statistic: Statistic) -> Statistic:
    """Add a statistic to every report. Raise HpxferError if its name is taken."""
    if not isinstance(statistic.columns, Mapping):
        rule = "columns must be a mapping, from the name of a column to what it holds"
        raise HpxferError(f"statistic {shown(statistic.name)}: {rule}, got {statistic.columns!r}")
    if statistic.name in RESERVED:
        raise HpxferError(
            f"statistic {shown(statistic.name)}: the name is a key of the report already; choose another name"
        )
    return STATISTICS.register(statistic)
