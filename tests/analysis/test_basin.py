"""Basins: medians over seeds, censoring, and what counts as no data."""

from __future__ import annotations

import math

import pytest
from planted_lines import MOVES, STAYS, line, with_status

from hpxfer.analysis.basin import Point, basins
from hpxfer.errors import HpxferError


def point(*losses: float) -> Point:
    return Point(value=0.5, seeds=tuple(range(len(losses))), losses=losses, num_missing=0)


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
    assert point(*losses).median == median
    assert point(*losses).censored == (median == math.inf)


def test_basins_are_ordered_and_hold_every_planned_value() -> None:
    frame = with_status(line({**MOVES, **STAYS}), "missing", scale=64.0, value=2.0**-6)
    found = basins(frame.sample(frac=1.0, random_state=3))
    keys = [(one.parameterization, one.scale) for one in found]
    assert keys == [(label, scale) for label in ("completep-moe", "sp") for scale in (32.0, 64.0, 128.0)]
    assert all([p.value for p in one.points] == [2.0**e for e in range(-9, -3)] for one in found)
    assert [one.is_base for one in found] == [True, False, False] * 2


def test_failed_and_missing_are_no_data_and_diverged_is_data() -> None:
    frame = line(STAYS, scales=(32.0,))
    frame = with_status(frame, "failed", value=2.0**-9, seed=0)
    frame = with_status(frame, "missing", value=2.0**-8)
    frame = with_status(frame, "diverged", value=2.0**-4)
    (found,) = basins(frame)
    by_exponent = {one.log2: one for one in found.points}
    assert len(by_exponent[-9.0].losses) == 1
    assert by_exponent[-8.0].median is None
    assert not by_exponent[-8.0].censored
    assert by_exponent[-4.0].censored
    assert (found.num_missing, found.num_diverged, found.num_trials) == (3, 2, 12)


def test_a_diverged_row_is_censored_even_if_it_carries_a_loss() -> None:
    frame = line(STAYS, scales=(32.0,), seeds=1)
    frame.loc[0, "status"] = "diverged"
    assert math.isfinite(frame.loc[0, "loss"])
    assert basins(frame)[0].points[0].censored


def test_a_finished_row_without_the_judged_loss_is_no_data() -> None:
    frame = line(STAYS, scales=(32.0,), seeds=1)
    frame.loc[0, "loss"] = math.nan
    assert basins(frame)[0].points[0].median is None


def test_zero_has_no_place_on_a_log_axis() -> None:
    frame = line(STAYS, scales=(32.0,))
    frame.loc[frame["value"] == 2.0**-9, "value"] = 0.0
    (found,) = basins(frame)
    assert [one.value for one in found.off_axis] == [0.0]
    assert len(found.points) == 5


def test_a_frame_that_is_no_line_is_refused() -> None:
    with pytest.raises(HpxferError, match="missing: loss"):
        basins(line(STAYS).drop(columns="loss"))
    with pytest.raises(HpxferError, match="got 'pruned'"):
        basins(with_status(line(STAYS), "pruned", seed=1))
