"""The optimum of the losses of one shape: an estimate if the measured cells bracket it, a bound if they do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hpxfer.intervals import lowest_of
from hpxfer.verdict.loss_grid import ShapeLosses
from hpxfer.verdict.measured import Measured
from hpxfer.verdict.thresholds import MIN_POINTS

Kind = Literal["interior", "lower_edge", "upper_edge", "at_divergence", "none"]


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best HP at one shape.

    What `log2_value` is depends on `kind`:

    - `interior`: the median of the draws. The loss rises from the lowest measured cell to both sides.
    - `at_divergence`: the same, where the next measured cell diverges.
    - `lower_edge`: the HP at the lower edge of the grid, an upper bound of the optimum.
    - `upper_edge`: the HP at the upper edge of the grid, a lower bound of the optimum.
    - `none`: None.

    The 95% interval [`low_log2`, `high_log2`] is open on a side that is None.
    """

    kind: Kind
    log2_value: float | None = None
    grid_value: float | None = None  # the best HP of the grid: no measured mean is lower by 2 standard errors
    open_because: str | None = None  # why a better HP may exist where nothing was measured; None if it is bracketed
    seed_low_log2: float | None = None  # the range of the optima of single seeds; None with fewer than two of them
    seed_high_log2: float | None = None
    low_log2: float | None = None
    high_log2: float | None = None
    se_log2: float | None = None  # None without two seeds, and for a bound
    curvature: float | None = None  # at the optimum, nats per octave squared: loss = lowest + curvature * octaves^2
    misfit: float | None = None  # the factor by which cells scatter about any basin more than seeds do, if it is not 1

    @property
    def inside(self) -> bool:
        """Whether it lies inside the grid. It is no optimum, or a bound, otherwise."""
        return self.kind in ("interior", "at_divergence")

    @property
    def bracketed(self) -> bool:
        """Whether both neighbors on the grid were measured and are worse."""
        return self.open_because is None


def measured_optimum(measured: Measured) -> Optimum:
    """Return the optimum of the mean losses of a shape, without a fit, and the range of the optima of single seeds."""
    row = measured.row
    if row.cells == () or not np.isfinite(measured.mean_K).sum() >= MIN_POINTS or measured.lowest is None:
        count = int((measured.num_K > 0).sum())
        have = "1 HP value has" if count == 1 else f"{count} HP values have"
        return Optimum(kind="none", open_because=f"{have} a finite loss, {MIN_POINTS} are needed")
    best = measured.lowest
    kind = kind_at(measured, best)
    per_seed = [found for s in range(measured.loss_KS.shape[1]) if (found := _lowest(measured, s)) is not None]
    return Optimum(
        kind=kind,
        log2_value=float(measured.x_K[best]),
        grid_value=row.cells[best].value,
        open_because=open_because(kind, measured, best),
        seed_low_log2=min(per_seed) if len(per_seed) > 1 else None,
        seed_high_log2=max(per_seed) if len(per_seed) > 1 else None,
    )


def kind_at(measured: Measured, best: int) -> Kind:
    """Return what the best cell is, by the measured cells beside it."""
    at = np.flatnonzero(measured.has_result_K)
    below, above = at[at < best][-1:], at[at > best][:1]
    if not below.size or not above.size:
        return "upper_edge" if below.size else "lower_edge"
    return "at_divergence" if measured.diverges_K[below[0]] or measured.diverges_K[above[0]] else "interior"


def open_because(kind: Kind, measured: Measured, best: int) -> str | None:
    """Return why an HP better than that of cell `best` may exist where nothing was measured; None if none can."""
    row = measured.row
    for cell in row.off_axis:
        if cell.finite and float(np.mean(cell.finite)) < measured.mean_K[best]:
            return f"HP {cell.value:g}, which a log2 axis cannot show, has a lower loss"
    for beside in (best - 1, best + 1):
        if 0 <= beside < len(row.cells) and not measured.has_result_K[beside]:
            return f"HP {row.cells[beside].value:.4g} next to the best one has no result"
    if kind in ("lower_edge", "upper_edge"):
        return f"the optimum is on the {kind.removesuffix('_edge')} edge of the grid"
    return None


def _lowest(measured: Measured, seed: int) -> float | None:
    """Return the optimum of one seed: the vertex of the parabola through its lowest loss and the two beside it.

    Of equal lowest losses it is the middle.
    """
    loss_K = measured.loss_KS[:, seed]
    at = np.flatnonzero(~np.isnan(loss_K))
    if np.isfinite(loss_K[at]).sum() < MIN_POINTS:
        return None
    best = lowest_of(loss_K[at].tolist(), measured.x_K[at].tolist())
    tied = measured.x_K[at[loss_K[at] == loss_K[at[best]]]]
    if tied.size > 1:
        return float(tied[0] + tied[-1]) / 2
    if best in (0, at.size - 1) or not np.isfinite(loss_K[at[best - 1 : best + 2]]).all():
        return float(measured.x_K[at[best]])
    return vertex(measured.x_K[at[best - 1 : best + 2]].tolist(), loss_K[at[best - 1 : best + 2]].tolist())


def vertex(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the x at which the parabola through three points is lowest. The middle point is the lowest one.

    The two others are strictly higher. The parabola therefore opens upward, and its vertex lies between the midpoints
    of the two intervals: there is nothing to clip.
    """
    before, after = x[1] - x[0], x[2] - x[1]
    fall, rise = (y[0] - y[1]) / before, (y[2] - y[1]) / after
    return x[1] + 0.5 * (after * fall - before * rise) / (fall + rise)


def range_of(row: ShapeLosses) -> tuple[float, float]:
    """Return the smallest and the largest measured log2 HP of a shape; (inf, -inf) if nothing was measured."""
    x = [cell.log2 for cell in row.cells if cell.losses]
    return min(x, default=math.inf), max(x, default=-math.inf)
