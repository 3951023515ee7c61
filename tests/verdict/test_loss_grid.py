"""Losses: medians over seeds, divergence, what counts as no data, means without a missing seed, and basins."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from planted_lines import MOVES, STAYS, grid_of, line, with_status
from planted_sweeps import cell_of

from hpxfer.errors import HpxferError
from hpxfer.verdict.loss_grid import ShapeLosses, loss_grids

NAN, INF = math.nan, math.inf


def rows(frame: pd.DataFrame) -> list[ShapeLosses]:
    return [row for grid in loss_grids(frame) for row in grid.rows]


@pytest.mark.parametrize(
    ("losses", "median"),
    [
        ((3.0,), 3.0),
        ((3.0, 4.0), 3.5),
        ((3.0, math.inf), math.inf),
        ((3.0, 4.0, math.inf), 4.0),
        ((3.0, math.inf, math.inf), math.inf),
        ((math.inf, math.inf), math.inf),
        ((), None),
    ],
)
def test_a_diverged_seed_is_infinite_in_the_median(losses: tuple[float, ...], median: float | None) -> None:
    assert cell_of(0.5, losses).median == median
    assert cell_of(0.5, losses).censored == (median == math.inf)


def test_shapes_are_ordered_and_hold_every_planned_value() -> None:
    frame = with_status(line({**MOVES, **STAYS}), "missing", scale=64.0, value=2.0**-6)
    found = rows(frame.sample(frac=1.0, random_state=3))
    keys = [(row.parameterization, row.scale) for row in found]
    assert keys == [(label, scale) for label in ("completep-moe", "sp") for scale in (32.0, 64.0, 128.0)]
    assert all([cell.value for cell in row.cells] == [2.0**e for e in range(-9, -3)] for row in found)
    assert [row.is_base for row in found] == [True, False, False] * 2


def test_failed_and_missing_are_no_data_and_diverged_is_data() -> None:
    frame = line(STAYS, scales=(32.0,))
    frame = with_status(frame, "failed", value=2.0**-9, seed=0)
    frame = with_status(frame, "missing", value=2.0**-8)
    frame = with_status(frame, "diverged", value=2.0**-4)
    (found,) = rows(frame)
    by_exponent = {cell.log2: cell for cell in found.cells}
    assert len(by_exponent[-9.0].losses) == 1
    assert by_exponent[-8.0].median is None
    assert not by_exponent[-8.0].censored
    assert by_exponent[-4.0].censored
    assert (found.num_missing, found.num_diverged, found.num_trials) == (3, 2, 12)


def test_a_diverged_row_is_censored_even_if_it_carries_a_loss() -> None:
    frame = line(STAYS, scales=(32.0,), seeds=1)
    frame.loc[0, "status"] = "diverged"
    assert math.isfinite(frame.loc[0, "loss"])
    assert rows(frame)[0].cells[0].censored


def test_a_finished_row_without_the_judged_loss_is_no_data() -> None:
    frame = line(STAYS, scales=(32.0,), seeds=1)
    frame.loc[0, "loss"] = math.nan
    assert rows(frame)[0].cells[0].median is None


def test_a_log_axis_cannot_show_zero() -> None:
    frame = line(STAYS, scales=(32.0,))
    frame.loc[frame["value"] == 2.0**-9, "value"] = 0.0
    (found,) = rows(frame)
    assert [cell.value for cell in found.off_axis] == [0.0]
    assert len(found.cells) == 5


def test_a_frame_that_is_no_line_is_refused() -> None:
    with pytest.raises(HpxferError, match="missing: loss"):
        rows(line(STAYS).drop(columns="loss"))
    with pytest.raises(HpxferError, match="got 'pruned'"):
        rows(with_status(line(STAYS), "pruned", seed=1))


def test_a_line_becomes_arrays() -> None:
    frame = with_status(line(STAYS), "missing", scale=64.0, value=2.0**-7, seed=1)
    frame = with_status(frame, "diverged", scale=128.0, value=2.0**-4)
    (data,) = loss_grids(frame)
    assert data.loss_IKS.shape == (3, 6, 2)
    assert data.x_K.tolist() == [-9.0, -8.0, -7.0, -6.0, -5.0, -4.0]
    assert math.isnan(data.loss_IKS[1, 2, 1])
    assert np.isinf(data.loss_IKS[2, 5]).all()


def test_a_missing_lucky_seed_does_not_move_the_mean_of_its_cell() -> None:
    mean = np.array([4.0, 1.0, 0.0, 1.0, 4.0])
    whole = mean[:, None] + np.array([-0.5, 0.2, 0.3])
    hole = whole.copy()
    hole[1, 0] = NAN
    assert grid_of(hole.tolist()).mean_IK[0] == pytest.approx(mean, abs=1e-8)
    assert float(np.nanmean(hole[1])) == pytest.approx(1.25)  # what the mean of the cell alone would say
    assert grid_of(hole.tolist()).residual_IKS[0][~np.isnan(hole)] == pytest.approx(0.0, abs=1e-8)


def test_residuals_have_the_variance_of_one_seed() -> None:
    rng = np.random.default_rng(0)
    noise = 0.01 * rng.standard_normal((4000, 5, 3)) + rng.standard_normal((4000, 1, 3))
    data = grid_of(*(noise + (np.arange(5.0)[:, None] - 2) ** 2).tolist())
    assert np.std(data.residual_IKS) == pytest.approx(0.01 * math.sqrt(4 / 5), rel=0.02)  # the level takes one of five


def test_a_basin_ends_where_a_seed_diverged() -> None:
    data = grid_of([[3.0, 3.1], [2.0, 2.1], [1.0, 1.1], [2.0, INF], [2.5, 2.6]])
    assert data.basin_IK[0].tolist() == [True, True, True, False, False]
    assert data.diverges_IK[0].tolist() == [False, False, False, True, False]
    assert np.isnan(data.mean_IK[0, 3:]).all()


def test_one_seed_in_three_is_unstable_and_no_divergence() -> None:
    data = grid_of([[3.0] * 3, [2.0] * 3, [2.5, 2.5, INF]])
    assert data.unstable_IK[0].tolist() == [False, False, True]
    assert not data.diverges_IK.any()


def test_a_loss_that_blew_up_is_a_cliff_and_a_steep_side_is_none() -> None:
    quadratic = [[0.02 * (x - 3) ** 2] for x in range(7)]
    assert not grid_of(quadratic).cliffs_IK.any()
    steep = [[0.02 * (x - 3) ** 2 * (1 + 0.3 * (x - 3))] for x in range(7)]
    assert not grid_of(steep).cliffs_IK.any()
    blown = [*quadratic[:5], [4.0], [300.0]]
    assert grid_of(blown).cliffs_IK[0].tolist() == [False] * 5 + [True] * 2
    assert grid_of(blown).basin_IK[0].tolist() == [True] * 5 + [False] * 2


def test_noise_alone_rarely_makes_a_cliff() -> None:
    rng = np.random.default_rng(1)
    losses = 3 + 0.01 * rng.standard_normal((500, 7, 3))
    cut = np.array([grid_of(sweep.tolist()).cliffs_IK.any() for sweep in losses])
    assert cut.mean() < 0.05


def test_cells_without_results_are_no_cells() -> None:
    data = grid_of([[NAN, NAN], [2.0, NAN], [1.0, 1.1], [2.0, 2.1]])
    assert data.basin_IK[0].tolist() == [False, True, True, True]
    assert data.num_seeds_IK[0].tolist() == [0, 1, 2, 2]
    assert np.isnan(data.residual_IKS[0, 1]).all()  # one seed says nothing of noise
    assert not grid_of([[NAN], [NAN]]).basin_IK.any()
