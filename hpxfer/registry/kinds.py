"""The table of extension points: where the registry of each kind stands.

Each kind has one registry, in the room that it belongs to. Rooms below that one, the sweep's schema above all, find the
registry here by name and import nothing of the room before they need it.
"""

from __future__ import annotations

import importlib
from typing import Any

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.registry.rows import Registry

# Kind -> module:attribute of its registry. The module must be light: it imports neither torch nor ray.
KINDS = {
    "parameterization": "hpxfer.scaling.tables:PARAMETERIZATIONS",
    "family": "hpxfer.model.families:FAMILIES",
    "gate": "hpxfer.model.gates:GATES",
    "data source": "hpxfer.data.sources:SOURCES",
    "sample source": "hpxfer.data.samples:SAMPLE_SOURCES",
    "optimizer": "hpxfer.train.optimizers:OPTIMIZERS",
    "schedule": "hpxfer.train.schedules:SCHEDULES",
    "search": "hpxfer.search.kinds:SEARCHES",
    "executor": "hpxfer.executors.kinds:EXECUTORS",
    "logger": "hpxfer.loggers.kinds:LOGGERS",
    "statistic": "hpxfer.analysis.statistics:STATISTICS",
    "figure": "hpxfer.figures.kinds:FIGURES",
    "export target": "hpxfer.export.targets:EXPORT_TARGETS",
    "command": "hpxfer.cli.commands:COMMANDS",
}


def registry(kind: str) -> Registry[Any]:
    """Return the registry of a kind, e.g. `gate`. Raise HpxferError if there is no such kind."""
    if kind not in KINDS:
        raise HpxferError(f"unknown kind of extension {shown(kind)}; {nearest(kind, KINDS)}")
    module, _, attribute = KINDS[kind].partition(":")
    found: Registry[Any] = getattr(importlib.import_module(module), attribute)
    return found
