"""Surfaces over two HPs, and the stability map."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from planted_lines import STAYS, line, with_status
from there import there

from hpxfer.analysis import report_line
from hpxfer.analysis.statistics.stability import StabilityMap, stability_map
from hpxfer.analysis.statistics.surface import Surface, fit_surface
from hpxfer.verdict.loss_grid import loss_grids

GRID = [(2.0**a, 2.0**b) for a, b in product(range(-9, -3), range(-2, 3))]
FIRST, SECOND = zip(*GRID, strict=True)


def planted(
    interaction: float, noise: float = 0.0, at: tuple[float, float] = (-6.3, 0.4), seed: int = 0, far: float = 0.0
) -> Surface:
    """Return the fit of a planted surface; `far` is a rise with the fourth power of the first HP, as in real ones."""
    rng = np.random.default_rng(seed)
    losses = []
    for first, second in GRID:
        v = math.log2(second) - at[1]
        u = math.log2(first) - at[0] - interaction * v
        losses.append(3 + 0.02 * u**2 + 0.01 * v**2 + far * max(u, 0) ** 4 + noise * rng.standard_normal())
    return fit_surface(FIRST, SECOND, losses)


@pytest.mark.parametrize("interaction", [-0.5, 0.0, 0.7])
def test_a_surface_gives_back_its_lowest_point_and_its_interaction(interaction: float) -> None:
    found = planted(interaction)
    assert found.log2_values == pytest.approx((-6.3, 0.4))
    assert found.loss == pytest.approx(3.0)
    assert found.interaction == pytest.approx(interaction, abs=1e-9)
    assert found.curvatures == pytest.approx((0.02, 0.01 + 0.02 * interaction**2))
    assert found.at(-6.3, 0.4) == pytest.approx(3.0)
    assert found.why_not is None


def test_the_interval_of_the_interaction_covers() -> None:
    covered, zero_inside = [], []
    for seed in range(200):
        found = planted(0.3, noise=0.005, seed=seed)
        covered.append(there(found.interaction_low) <= 0.3 <= there(found.interaction_high))
        zero_inside.append(there(found.interaction_low) <= 0.0)
    assert 0.91 <= np.mean(covered) <= 0.985
    assert np.mean(zero_inside) < 0.2


def test_the_fit_rests_on_the_cells_around_the_lowest_one() -> None:
    found = planted(0.0, at=(-8.0, 0.0), far=0.01)
    assert found.num_cells < len(GRID)
    assert {cell.log2_first for cell in found.cells if cell.fitted} == {-9.0, -8.0, -7.0, -6.0}
    assert there(found.log2_values)[0] == pytest.approx(-8.0, abs=0.4)


def test_a_lowest_point_off_the_grid_is_not_reported() -> None:
    found = planted(0.0, at=(-12.0, 0.0))
    assert (found.log2_values, found.why_no_optimum) == (None, "the lowest point is off the grid")
    saddle = fit_surface(FIRST, SECOND, [math.log2(a) * math.log2(b) for a, b in GRID])
    assert (saddle.log2_values, saddle.why_no_optimum) == (None, "the surface has no lowest point")


def test_divergence_is_censored_and_two_lines_fix_no_surface() -> None:
    losses = [3 + (math.log2(a) + 6) ** 2 + math.log2(b) ** 2 for a, b in GRID]
    lost = GRID.index((2.0**-5, 4.0))
    losses[lost] = math.inf
    found = fit_surface(FIRST, SECOND, losses)
    assert found.log2_values == pytest.approx((-6.0, 0.0), abs=1e-9)
    assert [(cell.loss, cell.fitted) for cell in found.cells if cell.loss is None] == [(None, False)]
    cross = [(2.0**a, 1.0) for a in range(-9, -3)] + [(2.0**-6, 2.0**b) for b in (-2, -1, 1, 2)]
    first, second = zip(*cross, strict=True)
    for nothing in (fit_surface(first, second, [1.0] * len(cross)), fit_surface([1.0], [1.0], [1.0])):
        assert nothing.why_not is not None
        assert nothing.at(0.0, 0.0) is None


def test_a_cell_counts_by_its_seeds_and_is_lost_where_one_diverges() -> None:
    found = fit_surface([*FIRST, FIRST[0]], [*SECOND, SECOND[0]], [*([3.0] * len(GRID)), math.inf])
    assert sum(cell.loss is None for cell in found.cells) == 1
    assert len(found.cells) == len(GRID)


def made(frame: pd.DataFrame) -> StabilityMap:
    report = report_line(frame, sweep="planted", hp="lr")
    return stability_map(*loss_grids(frame), report.findings[0], "lr")


def test_a_cliff_is_where_it_was_planted_and_its_drift_with_the_optimum() -> None:
    stays = made(line(STAYS, diverges_above=1.5))
    assert stays.edges_log2 == (-5.0, -5.0, -5.0)
    assert stays.edge_octaves_per_doubling == pytest.approx(0.0, abs=1e-9)
    assert stays.distance_octaves == pytest.approx((1.2, 1.2, 1.2), abs=0.15)
    moves = made(line({"sp": lambda doublings: -5.2 - doublings}, diverges_above=1.5))
    assert moves.edges_log2[1:] == (-5.0, -6.0)
    assert moves.edge_octaves_per_doubling == pytest.approx(-1.0)


def test_shares_are_of_seeds_with_a_result() -> None:
    frame = with_status(line(STAYS, seeds=3), "diverged", scale=64.0, value=2.0**-4, seed=0)
    frame = with_status(frame, "missing", scale=64.0, value=2.0**-4, seed=1)
    frame = with_status(frame, "missing", scale=64.0, value=2.0**-5)
    found = made(frame)
    assert found.values == tuple(2.0**x for x in range(-9, -3))
    assert found.diverged_share[1] == (0.0, 0.0, 0.0, 0.0, None, 0.5)
    assert found.losses[1][4:] == (None, None)
    assert found.diverged_share[0] == (0.0,) * 6


def test_no_divergence_has_no_edge_and_all_diverged_no_stable_hp() -> None:
    assert made(line(STAYS)).edges_log2 == (None, None, None)
    lost = made(with_status(line(STAYS), "diverged", scale=128.0))
    assert (lost.all_diverge, lost.edges_log2[2]) == ((False, False, True), None)
    empty = line(STAYS)
    assert made(empty.assign(status="missing", loss=float("nan"))).why_not == "no trial of this line has a result"
