"""Chances: shares of the joint draws, which a tie at the base does not decide."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from planted_lines import grid_of

from hpxfer.verdict.chances import Chances, chances
from hpxfer.verdict.estimate import Estimates, estimate_all

X = np.arange(-9.0, -2.0)


def estimates(
    optima: Sequence[float], *, noise: float = 0.004, curvature: float = 0.03, seeds: int = 3, luck: int = 0
) -> Estimates:
    """Return the estimates of parabolas at shapes a doubling apart."""
    rng = np.random.default_rng(luck)
    mean_IK = 3 + curvature * (X - np.array(optima)[:, None]) ** 2
    loss = mean_IK[:, :, None] + noise * rng.standard_normal((len(optima), X.size, seeds))
    return estimate_all([grid_of(*loss.tolist(), log2_values=X.tolist())])[0]


def of(found: Estimates, cell: int, limit: float = 0.03) -> Chances:
    out = chances(found, 0, cell, [limit] * len(found.grid.rows))
    assert out is not None
    return out


def test_what_stays_transfers_and_what_moves_far_does_not() -> None:
    stays, moves = of(estimates([-6.1, -6.1, -6.1]), 3), of(estimates([-6.1, -5.1, -4.1]), 3)
    assert stays.transfers > 0.98
    assert stays.moved < 0.02
    assert (stays.over_I < 0.01).all()
    assert moves.transfers < 0.02
    assert moves.moved > 0.98
    assert moves.over_I[2] > 0.98
    assert moves.over_I[0] < 0.01


def test_a_move_at_the_limit_is_as_likely_as_not() -> None:
    found = [of(estimates([-6.5, -5.5], luck=luck), 3, limit=1.0) for luck in range(8)]
    assert 0.2 < np.mean([each.moved for each in found]) < 0.8
    assert [each.transfers for each in found] == pytest.approx([1 - each.moved for each in found], abs=1e-9)


def test_a_tie_at_the_base_decides_nothing() -> None:
    """The optimum of the base lies between two cells. One of them is over the limit at the other shape."""
    tied = estimates([-6.5, -5.5], noise=0.02, curvature=0.06)
    for cell in (2, 3):
        found = of(tied, cell)
        assert found.over_I[1] < 0.98
    # The negative twin: the regrets of the HP that is transferred are over the limit by themselves.
    assert (of(tied, 2).regret_BI[:, 1] > 0.03).mean() > 0.98


def test_a_base_that_is_sure_of_its_best_cell_decides() -> None:
    sure = estimates([-7.0, -5.0], noise=0.02, curvature=0.06)
    assert of(sure, 2).over_I[1] > 0.98


@given(limit=st.floats(0.001, 0.5), cell=st.integers(0, 6), luck=st.integers(0, 10))
@settings(deadline=None, max_examples=examples(25))
def test_the_laws_of_chances(limit: float, cell: int, luck: int) -> None:
    estimated = estimates([-6.3, -5.9, -5.4], luck=luck)
    found, looser = of(estimated, cell, limit), of(estimated, cell, 2 * limit)
    for each in (found, looser):
        assert 0 <= each.transfers <= 1
        assert 0 <= each.moved <= 1
        assert (each.over_I >= 0).all()
        assert (each.over_I <= 1).all()
        assert (each.regret_BI >= 0).all()
        assert each.transfers <= 1 - each.over_I.max() + 1e-9
        assert each.transfers <= 1 - each.moved + 1e-9
    assert looser.transfers >= found.transfers
    assert (looser.over_I <= found.over_I).all()
    assert looser.moved == found.moved  # which the limit does not enter


def test_a_shape_without_draws_or_without_a_limit_counts_for_nothing() -> None:
    found = estimates([-6.1, -6.1, -3.9])
    whole, without = of(found, 3), chances(found, 0, 3, [0.03, 0.03, None])
    assert without is not None
    assert whole.transfers < 0.02
    assert without.transfers > 0.98
    assert np.isnan(without.over_I[2])
    assert np.isnan(without.regret_BI[:, 2]).all()
    assert chances(found, 0, 3, [None, 0.03, 0.03]) is None
