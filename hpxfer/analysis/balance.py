"""Load balance: how unevenly experts are used over training, by HP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpxfer.analysis.cube import Floats
from hpxfer.analysis.gather import series
from hpxfer.scaling.shape import Shape

LAST_SHARE = 0.25  # of the kept steps: what `final` is the mean of


@dataclass(frozen=True, kw_only=True)
class BalanceLine:
    """One shape at one HP. A deviation is |share of tokens - fair share| of the expert furthest off, in any layer.

    `fair_share` is active / experts: a deviation as large means that an expert is never used, or twice as much.
    """

    shape: str
    scale: float
    is_base: bool
    value: float  # of the HP
    fair_share: float
    steps: tuple[int, ...]
    max_deviation: tuple[float, ...]  # mean over seeds of the largest over layers
    peak: float | None  # largest over time; None if seeds have no step in common
    final: float | None  # mean over the last quarter of the steps kept
    num_seeds: int
    num_diverged: int  # seeds, whose curves end early


@dataclass(frozen=True, kw_only=True)
class LoadBalance:
    """The lines of one parameterization along one axis, by scale and HP."""

    axis: str
    scale_name: str
    parameterization: str
    hp: str
    lines: tuple[BalanceLine, ...] = ()
    why_not: str | None = None


def load_balance(
    cells: pd.DataFrame, curves: pd.DataFrame, shapes: Mapping[tuple[str, str], Shape], hp: str
) -> tuple[LoadBalance, ...]:
    """Return a LoadBalance for each axis and parameterization of a line's cells (`gather.line_cells`)."""
    known = series(curves, "load_deviation", set(cells["trial_id"]))
    out = []
    key: Any
    for key, rows in cells.groupby(["axis", "parameterization"], sort=True):
        axis, label = key
        lines = []
        for key, of in rows.groupby(["scale", "shape", "value"], sort=True):
            scale, name, value = key
            shape = shapes[str(axis), str(name)]
            runs = [known[trial_id] for trial_id in of["trial_id"] if trial_id in known]
            if not runs or not shape.num_experts:
                continue
            lines.append(
                BalanceLine(
                    shape=str(name),
                    scale=float(scale),
                    is_base=bool(of["is_base"].iloc[0]),
                    value=float(value),
                    fair_share=shape.kappa,
                    num_seeds=len(runs),
                    num_diverged=int((of["status"] == "diverged").sum()),
                    **_over_seeds(runs),
                )
            )
        dense = not any(shapes[str(axis), str(name)].num_experts for name in set(rows["shape"]))
        why = "no shape has experts" if dense else "no trial has a curve of its load"
        out.append(
            LoadBalance(
                axis=str(axis),
                scale_name=str(rows["scale_name"].iloc[0]),
                parameterization=str(label),
                hp=hp,
                lines=tuple(lines),
                why_not=None if lines else why,
            )
        )
    return tuple(out)


def _over_seeds(runs: list[tuple[NDArray[np.int64], Floats]]) -> dict[str, Any]:
    """Return the mean over seeds, as far as all of them went."""
    steps = runs[0][0]
    for other, _ in runs[1:]:
        steps = steps if np.array_equal(steps, other) else np.intersect1d(steps, other)
    # All of these steps are among a run's own: as many are the same.
    mean = np.mean([values if at.size == steps.size else values[np.isin(at, steps)] for at, values in runs], axis=0)
    last = max(1, round(LAST_SHARE * mean.size))
    return {
        "steps": tuple(steps.tolist()),
        "max_deviation": tuple(mean.tolist()),
        "peak": float(mean.max()) if mean.size else None,
        "final": float(mean[-last:].mean()) if mean.size else None,
    }
