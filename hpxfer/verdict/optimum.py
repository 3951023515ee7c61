"""The optimum of the losses of one shape: an estimate if the grid brackets it, a bound if it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hpxfer.verdict.loss_grid import SeedLosses, ShapeLosses
from hpxfer.verdict.thresholds import MIN_POINTS

Kind = Literal["interior", "lower_edge", "upper_edge", "at_divergence", "none"]


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best HP at one shape.

    What `log2_value` is depends on `kind`:

    - `interior`: the lowest point of the fit (`local_fit`).
    - `at_divergence`: the same, but no further out than the last HP at which no seed diverged.
    - `lower_edge`: the HP at the lower edge of the grid, an upper bound of the optimum.
    - `upper_edge`: the HP at the upper edge of the grid, a lower bound of the optimum.
    - `none`: None.

    The 95% interval [`low_log2`, `high_log2`] is open on a side that is None.
    """

    kind: Kind
    log2_value: float | None = None
    grid_value: float | None = None  # the HP of the grid with the lowest fitted loss; without a fit, lowest median
    open_because: str | None = None  # why a better HP may exist where nothing was measured; None if it is bracketed
    seed_low_log2: float | None = None  # the range of the optima of single seeds; None with fewer than two of them
    seed_high_log2: float | None = None
    low_log2: float | None = None
    high_log2: float | None = None
    se_log2: float | None = None  # None without two seeds, and for a bound
    curvature: float | None = None  # nats per octave squared: loss = lowest + curvature * octaves^2
    misfit: float | None = None  # the factor by which errors grew, as cells scatter about the fit more than seeds do

    @property
    def bracketed(self) -> bool:
        """Whether both neighbors on the grid were measured and are worse."""
        return self.open_because is None


def find_optimum(values: Sequence[float], losses: Sequence[float | None]) -> Optimum:
    """Return the optimum of losses over ascending HP values > 0: the vertex of the parabola through the lowest three.

    A loss is +inf for a value that diverged and None without a result. Of equal losses, the lower HP is the optimum.
    """
    measured = [i for i, loss in enumerate(losses) if loss is not None]
    at = {i: loss for i in measured if (loss := losses[i]) is not None and math.isfinite(loss)}
    if len(at) < MIN_POINTS:
        have = "1 HP value has" if len(at) == 1 else f"{len(at)} HP values have"
        return Optimum(kind="none", open_because=f"{have} a finite loss, {MIN_POINTS} are needed")
    best = min(at, key=lambda i: (at[i], i))
    low, high = ([i for i in measured if i < best][-1:], [i for i in measured if i > best][:1])
    kind: Kind = "interior"
    log2_value = math.log2(values[best])
    if not low or not high:
        kind = "upper_edge" if low else "lower_edge"
    elif low[0] not in at or high[0] not in at:
        kind = "at_divergence"
    else:
        log2_value = _vertex(*((math.log2(values[i]), at[i]) for i in (low[0], best, high[0])))
    return Optimum(
        kind=kind,
        log2_value=log2_value,
        grid_value=values[best],
        open_because=_open_because(kind, values, losses, best),
    )


def open_because(kind: Kind, row: ShapeLosses, best: int) -> str | None:
    """Return why an HP better than that of cell `best` may exist where nothing was measured; None if none can."""
    better = _better_off_axis(row, row.cells[best])
    values, losses = [cell.value for cell in row.cells], [cell.median for cell in row.cells]
    return better or _open_because(kind, values, losses, best)


def measured_optimum(row: ShapeLosses) -> Optimum:
    """Return the optimum of the medians of a shape, without a fit, and the range of the optima of its single seeds."""
    values = [cell.value for cell in row.cells]
    optimum = find_optimum(values, [cell.median for cell in row.cells])
    if optimum.grid_value is None:
        return optimum
    best = row.cell(optimum.grid_value)
    if best and (better := _better_off_axis(row, best)):
        optimum = replace(optimum, open_because=better)
    per_seed = [find_optimum(values, row.seed_losses(seed)).log2_value for seed in row.seeds]
    found = [log2_value for log2_value in per_seed if log2_value is not None]
    if len(found) < 2:
        return optimum
    return replace(optimum, seed_low_log2=min(found), seed_high_log2=max(found))


def _better_off_axis(row: ShapeLosses, best: SeedLosses) -> str | None:
    for cell in row.off_axis:
        if best.median is not None and cell.median is not None and cell.median < best.median:
            return f"HP {cell.value:g}, which a log2 axis cannot show, has a lower loss"
    return None


def _vertex(left: tuple[float, float], mid: tuple[float, float], right: tuple[float, float]) -> float:
    """Return the x at which the parabola through three points (x, y) is lowest.

    `mid` is the lowest point and `left` is strictly higher. The parabola therefore opens upward, and its vertex lies
    between the midpoints of the two intervals: there is nothing to clip.
    """
    before, after = mid[0] - left[0], right[0] - mid[0]
    fall, rise = (left[1] - mid[1]) / before, (right[1] - mid[1]) / after
    return mid[0] + 0.5 * (after * fall - before * rise) / (fall + rise)


def _open_because(kind: Kind, values: Sequence[float], losses: Sequence[float | None], best: int) -> str | None:
    for beside in (best - 1, best + 1):
        if 0 <= beside < len(values) and losses[beside] is None:
            return f"HP {values[beside]:.4g} next to the best one has no result"
    if kind in ("lower_edge", "upper_edge"):
        return f"the optimum is on the {kind.removesuffix('_edge')} edge of the grid"
    return None
