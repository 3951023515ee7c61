"""Surfaces over two HPs, and the stability map."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from found_rows import rows
from planted_lines import STAYS, line, with_status
from there import of, there

from hpxfer.analysis import Found, Inputs
from hpxfer.analysis.statistics.stability import NO_RESULT, STABILITY, distance
from hpxfer.analysis.statistics.surface import PairCells, Surface, fit_surface
from hpxfer.verdict.findings import DEFAULT_RULES
from hpxfer.verdict.report import judge_line

GRID = [(2.0**a, 2.0**b) for a, b in product(range(-9, -3), range(-2, 3))]
FIRST, SECOND = zip(*GRID, strict=True)


def fitted(losses: list[float]) -> tuple[PairCells, Surface]:
    cells, surface = fit_surface(FIRST, SECOND, losses)
    return cells, of(Surface, surface)


def planted(
    interaction: float, noise: float = 0.0, at: tuple[float, float] = (-6.3, 0.4), seed: int = 0, far: float = 0.0
) -> tuple[PairCells, Surface]:
    """Return the fit of a planted surface; `far` is a rise with the fourth power of the first HP, as in real ones."""
    rng = np.random.default_rng(seed)
    losses = []
    for first, second in GRID:
        v = math.log2(second) - at[1]
        u = math.log2(first) - at[0] - interaction * v
        losses.append(3 + 0.02 * u**2 + 0.01 * v**2 + far * max(u, 0) ** 4 + noise * rng.standard_normal())
    return fitted(losses)


@pytest.mark.parametrize("interaction", [-0.5, 0.0, 0.7])
def test_a_surface_gives_back_its_lowest_point_and_its_interaction(interaction: float) -> None:
    _, found = planted(interaction)
    assert found.lowest == pytest.approx((-6.3, 0.4))
    assert found.loss == pytest.approx(3.0)
    assert found.interaction == pytest.approx(interaction, abs=1e-9)
    assert found.curvatures == pytest.approx((0.02, 0.01 + 0.02 * interaction**2))
    assert found.at(-6.3, 0.4) == pytest.approx(3.0)


def test_the_interval_of_the_interaction_covers() -> None:
    covered, zero_inside = [], []
    for seed in range(200):
        _, found = planted(0.3, noise=0.005, seed=seed)
        covered.append(there(found.interaction_low) <= 0.3 <= there(found.interaction_high))
        zero_inside.append(there(found.interaction_low) <= 0.0)
    assert 0.91 <= np.mean(covered) <= 0.985
    assert np.mean(zero_inside) < 0.2


def test_the_fit_rests_on_the_cells_around_the_lowest_one() -> None:
    cells, found = planted(0.0, at=(-8.0, 0.0), far=0.01)
    assert found.num_cells < len(GRID)
    assert set(cells.log2_first_N[cells.fitted_N]) == {-9.0, -8.0, -7.0, -6.0}
    assert there(found.lowest)[0] == pytest.approx(-8.0, abs=0.4)


def test_a_lowest_point_off_the_grid_is_not_reported() -> None:
    _, found = planted(0.0, at=(-12.0, 0.0))
    assert (found.lowest, found.why_no_optimum) == (None, "the lowest point is off the grid")
    _, saddle = fitted([math.log2(a) * math.log2(b) for a, b in GRID])
    assert (saddle.lowest, saddle.why_no_optimum) == (None, "the surface has no lowest point")


def test_divergence_is_censored_and_two_lines_fix_no_surface() -> None:
    losses = [3 + (math.log2(a) + 6) ** 2 + math.log2(b) ** 2 for a, b in GRID]
    lost = GRID.index((2.0**-5, 4.0))
    losses[lost] = math.inf
    cells, found = fitted(losses)
    assert found.lowest == pytest.approx((-6.0, 0.0), abs=1e-9)
    assert cells.fitted_N[np.isinf(cells.loss_N)].tolist() == [False]
    cross = [(2.0**a, 1.0) for a in range(-9, -3)] + [(2.0**-6, 2.0**b) for b in (-2, -1, 1, 2)]
    first, second = zip(*cross, strict=True)
    for _, nothing in (fit_surface(first, second, [1.0] * len(cross)), fit_surface([1.0], [1.0], [1.0])):
        assert nothing == "the finite cells do not determine a surface: 6 are needed"


def test_a_cell_counts_by_its_seeds_and_is_lost_where_one_diverges() -> None:
    cells, _ = fit_surface([*FIRST, FIRST[0]], [*SECOND, SECOND[0]], [*([3.0] * len(GRID)), math.inf])
    assert np.isinf(cells.loss_N).sum() == 1
    assert len(cells.loss_N) == len(GRID)


def stability(frame: pd.DataFrame) -> Found:
    judged = judge_line(frame, sweep="planted", hp="lr")
    return STABILITY.compute(Inputs(of_sweep=None, hp="lr", loss="validation", lines=(judged,), rules=DEFAULT_RULES))


def edges(found: Found, name: str = "edge_log2") -> list[float | None]:
    """Return what a column says of each shape."""
    return list({row.scale: getattr(row, name) for row in rows(found.frame)}.values())


def test_a_cliff_is_where_it_was_planted_and_its_drift_with_the_optimum() -> None:
    stays = stability(line(STAYS, diverges_above=1.5))
    assert edges(stays) == [-5.0, -5.0, -5.0]
    assert edges(stays, "edge_octaves_per_doubling") == pytest.approx([0.0] * 3, abs=1e-9)
    assert edges(stays, "distance_octaves") == pytest.approx([1.2] * 3, abs=0.15)
    moves = stability(line({"sp": lambda doublings: -5.7 - doublings}, diverges_above=1.5))
    assert edges(moves) == [-5.0, -6.0, -7.0]
    assert edges(moves, "edge_octaves_per_doubling") == pytest.approx([-1.0] * 3)


def test_edges_beyond_the_grid_leave_their_drift_open() -> None:
    """Of 2^-3.7, -4.7 and -5.7 the grid, which ends at 2^-4, shows two: a drift of these alone would leave one out."""
    moves = stability(line({"sp": lambda doublings: -5.2 - doublings}, diverges_above=1.5))
    assert edges(moves) == [None, -5.0, -6.0]
    assert edges(moves, "edge_octaves_per_doubling") == [None] * 3


def test_an_optimum_at_its_edge_has_no_octaves_left() -> None:
    found = stability(line(STAYS, diverges_above=1.5)).frame
    assert distance("sp", found) == "sp at least 1.2"
    assert distance("sp", found.assign(distance_octaves=-0.4)) == "sp none"


def test_shares_are_of_seeds_with_a_result() -> None:
    frame = with_status(line(STAYS, seeds=3), "diverged", scale=64.0, value=2.0**-4, seed=0)
    frame = with_status(frame, "missing", scale=64.0, value=2.0**-4, seed=1)
    frame = with_status(frame, "missing", scale=64.0, value=2.0**-5)
    first, second = (rows(stability(frame).frame, scale=scale) for scale in (32.0, 64.0))
    assert [row.value for row in first] == [2.0**x for x in range(-9, -3)]
    assert [row.diverged_share for row in second] == [0.0, 0.0, 0.0, 0.0, None, 0.5]
    assert [row.loss_nats for row in second[4:]] == [None, None]
    assert [row.diverged_share for row in first] == [0.0] * 6


def test_no_divergence_has_no_edge_and_all_diverged_no_stable_hp() -> None:
    assert edges(stability(line(STAYS))) == [None, None, None]
    lost = stability(with_status(line(STAYS), "diverged", scale=128.0))
    assert (edges(lost, "all_diverge"), edges(lost)[2]) == ([False, False, True], None)
    none = stability(line(STAYS).assign(status="missing", loss=math.nan))
    assert none.unknown == (("width completep-moe lr", NO_RESULT),)
    assert none.frame.empty
