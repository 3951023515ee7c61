"""Drift: how far the optimum moves when the scale doubles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Slope of log2(optimum) against log2(scale), in octaves per doubling."""

    octaves_per_doubling: float
    se: float | None  # from the residuals; None below three shapes, where there are none
    num_shapes: int
    left_out: tuple[str, ...] = ()  # shapes whose optimum is a bound or unknown


def fit_drift(scales: Sequence[float], log2_optima: Sequence[float], left_out: tuple[str, ...] = ()) -> Drift | None:
    """Return the least-squares drift of log2 optima over scales; None below two different scales."""
    if len(set(scales)) < 2:
        return None
    x, y = np.log2(scales), np.asarray(log2_optima)
    dx, dy = x - x.mean(), y - y.mean()
    spread = float(np.sum(dx**2))
    slope = float(np.sum(dx * dy)) / spread
    freedom = len(scales) - 2
    residual = float(np.sum((dy - slope * dx) ** 2))
    return Drift(
        octaves_per_doubling=slope,
        se=(residual / freedom / spread) ** 0.5 if freedom else None,
        num_shapes=len(scales),
        left_out=left_out,
    )
