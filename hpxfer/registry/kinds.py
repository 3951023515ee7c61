"""The table of extension points: where the registry of each kind stands.

Each kind has one registry, in the room that it belongs to. Rooms below that one, the sweep's schema above all, find the
registry here by name and import nothing of the room before they need it.
"""

from __future__ import annotations

import importlib
from typing import Any

from hpxfer.registry.rows import Registry, Rows

# Kind -> module:attribute of its registry. The module must be light: it imports neither torch nor ray.
KINDS = {
    "parameterization": "hpxfer.scaling.tables:PARAMETERIZATIONS",
    "gate": "hpxfer.model.gates:GATES",
    "data source": "hpxfer.data.sources:SOURCES",
    "sample source": "hpxfer.data.samples:SAMPLE_SOURCES",
    "search": "hpxfer.search.kinds:SEARCHES",
    "logger": "hpxfer.loggers.kinds:LOGGERS",
    "statistic": "hpxfer.analysis.statistics:STATISTICS",
    "export target": "hpxfer.export.targets:EXPORT_TARGETS",
}
# Rows that only hpxfer has.
_FIXED = {
    "family": "hpxfer.model.families:FAMILIES",
    "optimizer": "hpxfer.train.optimizers:OPTIMIZERS",
    "schedule": "hpxfer.train.schedules:SCHEDULES",
    "executor": "hpxfer.executors.kinds:EXECUTORS",
}


def rows_of(kind: str) -> Rows[Any]:
    """Return the rows of a kind that a sweep names, e.g. `gate` or `family`."""
    module, _, attribute = (KINDS | _FIXED)[kind].partition(":")
    found: Rows[Any] = getattr(importlib.import_module(module), attribute)
    return found


def registry(kind: str) -> Registry[Any]:
    """Return the registry of a kind of extension, e.g. `gate`."""
    found = rows_of(kind)
    assert isinstance(found, Registry)
    return found
