"""The library of basins: every form is a basin, and the weights are probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples

from hpxfer.verdict.basins import (
    COHERENCE,
    GROWTH_T,
    GROWTHS,
    PRIOR_T,
    REACH,
    SIMILAR_TT,
    SKEW_T,
    SKEWS,
    STEP,
    TABLE_TU,
    rise_of_all,
    rise_of_each,
)

ALL = np.arange(PRIOR_T.size)
MIDDLE = TABLE_TU.shape[1] // 2
BENT = np.isfinite(GROWTH_T)
FLAT, KINKED = np.isnan(GROWTH_T), np.isinf(GROWTH_T)


def test_every_form_has_one_minimum_and_it_is_at_zero() -> None:
    assert TABLE_TU.shape == (SKEWS.size * GROWTHS.size, round(2 * REACH / STEP) + 1)
    assert np.isfinite(TABLE_TU).all()
    assert (TABLE_TU[:, MIDDLE] == 0).all()
    steps = np.diff(TABLE_TU, axis=1)
    assert (steps[:, :MIDDLE] <= 0).all()
    assert (steps[:, MIDDLE:] >= 0).all()
    near = [round(MIDDLE + side / STEP) for side in (-1, 1)]
    assert (TABLE_TU[:, near] > 0.05).all()


def test_every_form_is_convex() -> None:
    bends = np.diff(TABLE_TU, n=2, axis=1)
    assert (bends >= -1e-9 * np.abs(TABLE_TU[:, 1:-1]).clip(1)).all()


def test_the_curvature_at_the_optimum_is_that_of_a_parabola() -> None:
    """So the curvatures of different forms can be compared. A flat bottom has none, and rises as a quartic."""
    second = np.diff(TABLE_TU, n=2, axis=1)[:, MIDDLE - 1] / STEP**2
    assert second[BENT] == pytest.approx(2.0, rel=0.01)
    assert (second[FLAT] < 0.05).all()
    (flat,) = np.flatnonzero(FLAT & (SKEW_T == 0))
    u = np.array([0.5, 1.0, 2.0])
    assert rise_of_all(u, np.array([flat]))[0] == pytest.approx(u**4, rel=0.01)


def test_a_kink_joins_two_lines_whose_slopes_differ_by_its_skew() -> None:
    u = np.array([-4.0, -2.0, 2.0, 4.0])
    for form in np.flatnonzero(KINKED):
        far_left, left, right, far_right = rise_of_all(u, np.array([form]))[0]
        slopes = (far_left - left) / 2, (far_right - right) / 2
        assert slopes == pytest.approx((np.exp(-SKEW_T[form] / 2), np.exp(SKEW_T[form] / 2)), rel=0.02)
        assert right == pytest.approx(2 * slopes[1], rel=0.03)


def test_the_form_without_skew_and_growth_is_a_parabola() -> None:
    (parabola,) = np.flatnonzero((SKEW_T == 0) & (GROWTH_T == 0))
    u = np.linspace(-6, 6, 61)
    assert rise_of_all(u, np.array([parabola]))[0] == pytest.approx(u**2, abs=1e-3)
    assert PRIOR_T.argmax() == parabola


def test_skew_makes_the_upper_side_steeper_and_its_opposite_the_lower_one() -> None:
    ones = np.array([1.0])
    above, below = rise_of_all(ones, ALL)[:, 0], rise_of_all(-ones, ALL)[:, 0]
    assert (above[SKEW_T > 0] > below[SKEW_T > 0]).all()
    for skew in SKEWS[SKEWS > 0]:
        u = np.linspace(-3, 3, 25)
        right, left = np.flatnonzero(np.isclose(SKEW_T, skew)), np.flatnonzero(np.isclose(SKEW_T, -skew))
        assert rise_of_all(u, right) == pytest.approx(rise_of_all(-u, left), rel=1e-5, abs=1e-6)
        assert PRIOR_T[right] == pytest.approx(PRIOR_T[left])


def test_growth_makes_both_sides_steeper_further_out() -> None:
    symmetric = np.flatnonzero((SKEW_T == 0) & BENT)
    rise = rise_of_all(np.array([-2.0, 2.0]), symmetric)
    order = np.argsort(GROWTH_T[symmetric])
    assert (np.diff(rise[order], axis=0) > 0).all()


def test_weights_are_probabilities() -> None:
    assert PRIOR_T.sum() == pytest.approx(1.0)
    assert (PRIOR_T > 0).all()
    assert SIMILAR_TT.sum(axis=1) == pytest.approx(np.ones(PRIOR_T.size))
    assert (SIMILAR_TT >= 0).all()
    assert COHERENCE.sum() == pytest.approx(1.0)


def test_a_form_is_more_similar_to_itself_than_chance_is() -> None:
    assert (np.diag(SIMILAR_TT) > PRIOR_T).all()
    (parabola,) = np.flatnonzero((SKEW_T == 0) & (GROWTH_T == 0))
    near, far = (np.flatnonzero(np.isclose(SKEW_T, skew) & (GROWTH_T == 0))[0] for skew in (0.25, 2.0))
    ratio = SIMILAR_TT[parabola] / PRIOR_T
    assert ratio[near] > 10 * ratio[far]


@given(u=st.lists(st.floats(-20, 20), min_size=1, max_size=6), forms=st.lists(st.integers(0, PRIOR_T.size - 1)))
@settings(deadline=None, max_examples=examples(60))
def test_a_rise_lies_between_the_points_of_the_table(u: list[float], forms: list[int]) -> None:
    found = rise_of_all(np.array(u), np.array(forms, dtype=np.int64))
    assert found.shape == (len(forms), len(u))
    assert (found >= 0).all()
    for row, form in zip(found, forms, strict=True):
        for rise, at in zip(row, u, strict=True):
            below = int((at + REACH) / STEP)
            ends = TABLE_TU[form, below : below + 2]
            assert ends.min() * (1 - 1e-9) <= rise <= ends.max() * (1 + 1e-9)


@given(data=st.lists(st.tuples(st.integers(0, PRIOR_T.size - 1), st.floats(-8, 8)), min_size=1, max_size=8))
@settings(deadline=None, max_examples=examples(40))
def test_the_rise_of_each_is_a_row_of_the_rises_of_all(data: list[tuple[int, float]]) -> None:
    forms, u = np.array([form for form, _ in data]), np.array([[at] for _, at in data])
    each = rise_of_each(u, forms)
    assert each.shape == u.shape
    assert each[:, 0] == pytest.approx(np.diag(rise_of_all(u[:, 0], forms)))


def test_beyond_the_table_a_rise_is_that_of_its_end() -> None:
    far = rise_of_all(np.array([-100.0, 100.0]), ALL)
    assert np.isfinite(far).all()
    assert far[:, 0] == pytest.approx(TABLE_TU[:, 0], rel=0.05)
    assert far[:, 1] == pytest.approx(TABLE_TU[:, -1], rel=0.05)
