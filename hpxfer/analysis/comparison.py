"""The optima by three ways of fitting, side by side: a check of the estimate, and no second way to a verdict.

The estimate is a parabola a shape with one cubic part for all shapes (`local_fit`). Beside it stand the lowest point of
an Akima spline, which assumes nothing of the basin and follows the noise, and the fit in which all shapes have one
curvature too, which is steadier and wrong where basins narrow with scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpxfer.analysis.drift import fit_drift
from hpxfer.analysis.findings import Finding, ShapeFinding


@dataclass(frozen=True, kw_only=True)
class ComparedShape:
    """One shape with an optimum inside the grid, in octaves."""

    shape: str
    scale: float
    log2_value: float
    low: float | None  # 95%
    high: float | None
    akima_log2: float | None
    shared_log2: float | None


@dataclass(frozen=True, kw_only=True)
class FitComparison:
    """The optima and the drifts of one finding by each fit. Drifts are octaves per doubling."""

    axis: str
    scale_name: str
    parameterization: str
    hp: str
    shapes: tuple[ComparedShape, ...] = ()
    drift: float | None = None  # the estimate's
    akima_drift: float | None = None  # unweighted, as is the next
    shared_drift: float | None = None
    largest_octaves: float | None = None  # between the estimate and another fit, at any shape
    within: float | None = None  # share of the other fits that are in the estimate's 95% intervals; None without any
    why_not: str | None = None


def compare_fits(finding: Finding, hp: str) -> FitComparison:
    """Return the fits of a finding's optima side by side."""
    shapes = tuple(one for shape in finding.shapes if (one := _compared(shape)) is not None)
    bare = FitComparison(
        axis=finding.axis,
        scale_name=finding.scale_name,
        parameterization=finding.parameterization,
        hp=hp,
        shapes=shapes,
    )
    others = [(one, at) for one in shapes for at in (one.akima_log2, one.shared_log2) if at is not None]
    if not others:
        return replace(bare, why_not="no shape has a fitted optimum inside the grid")
    bounded = [(one, at) for one, at in others if one.low is not None and one.high is not None]
    inside = [(one.low or 0.0) <= at <= (one.high or 0.0) for one, at in bounded]
    return replace(
        bare,
        drift=finding.drift.octaves_per_doubling if finding.drift else None,
        akima_drift=_drift(shapes, [one.akima_log2 for one in shapes]),
        shared_drift=_drift(shapes, [one.shared_log2 for one in shapes]),
        largest_octaves=max(abs(at - one.log2_value) for one, at in others),
        within=sum(inside) / len(inside) if inside else None,
    )


def _compared(shape: ShapeFinding) -> ComparedShape | None:
    optimum = shape.optimum
    if optimum.kind != "interior" or optimum.log2_value is None:
        return None
    return ComparedShape(
        shape=shape.shape,
        scale=shape.scale,
        log2_value=optimum.log2_value,
        low=optimum.low_log2,
        high=optimum.high_log2,
        akima_log2=optimum.akima_log2,
        shared_log2=optimum.shared_log2,
    )


def _drift(shapes: Sequence[ComparedShape], optima: Sequence[float | None]) -> float | None:
    kept = [(shape.scale, at) for shape, at in zip(shapes, optima, strict=True) if at is not None]
    drift = fit_drift([scale for scale, _ in kept], [at for _, at in kept])
    return drift.octaves_per_doubling if drift else None
