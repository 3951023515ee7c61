"""Losses: medians over seeds, divergence, what counts as no data, and the same losses as arrays."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from loss_arrays import log2_values, losses
from planted_lines import MOVES, STAYS, line, with_status
from planted_sweeps import cell_of

from hpxfer.errors import HpxferError
from hpxfer.verdict.loss_grid import ShapeLosses, loss_grids


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
    assert losses(data).shape == (3, 6, 2)
    assert log2_values(data).tolist() == [-9.0, -8.0, -7.0, -6.0, -5.0, -4.0]
    assert math.isnan(losses(data)[1, 2, 1])
    assert np.isinf(losses(data)[2, 5]).all()


def test_the_base_of_a_grid_and_its_names() -> None:
    grid, other = loss_grids(line({**MOVES, **STAYS}))
    assert (grid.key, other.key) == (("width", "completep-moe"), ("width", "sp"))
    assert grid.scale_name == "width"
    assert [row.name for row in grid.rows] == ["width 32", "width 64", "width 128"]
    assert grid.rows[0].cell(2.0**-6) is grid.rows[0].cells[3]
    assert grid.rows[0].cell(0.3) is None


def test_rows_may_have_seeds_and_values_of_their_own() -> None:
    frame = line(STAYS, seeds=3)
    frame = frame[~((frame["scale"] == 64.0) & ((frame["seed"] == 0) | (frame["value"] == 2.0**-9)))]
    (data,) = loss_grids(frame)
    assert data.rows[1].seeds == (1, 2)
    assert len(data.rows[1].cells) == 5
    assert losses(data).shape == (3, 6, 3)
    assert np.isnan(losses(data)[1, :, 0]).all()
    assert np.isnan(losses(data)[1, 0]).all()
    assert np.isfinite(losses(data)[1, 1:, 1:]).all()
