"""The values that a follow-up proposes: where they lie, and how they are written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpxfer.scaling.hps import LEAST_LOG2, MOST_LOG2
from hpxfer.verdict.lattice import between, beyond, step_at, value_text
from hpxfer.verdict.row_needs import MAX_STEPS


def logs(*values: float) -> list[float]:
    return [math.log2(value) for value in values]


@given(start=st.integers(-20, 4), step=st.sampled_from([0.5, 1.0, 1.5, 2.0]), num=st.integers(2, 8))
def test_a_grid_of_powers_of_two_gets_whole_steps_beyond_it_and_halves_between(
    start: int, step: float, num: int
) -> None:
    row = [start + step * k for k in range(num)]
    assert logs(*beyond(row, 2, upper=True)) == pytest.approx([row[-1] + step, row[-1] + 2 * step])
    assert logs(*beyond(row, 2, upper=False)) == pytest.approx([row[0] - 2 * step, row[0] - step])
    middle = between(row[0], row[1], row)
    assert middle == (None if step == 0.5 else 2.0 ** (row[0] + step / 2))


def test_a_gap_that_was_halved_does_not_halve_the_steps_beyond_it() -> None:
    assert step_at([-9.0, -8.5, -8.0, -7.0, -6.0], upper=False) == 0.75
    assert step_at([-9.0, -8.5, -8.0, -7.0, -6.0, -5.0], upper=False) == 1.0
    assert step_at([-9.0], upper=True) == 1.0


@pytest.mark.parametrize(
    ("row", "above", "middle"),
    [((0.001, 0.003, 0.01), 0.03, 0.0017), ((0.02, 0.1), 0.5, 0.04), ((3e-4, 1e-3), 0.003, 5e-4)],
)
def test_other_grids_get_numbers_of_few_digits(row: tuple[float, ...], above: float, middle: float) -> None:
    assert beyond(logs(*row), 1, upper=True) == (above,)
    assert between(*logs(*row[:2]), logs(*row)) == middle


@given(low=st.floats(1e-6, 1.0), factor=st.floats(1.7, 30.0))
def test_a_value_between_two_is_well_within_them(low: float, factor: float) -> None:
    value = between(*logs(low, factor * low), logs(low, factor * low))
    assert value is not None
    assert 0.35 < math.log2(value / low) / math.log2(factor) < 0.65


@pytest.mark.parametrize(
    ("value", "text"), [(2.0**-6, "2^-6"), (2.0**-6.5, "2^-6.5"), (0.003, "0.003"), (1.0, "2^0"), (0.1, "0.1")]
)
def test_values_are_written_as_the_grid_means_them(value: float, text: str) -> None:
    assert value_text(value) == text


@pytest.mark.parametrize("row", [(LEAST_LOG2, MOST_LOG2), (LEAST_LOG2, -3.32), (-3.32, MOST_LOG2)])
def test_the_widest_row_of_legal_values_has_finite_values_beyond_it(row: tuple[float, ...]) -> None:
    values = [value for upper in (False, True) for value in beyond(row, MAX_STEPS, upper=upper)]
    assert len(values) == 2 * MAX_STEPS
    assert all(0 < value < math.inf for value in values)
