"""Base points: cautions about base values that their own grid does not have.

The grid of lr and the grid of init_scale are two lines, which meet where both HPs have their base values. With
`hps.lr: 0.0156` beside the grid point 2^-6 = 0.015625 they meet nowhere, and the sweep trains both values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from hpxfer.search.arms import arms_of
from hpxfer.spec.base_values import base_values
from hpxfer.spec.sweep import HPsSpec, TrainingSpec
from hpxfer.trial import Expansion

NEAR = 0.02  # relative. A value that is nearer to a point of the grid was most likely meant to be that point
ROUNDING = 1e-9
_BETAS = ("beta1", "beta2")  # which stand in one list


def base_point_cautions(expansion: Expansion) -> Iterator[str]:
    """Yield a caution for each base value that is no point of its grid: what it costs, or that it has no effect.

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
    base = {name: base_values(spec).get(name, 1.0) for name in spec.grid}
    points = {name: values.numbers() for name, values in spec.grid.items()}
    meeting = [name for name in spec.grid if base[name] in points[name]]
    for name in spec.grid:
        others = [other for other in spec.grid if other != name]
        if name in meeting or (name == "lr" and spec.hps.lr is None):
            continue
        near = min(points[name], key=lambda point: abs(_position(name, point) - _position(name, base[name])))
        place, is_near = _place(name, base[name], points[name], near)
        where = f"{_key(name)}: {base[name]!r} {place}"
        if not others:
            if spec.search_row.tunes == "lines" and base[name] != _default(name):
                yield f"{where}: no other line runs through it, so it has no effect; take it out"
            continue
        if spec.product:
            if math.isclose(base[name], near, rel_tol=ROUNDING):
                continue  # the lines are read at the point itself
            unread = f"which the lines of {' and '.join(others)} would run through, so these lines cannot be read"
            yield f"{where}, {unread}; write {_spelling(name, near)}"
            continue
        lines = f"the {'lines' if len(others) > 1 else 'line'} of {' and '.join(others)}"
        runs = f"{lines} {'run' if len(others) > 1 else 'runs'} through it{_cost(expansion, name, near, meeting)}"
        free = " at no further cost" if meeting and spec.search_row.lists_trials else ""
        add = "" if is_near else f"add {base[name]!r} to grid.{name}{free}, or "
        yield f"{where}: {runs}; {add}write {_spelling(name, near)}"


def _default(name: str) -> Any:
    """Return the base value that an HP has where the file gives none: of lr, None."""
    if "." in name:
        return 1.0
    if name in _BETAS:
        return TrainingSpec.model_fields["betas"].default[_BETAS.index(name)]
    section = TrainingSpec if name in TrainingSpec.model_fields else HPsSpec
    return section.model_fields[name].default


def _cost(expansion: Expansion, name: str, near: float, meeting: list[str]) -> str:
    """Return how many trials the base value costs. The lines whose base values are on their grids share one point."""
    spec = expansion.spec
    if not spec.search_row.lists_trials:
        return ""
    if not meeting:
        return f", which shares no trial with the line of {name}"
    number = len(arms_of(expansion)) * len(spec.seeds)
    return f", which is {number} {'trial' if number == 1 else 'trials'} more than at {_text(near)}"


def _place(name: str, value: float, points: tuple[float, ...], near: float) -> tuple[str, bool]:
    """Return in words where a value lies on a grid, and whether it is all but the point next to it."""
    off = abs(_gap(name, value) / _gap(name, near) - 1) if _gap(name, near) else math.inf
    if off <= ROUNDING:
        return f"differs from a point of grid.{name}, {_text(near)}, only by rounding", True
    if off <= NEAR:
        return f"is within {_percent(off)} of a point of grid.{name}, {_text(near)}, and is not that point", True
    low, high = points[0], points[-1]
    if value < low:
        return f"lies below every point of grid.{name}, the lowest is {_text(low)}", False
    if value > high:
        return f"lies above every point of grid.{name}, the highest is {_text(high)}", False
    below, above = max(point for point in points if point < value), min(point for point in points if point > value)
    return f"lies between two points of grid.{name}, {_text(below)} and {_text(above)}", False


def _gap(name: str, value: float) -> float:
    """Return what an HP acts by: of a beta, its distance from 1."""
    return 1 - value if name in _BETAS else value


def _position(name: str, value: float) -> float:
    """Return where a value lies on the log scale of its HP. 0 lies below all others."""
    gap = _gap(name, value)
    return math.log2(gap) if gap > 0 else -2000.0


def _percent(share: float) -> str:
    """Return a share in percent, rounded up to one digit, e.g. 0.2% for 0.0016."""
    percent = 100 * share
    unit = 10.0 ** math.floor(math.log10(percent))
    return f"{math.ceil(percent / unit - 1e-9) * unit:.12g}%"


def _text(value: float) -> str:
    return f"2^{math.log2(value):g}" if _is_power(value) else repr(value)


def _is_power(value: float) -> bool:
    """Return whether the value is a power of two with a whole exponent, which is exact in every spelling."""
    return value > 0 and math.frexp(value)[0] == 0.5


def _spelling(name: str, value: float) -> str:
    """Return how the file gives an HP this base value exactly."""
    key = _key(name)
    if key.startswith("training.") or not _is_power(value) or value == 1:
        return f"{key}: {value!r}"
    return f"{key}: {{log2: {math.log2(value):g}}} or {value!r}"


def _key(name: str) -> str:
    """Return the key of the sweep file that holds the base value of an HP."""
    if name in _BETAS:
        return f"training.betas[{_BETAS.index(name)}]"
    if name in TrainingSpec.model_fields:
        return f"training.{name}"
    return f"hps.multipliers.{name}" if "." in name else f"hps.{name}"
