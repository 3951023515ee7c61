"""The fit of basins: exact where the model holds, asymmetric basins included, and its derivatives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_lines import STAYS, grid_of, line

from hpxfer.verdict.local_fit import fit_local, lowest
from hpxfer.verdict.loss_grid import LossGrid, loss_grids


def basins(optima: list[float], asymmetry: float = 0.0, num: int = 7) -> LossGrid:
    u = np.arange(float(num)) - np.array(optima)[:, None]
    return grid_of(*(3 + 0.02 * u**2 + 0.02 * asymmetry * u**3)[:, :, None].tolist())


@given(optima=st.lists(st.floats(1.5, 4.5), min_size=1, max_size=5), asymmetry=st.floats(-0.1, 0.1))
@settings(deadline=None, max_examples=40)
def test_asymmetric_basins_give_back_their_optima(optima: list[float], asymmetry: float) -> None:
    fit = fit_local(basins(optima, asymmetry))
    assert fit is not None
    assert fit.optima() == pytest.approx(optima, abs=1e-6)


def test_a_parabola_alone_would_miss_an_asymmetric_basin() -> None:
    data = basins([3.0, 3.2, 2.9], asymmetry=0.1)
    fit = fit_local(data)
    assert fit is not None
    near = fit.cell_N[fit.shape_N == 0]
    c, b, _ = np.polyfit(data.x_K[near], data.mean_IK[0, near], 2)
    assert -b / (2 * c) == pytest.approx(3.0 - 0.17, abs=0.01)  # 1.7 g octaves, as the module says
    assert fit.optima()[0] == pytest.approx(3.0, abs=1e-9)


def test_five_points_are_fitted_and_the_far_ones_are_not() -> None:
    data = basins([4.2], num=11)
    bent = data.loss_IKS.copy()
    bent[0, :2] += 5.0
    fit = fit_local(grid_of(*bent.tolist()))
    assert fit is not None
    assert fit.cell_N.tolist() == [2, 3, 4, 5, 6]
    assert fit.optima() == pytest.approx([4.2])


def test_a_finer_grid_uses_what_lies_within_the_reach() -> None:
    x = np.arange(0.0, 8.0, 0.5)
    loss = 3 + 0.02 * (x - 4.1) ** 2
    fit = fit_local(grid_of(loss[:, None].tolist(), log2_values=x.tolist()))
    assert fit is not None
    assert fit.cell_N.size == 10


def test_fewer_than_three_cells_are_not_fitted() -> None:
    assert fit_local(grid_of([[3.0], [2.0]])) is None
    mixed = grid_of([[3.0], [2.0], [np.inf], [np.inf]], [[4.0], [3.0], [2.0], [2.5]])
    fit = fit_local(mixed)
    assert fit is not None
    assert fit.rows_F.tolist() == [1]


def test_lowest_points() -> None:
    unit = np.ones(1)
    assert lowest(-2 * unit, unit, 0 * unit, -5 * unit, 5 * unit) == pytest.approx(1.0)
    assert lowest(-200 * unit, unit, 0 * unit, -5 * unit, 5 * unit) == pytest.approx(5.0)
    assert lowest(unit, -unit, 0 * unit, -5 * unit, 5 * unit) == pytest.approx(-5.0)  # opens down, falls to the left
    assert lowest(-unit, 0.1 * unit, -unit, -5 * unit, 5 * unit) == pytest.approx(5.0)  # no turning point at all
    b, c, d = -0.3, 0.5, 0.1
    at = float(lowest(b * unit, c * unit, d * unit, -5 * unit, 5 * unit)[0])
    assert b + 2 * c * at + 3 * d * at**2 == pytest.approx(0.0, abs=1e-12)
    assert 2 * c + 6 * d * at > 0


def test_the_derivatives_are_those_of_differences() -> None:
    fit = fit_local(*loss_grids(line(STAYS)))
    assert fit is not None
    slope = fit.slope_of_optima()
    for p in range(fit.coefficients_P.size):
        step = np.zeros((1, fit.coefficients_P.size))
        step[0, p] = 1e-7
        moved = [fit.optima(sign * step, np.ones((1, fit.rows_F.size)))[0] for sign in (1, -1)]
        assert slope[:, p] == pytest.approx((moved[0] - moved[1]) / 2e-7, rel=1e-3, abs=1e-5)
