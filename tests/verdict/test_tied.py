"""Of equal losses the middle one is chosen, by every place that chooses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_lines import grid_of

from hpxfer.verdict.estimate import best_cell, estimate_all
from hpxfer.verdict.odd_runs import measure
from hpxfer.verdict.optimum import measured_optimum
from hpxfer.verdict.tied import equal_lowest, lowest_of, most_central

INF = math.inf


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ([3.0, 1.0, 2.0], 1),
        ([1.0, 1.0, 1.0, 2.0], 1),
        ([2.0, 1.0, 1.0, 1.0, 1.0, 1.0], 3),
        ([1.0, 1.0, 2.0], 0),  # as close to the middle as its neighbor: the lower place
        ([INF, 1.0, 5.0, 1.0, 1.0], 3),
        ([INF, INF, INF], 1),
        ([1.0 + 1e-16, 2.0, 1.0], 0),
    ],
)
def test_the_middle_of_equal_losses(losses: list[float], chosen: int) -> None:
    assert lowest_of(losses, list(range(len(losses)))) == chosen


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, INF]), min_size=1, max_size=8))
def test_the_choice_is_one_of_the_lowest_and_does_not_favor_an_end(losses: list[float]) -> None:
    places = [float(k) for k in range(len(losses))]
    chosen = lowest_of(losses, places)
    assert chosen in equal_lowest(losses)
    mirrored = len(losses) - 1 - lowest_of(losses[::-1], places)
    assert abs(mirrored - chosen) <= (len(losses) - 1) % 2 + 1 or losses[mirrored] == losses[chosen]
    middle = (equal_lowest(losses)[0] + equal_lowest(losses)[-1]) / 2
    assert abs(chosen - middle) == min(abs(k - middle) for k in equal_lowest(losses))


def test_the_place_in_the_middle_over_two_hps() -> None:
    assert most_central([(0.0, 0.0), (4.0, 4.0), (2.0, 2.5)]) == 2


def test_the_first_of_equal_losses_is_not_preferred() -> None:
    losses = [[0.5, 0.5], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.5, 0.5]]
    (measured,) = measure(grid_of(losses).rows)
    assert measured.lowest == 2
    optimum = measured_optimum(measured)
    assert (optimum.log2_value, optimum.seed_low_log2, optimum.seed_high_log2) == (2.0, 2.0, 2.0)
    (estimates,) = estimate_all([grid_of(losses)])
    assert best_cell(estimates, 0) == 2
