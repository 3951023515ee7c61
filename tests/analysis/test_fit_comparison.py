"""Fits side by side: they agree on parabolas, and part where a basin is steeper on one side."""

from __future__ import annotations

import numpy as np
import pytest
from planted_lines import MOVES, line, with_status

from hpxfer.analysis import report_line
from hpxfer.analysis.comparison import FitComparison, compare_fits
from hpxfer.analysis.report import find
from hpxfer.testing.sweeps import Planted, plant


def of(kind: Planted, seed: int = 0) -> FitComparison:
    (finding,) = find(plant(kind, seed).basins())
    return compare_fits(finding, "lr")


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
    report = report_line(line({"sp": lambda _: -20.0}), sweep="planted", hp="lr", loss="validation")
    assert compare_fits(report.findings[0], "lr").why_not == "no shape has a fitted optimum inside the grid"
    frame = with_status(line(MOVES), "missing", scale=64.0)
    (finding,) = report_line(frame, sweep="planted", hp="lr", loss="validation").findings
    assert [one.scale for one in compare_fits(finding, "lr").shapes] == [32.0, 128.0]
