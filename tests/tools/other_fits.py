"""Two other ways to fit an optimum, which test the estimate. No verdict uses them.

The estimate is one parabola per shape with a cubic part that all shapes share (`hpxfer.verdict.local_fit`). The Akima
spline assumes nothing about the basin, and follows the noise. The fit with one curvature for all shapes is steadier,
and wrong where basins narrow with scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import Akima1DInterpolator

from hpxfer.verdict.drift import fit_drift
from hpxfer.verdict.estimate import Estimates, Fitted
from hpxfer.verdict.local_fit import lowest

AKIMA_STEPS = 512  # the points at which a spline is evaluated


@dataclass(frozen=True, kw_only=True)
class ComparedOptimum:
    """One shape with an optimum inside the grid, in log2 HP, by each fit."""

    i: int  # row of the grid
    scale: float
    estimate: float
    low: float | None  # 95%
    high: float | None
    akima: float
    shared: float | None  # None if the shared curvature is not positive

    @property
    def others(self) -> tuple[float, ...]:
        return tuple(value for value in (self.akima, self.shared) if value is not None)


@dataclass(frozen=True, kw_only=True)
class FitComparison:
    """The optima and the drifts of one grid by each fit. Drifts are octaves per doubling."""

    shapes: tuple[ComparedOptimum, ...]
    drift: float | None  # of the estimate
    akima_drift: float | None  # unweighted, as is the next
    shared_drift: float | None
    largest_octaves: float | None  # between the estimate and another fit, at any shape
    within: float | None  # share of the other fits inside the 95% intervals of the estimate; None without any


def compare_fits(estimates: Estimates) -> FitComparison:
    """Return the fits of the optima of a grid side by side."""
    shapes = compared_optima(estimates)
    bounded = [
        shape.low <= other <= shape.high
        for shape in shapes
        for other in shape.others
        if shape.low is not None and shape.high is not None
    ]
    apart = [abs(other - shape.estimate) for shape in shapes for other in shape.others]
    return FitComparison(
        shapes=shapes,
        drift=estimates.drift.octaves_per_doubling if estimates.drift else None,
        akima_drift=_drift(shapes, [shape.akima for shape in shapes]),
        shared_drift=_drift(shapes, [shape.shared for shape in shapes]),
        largest_octaves=max(apart, default=None),
        within=sum(bounded) / len(bounded) if bounded else None,
    )


def compared_optima(estimates: Estimates) -> tuple[ComparedOptimum, ...]:
    """Return each shape of a grid that has an optimum inside the grid."""
    fitted = estimates.fitted
    shared = shared_optima(fitted) if fitted.fit is not None else ()
    return tuple(
        ComparedOptimum(
            i=i,
            scale=fitted.grid.rows[i].scale,
            estimate=optimum.log2_value,
            low=optimum.low_log2,
            high=optimum.high_log2,
            akima=akima_optimum(fitted, i),
            shared=shared[fitted.at[i]],
        )
        for i, optimum in enumerate(estimates.optima)
        if optimum.kind == "interior" and optimum.log2_value is not None and i in fitted.at
    )


def akima_optimum(fitted: Fitted, i: int) -> float:
    """Return log2 of the HP at which the Akima spline through the means of the fitted cells of a shape is lowest."""
    assert fitted.fit is not None
    cells = fitted.fit.cell_N[fitted.fit.shape_N == fitted.at[i]]
    x, y = fitted.grid.x_K[cells], fitted.grid.mean_IK[i, cells]
    fine = np.linspace(x[0], x[-1], AKIMA_STEPS)
    return float(fine[np.argmin(Akima1DInterpolator(x, y)(fine))])


def shared_optima(fitted: Fitted) -> tuple[float | None, ...]:
    """Return the optima of the fitted shapes if all have one curvature; None if it is not positive."""
    fit = fitted.fit
    assert fit is not None
    num = fit.rows_F.size
    design = np.concatenate(
        [
            fit.design_NP[:, [3 * f + power for f in range(num) for power in (0, 1)]],
            fit.design_NP[:, 2 : 3 * num : 3].sum(axis=1, keepdims=True),
            fit.design_NP[:, 3 * num :],
        ],
        axis=1,
    )
    root, mean = np.sqrt(fit.weight_N), fit.residual_N + fit.design_NP @ fit.coefficients_P
    found = np.linalg.lstsq(design * root[:, None], mean * root, rcond=None)[0]
    b, c = found[1 : 2 * num : 2], np.full(num, found[2 * num])
    if c[0] <= 0:
        return (None,) * num
    d = np.full(num, found[2 * num + 1] if len(found) > 2 * num + 1 else 0.0)
    at = fit.center_F + lowest(b, c, d, *(fit.ends_2F - fit.center_F))
    return tuple(float(value) for value in at)


def _drift(shapes: Sequence[ComparedOptimum], optima: Sequence[float | None]) -> float | None:
    kept = [(shape.scale, value) for shape, value in zip(shapes, optima, strict=True) if value is not None]
    drift = fit_drift([scale for scale, _ in kept], [value for _, value in kept])
    return drift.octaves_per_doubling if drift else None
