"""The rows of what a statistic found, as objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pandas as pd

from hpxfer.analysis.statistics.statistic import records


def rows(found: pd.DataFrame | Iterable[Mapping[str, Any]], **where: Any) -> list[SimpleNamespace]:
    """Return the rows that have these values, with None for what is missing."""
    frame = found if isinstance(found, pd.DataFrame) else pd.DataFrame(list(found))
    kept = (row for row in records(frame) if all(row[name] == value for name, value in where.items()))
    return [SimpleNamespace(**row) for row in kept]
