"""Load balance: how unevenly experts are used over training, by HP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hpxfer.analysis.statistics.curves import Curve, curves_by_trial
from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.scaling.shape import Shape
from hpxfer.verdict.loss_grid import LossGrid, SeedLosses, ShapeLosses

LAST_SHARE = 0.25  # of the kept steps: `final` is their mean


@dataclass(frozen=True, kw_only=True)
class BalanceLine:
    """One shape at one HP. A deviation is |share of tokens - fair share| of the expert furthest off, in any layer.

    `fair_share` is active / experts. A deviation as large as that means an expert that is never used, or twice as much.
    """

    shape: str
    scale: float
    is_base: bool
    value: float  # of the HP
    fair_share: float
    steps: tuple[int, ...]
    max_deviation: tuple[float, ...]  # the largest over layers, mean over seeds
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
    grid: LossGrid, curves: Mapping[str, Curve], shapes: Mapping[tuple[str, str], Shape], hp: str
) -> LoadBalance:
    """Return the load balance of the trials of a grid; `curves` holds the load deviation of each trial."""
    lines = []
    for row in grid.rows:
        shape = shapes[row.axis, row.shape]
        for cell in sorted((*row.off_axis, *row.cells), key=lambda cell: cell.value):
            runs = [curves[trial] for _, trial in cell.trials if trial in curves]
            if runs and shape.num_experts:
                lines.append(_line(row, cell, shape, runs))
    dense = not any(shapes[row.axis, row.shape].num_experts for row in grid.rows)
    why = "no shape has experts" if dense else "no trial has a curve of its load"
    return LoadBalance(
        axis=grid.axis,
        scale_name=grid.scale_name,
        parameterization=grid.parameterization,
        hp=hp,
        lines=tuple(lines),
        why_not=None if lines else why,
    )


def _balances(inputs: Inputs) -> list[LoadBalance]:
    if inputs.judged is None:
        return []
    grids = [estimates.grid for estimates in inputs.judged.estimates]
    cells = [cell for grid in grids for row in grid.rows for cell in (*row.off_axis, *row.cells)]
    curves = _deviations(inputs.results.curves, {trial for cell in cells for _, trial in cell.trials})
    return [load_balance(grid, curves, inputs.shapes, inputs.hp) for grid in grids]


def _deviations(curves: pd.DataFrame, trials: set[str]) -> dict[str, Curve]:
    return curves_by_trial(curves, "load_deviation", trials)


def _line(row: ShapeLosses, cell: SeedLosses, shape: Shape, runs: Sequence[Curve]) -> BalanceLine:
    return BalanceLine(
        shape=row.shape,
        scale=row.scale,
        is_base=row.is_base,
        value=cell.value,
        fair_share=shape.kappa,
        num_seeds=len(runs),
        num_diverged=len(cell.losses) - len(cell.finite),
        **_over_seeds(runs),
    )


def _over_seeds(runs: Sequence[Curve]) -> dict[str, Any]:
    """Return the mean over seeds, for the steps that all of them reached."""
    steps = runs[0][0]
    for other, _ in runs[1:]:
        steps = steps if np.array_equal(steps, other) else np.intersect1d(steps, other)
    # All of these steps are steps of each run: equal counts mean equal steps.
    mean = np.mean([values if at.size == steps.size else values[np.isin(at, steps)] for at, values in runs], axis=0)
    last = max(1, round(LAST_SHARE * mean.size))
    return {
        "steps": tuple(steps.tolist()),
        "max_deviation": tuple(mean.tolist()),
        "peak": float(mean.max()) if mean.size else None,
        "final": float(mean[-last:].mean()) if mean.size else None,
    }


BALANCE = Statistic(
    name="balance",
    title="Load balance",
    note="The largest deviation of an expert's load from the fair one, over training.",
    compute=_balances,
    parts="lines",
)
