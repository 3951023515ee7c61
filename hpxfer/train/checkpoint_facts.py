"""Facts: what the header of a checkpoint says of it, and whether a training can have written that.

The hash of a header proves only that it is whole. Whoever writes a header can hash it, so each fact is checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

# No training has so many steps, trials or resumptions. Numbers above are no whole numbers of a tensor or a table.
_MOST = 2**62


def tell_trials(facts: object) -> bool:
    """Return whether these are facts of a checkpoint of any format, as far as a driver reads them."""
    return isinstance(facts, dict) and all(name in facts and right(facts[name]) for name, right in _DRIVERS.items())


def tell_training(facts: Mapping[str, Any]) -> bool:
    """Return whether facts of today's format can be those of a training, which a worker goes on with."""
    return all(name in facts and right(facts[name]) for name, right in _WORKERS.items()) and (
        all(slot < len(facts["trials"]) for slot in facts["slots"])
        and all(step < facts["step"] for *_, steps in facts["series"] for step in steps)
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_distinct(right: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return the check of a list that is not empty and holds nothing twice."""
    return lambda values: (
        isinstance(values, list) and all(map(right, values)) and 0 < len(values) == len(frozenset(values))
    )


def _are_series(value: object) -> bool:
    keys = set()
    for series in value if isinstance(value, list) else [None]:
        if not isinstance(series, list) or len(series) != 4:
            return False
        metric, layer, role, steps = series
        if not (_is_text(metric) and (layer is None or _is_count(layer)) and (role is None or _is_text(role))):
            return False
        if not isinstance(steps, list) or not all(map(_is_count, steps)) or steps != sorted(set(steps)):
            return False
        keys.add((metric, layer, role))
    return isinstance(value, list) and len(keys) == len(value)


_DRIVERS: dict[str, Callable[[object], bool]] = {
    "format": _is_count,
    "trainer_version": _is_count,
    "trials": _are_distinct(_is_text),
    "step": _is_count,
}
_WORKERS: dict[str, Callable[[object], bool]] = {
    **_DRIVERS,
    "slots": _are_distinct(_is_count),
    "trial_steps": _is_count,
    "wall_s": _is_time,
    "resumes": _is_count,
    "series": _are_series,
    "how": lambda value: isinstance(value, dict),
    "layout": lambda value: isinstance(value, list),
    "hash": _is_text,
}
