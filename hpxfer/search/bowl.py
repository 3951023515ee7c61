"""Bowl: where a fitted surface is lowest, how surely, and whether its optimum slides along a ridge.

The region of the optimum is an ellipse: to first order, the optimum moves by -H^-1 per unit of the gradient there
(delta method). A ridge is a direction along which the loss bends so little that the optimum slides: along a + s b =
const. It needs a curvature across it that is surely above zero, and along it one that is surely below 1/RIDGE_RATIO of
that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hpxfer.search.quadratic import Floats, Quadratic, curvature_row, slopes

RIDGE_RATIO = 10.0  # of the curvatures. The loss then spreads more than three times as far along the ridge as across it
CONFIDENCE = 0.95  # as every interval of a report
ONE_SIDED = 0.95  # of a bound on a curvature

Form = Literal["bowl", "ridge", "unknown"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Bowl:
    """What a surface says of its optimum. Directions are unit vectors in octaves of both HPs."""

    form: Form
    at: Floats | None  # (2,), the lowest point of the surface; None if it has none
    steep: Floats  # (2,), along which the loss bends most
    flat: Floats  # (2,), across that
    curvatures: tuple[float, float]  # nats per octave squared, along `steep` and `flat`
    curvature_errors: tuple[float, float]
    half_widths: tuple[float | None, float | None]  # octaves, 95%, along `steep` and `flat`; None: not known
    covariance: Floats | None  # (2, 2) of `at`, octaves squared; None if the surface has no sure lowest point
    reach: float  # standard errors to the edge of the region of 95%

    def is_known_to(self, octaves: float) -> bool:
        """Return whether the optimum is known to this width: across a ridge, else in every direction."""
        across, along = self.half_widths
        if self.form == "ridge":
            return across is not None and 2 * across <= octaves
        return self.form == "bowl" and across is not None and along is not None and 2 * max(across, along) <= octaves


def bowl_of(surface: Quadratic) -> Bowl:
    """Return the lowest point of a surface with its region, and its form."""
    values, vectors = np.linalg.eigh(surface.hessian)
    flat, steep = _pointing(vectors[:, 0]), _pointing(vectors[:, 1])
    low, high = float(values[0]), float(values[1])
    low_error, high_error = (surface.error(curvature_row(along)) for along in (flat, steep))
    one_sided, reach = _quantiles(surface.freedom)
    at = None
    if low > 0:
        at = surface.center - np.linalg.solve(surface.hessian, surface.coefficients[1:3])
    is_sure_across = high > one_sided * high_error
    form: Form = "unknown"
    if is_sure_across and low + one_sided * low_error < high / RIDGE_RATIO:
        form = "ridge"
    elif is_sure_across and low > one_sided * low_error:
        form = "bowl"
    covariance = None if at is None or form == "unknown" else _covariance(surface, at)
    across = None if not is_sure_across else _across(surface, at, steep, high, reach)
    along = None
    if covariance is not None and low > one_sided * low_error:
        along = reach * math.sqrt(max(float(flat @ covariance @ flat), 0.0))
    return Bowl(
        form=form,
        at=at,
        steep=steep,
        flat=flat,
        curvatures=(high, low),
        curvature_errors=(high_error, low_error),
        half_widths=(across, along),
        covariance=covariance if along is not None else None,
        reach=reach,
    )


def _pointing(vector: Floats) -> Floats:
    """Return a unit vector with the sign that makes its larger part positive: LAPACK leaves the sign open."""
    larger = vector[int(np.argmax(np.abs(np.round(vector, 9))))]
    return np.asarray(vector * (1.0 if larger >= 0 else -1.0))


def _covariance(surface: Quadratic, at: Floats) -> Floats:
    """Return the covariance (2, 2) of the lowest point, by the delta method."""
    rows = np.linalg.solve(surface.hessian, slopes(at - surface.center))
    return np.asarray(rows @ surface.covariance @ rows.T)


def _across(surface: Quadratic, at: Floats | None, steep: Floats, high: float, reach: float) -> float:
    """Return the half width across the flat direction, at the lowest point or else at the lowest measured one."""
    row = steep @ slopes((surface.center if at is None else at) - surface.center)
    return reach * surface.error(row) / high


def _quantiles(freedom: float) -> tuple[float, float]:
    """Return the one-sided quantile of Student's t, and the standard errors to the edge of a joint region of two."""
    from scipy.special import fdtri, stdtrit  # slow to import

    return float(stdtrit(freedom, ONE_SIDED)), math.sqrt(2 * float(fdtri(2, freedom, CONFIDENCE)))
