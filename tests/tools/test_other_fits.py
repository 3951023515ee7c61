"""Fits side by side: they agree on parabolas, and part where a basin is steeper on one side."""

from __future__ import annotations

import numpy as np
import pytest
from other_fits import FitComparison, compare_fits
from planted_lines import MOVES, line, with_status
from planted_sweeps import Planted, plant

from hpxfer.verdict.estimate import estimate_all
from hpxfer.verdict.loss_grid import LossGrid, loss_grids


def of(kind: Planted, seed: int = 0) -> FitComparison:
    return compared(plant(kind, seed).grid())


def compared(grid: LossGrid) -> FitComparison:
    (estimates,) = estimate_all([grid])
    return compare_fits(estimates)


def test_all_fits_agree_on_parabolas_without_noise() -> None:
    found = of(Planted(noise=1e-6, drift=0.5))
    assert found.largest_octaves is not None
    assert found.largest_octaves < 0.05  # an Akima spline is no parabola
    assert found.drift == pytest.approx(found.shared_drift, abs=1e-4)
    assert found.akima_drift == pytest.approx(found.drift, abs=0.03)


def test_one_curvature_for_all_is_wrong_where_basins_narrow() -> None:
    """On a basin of its own curvature the shared one is biased only by what the cells' asymmetry about it leaves."""
    equal = np.mean([of(Planted(noise=1e-6), seed).largest_octaves or 0.0 for seed in range(10)])
    narrow = np.mean([of(Planted(noise=1e-6, curvature_spread=1.0), seed).largest_octaves or 0.0 for seed in range(10)])
    assert narrow > 2 * equal


def test_intervals_hold_most_other_fits_on_noisy_parabolas_and_no_spline_on_exact_ones() -> None:
    inside = [of(Planted(noise=0.003), seed).within for seed in range(20)]
    assert np.mean(np.array(inside, dtype=float)) > 0.7
    exact = of(Planted(noise=1e-7))
    assert exact.within is not None
    assert exact.within <= 0.5


def test_what_has_no_optimum_inside_the_grid_has_no_fits() -> None:
    found = compared(*loss_grids(line({"sp": lambda _: -20.0})))
    assert (found.shapes, found.largest_octaves, found.within) == ((), None, None)
    frame = with_status(line(MOVES), "missing", scale=64.0)
    assert [shape.scale for shape in compared(*loss_grids(frame)).shapes] == [32.0, 128.0]
