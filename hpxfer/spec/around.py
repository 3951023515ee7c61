"""Around: `grid: {lr: {around: [-2, 2]}}` scans octaves from the base value, which may come from a recipe."""

from __future__ import annotations

import math
from typing import Any

# HPs whose base values stand in `training`, and where in `betas`.
_BETAS = {"beta1": 0, "beta2": 1}
_DEFAULTS = {"init_scale": 1.0, "residual_scale": 1.0, "router_bias_lr": 0.01, "eps": 1e-12}


def resolved(sweep: Any) -> Any:
    """Return the data of a sweep in which `around` is replaced by exponents of two.

    It stays where it is malformed, or where there is no base value above zero. The rules of the grid then refuse it.
    """
    grid = sweep.get("grid") if isinstance(sweep, dict) else None
    if not isinstance(grid, dict):
        return sweep
    centered = {name: _centered(name, values, sweep) for name, values in grid.items()}
    return {**sweep, "grid": centered}


def _centered(name: str, values: Any, sweep: dict[str, Any]) -> Any:
    if not isinstance(values, dict) or not {"around"} <= set(values) <= {"around", "step"}:
        return values
    ends = values["around"]
    if not isinstance(ends, list | tuple) or len(ends) != 2 or any(not _is_number(end) for end in ends):
        return values
    base = _base_value(name, sweep)
    if base is None or not 0 < base < math.inf:
        return values
    rest = {key: value for key, value in values.items() if key != "around"}
    return {"log2": [math.log2(base) + end for end in ends], **rest}


def _base_value(name: str, sweep: dict[str, Any]) -> float | None:
    hps, training = _section(sweep, "hps"), _section(sweep, "training")
    if "." in name:
        found = _section(hps, "multipliers").get(name, 1.0)
    elif name in _BETAS:
        betas = training.get("betas", (0.9, 0.95))
        found = betas[_BETAS[name]] if isinstance(betas, list | tuple) and len(betas) == 2 else None
    else:
        found = hps.get(name, training.get(name, _DEFAULTS.get(name)))
    if isinstance(found, dict) and _is_number(found.get("log2")):
        return float(2.0 ** found["log2"])
    return float(found) if found is not None and _is_number(found) else None


def _section(data: dict[str, Any], key: str) -> dict[str, Any]:
    found = data.get(key)
    return found if isinstance(found, dict) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
