"""The optimum of a basin: an estimate where the grid brackets it, a bound where it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hpxfer.analysis.basin import Basin, Point
from hpxfer.analysis.thresholds import MIN_POINTS

Kind = Literal["interior", "lower_edge", "upper_edge", "at_divergence", "none"]


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best HP at one shape.

    `log2_value` is the lowest point of the fit (`local_fit`) if `interior`; that, no further out than the last HP at
    which no seed diverged, if `at_divergence`; the HP at the grid's edge as an upper bound if `lower_edge`, as a lower
    bound if `upper_edge`; None if `none`. The 95% interval [`low_log2`, `high_log2`] is open where it is None.
    """

    kind: Kind
    log2_value: float | None = None
    grid_value: float | None = None  # the HP on the grid with the lowest fitted loss; lowest median without a fit
    open_because: str | None = None  # why a better HP may lie where nothing was measured; None if it is bracketed
    seed_low_log2: float | None = None  # over the optima of single seeds; None with fewer than two of them
    seed_high_log2: float | None = None
    low_log2: float | None = None
    high_log2: float | None = None
    se_log2: float | None = None  # None without two seeds, and for a bound
    curvature: float | None = None  # nats per octave squared: loss = lowest + curvature * octaves^2
    misfit: float | None = None  # by which errors were widened as cells scatter about the fit more than seeds do
    akima_log2: float | None = None  # for comparison: lowest point of an Akima spline through the means
    shared_log2: float | None = None  # for comparison: one curvature for all shapes

    @property
    def bracketed(self) -> bool:
        """True if both neighbors on the grid were measured and are worse."""
        return self.open_because is None


def find_optimum(values: Sequence[float], losses: Sequence[float | None]) -> Optimum:
    """Return the optimum of losses over ascending HP values > 0; +inf is a diverged value, None one without a result.

    Ties go to the lower HP.
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


def open_because(kind: Kind, basin: Basin, best: int) -> str | None:
    """Return why a better HP than the point `best` of a basin may lie where nothing was measured; None if it cannot."""
    better = _better_off_axis(basin, basin.points[best])
    values, losses = [point.value for point in basin.points], [point.median for point in basin.points]
    return better or _open_because(kind, values, losses, best)


def basin_optimum(basin: Basin) -> Optimum:
    """Return the optimum of a basin's medians, with the range of the optima of its single seeds."""
    values = [point.value for point in basin.points]
    optimum = find_optimum(values, [point.median for point in basin.points])
    if optimum.grid_value is None:
        return optimum
    best = basin.point(optimum.grid_value)
    if best and (better := _better_off_axis(basin, best)):
        optimum = replace(optimum, open_because=better)
    single = [find_optimum(values, basin.seed_losses(seed)).log2_value for seed in basin.seeds]
    found = [one for one in single if one is not None]
    if len(found) < 2:
        return optimum
    return replace(optimum, seed_low_log2=min(found), seed_high_log2=max(found))


def _better_off_axis(basin: Basin, best: Point) -> str | None:
    for point in basin.off_axis:
        if best.median is not None and point.median is not None and point.median < best.median:
            return f"HP {point.value:g}, which a log2 axis has no place for, has a lower loss"
    return None


def _vertex(left: tuple[float, float], mid: tuple[float, float], right: tuple[float, float]) -> float:
    """Return where the parabola through three (x, y) points is lowest.

    `mid` is the lowest and `left` is strictly higher, so it opens upward and the vertex lies between the midpoints
    of the two intervals: there is nothing to clip.
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
