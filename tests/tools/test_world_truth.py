"""The truth of a sweep, on cases made by hand: what is true, and beside it what a small change makes false."""

from __future__ import annotations

import math

import numpy as np
import pytest
from foreign_worlds import Noise, World, WorldSweep, values
from world_basins import Quartic, RandomExponential, TwoExponential
from world_list import line
from world_truth import lowest_points, regrets, true_verdict, truth_of


def exact(offsets: tuple[float, ...] = line(0.0), **more: object) -> WorldSweep:
    """Return a sweep whose base has its optimum at 2^-6, on a grid that holds 2^-6."""
    given = {"base": -6.0, "base_spread": 0.0, "either_sign": False, "noise": Noise(sd=0.0)} | more
    return World(name="exact", offsets=offsets, **given).draw(0)  # type: ignore[arg-type]


def transfers(sweep: WorldSweep, value: float | None = 2.0**-6) -> bool:
    return true_verdict(sweep, truth_of(sweep), value).transfers


def clear(sweep: WorldSweep, value: float | None = 2.0**-6) -> bool:
    return true_verdict(sweep, truth_of(sweep), value).clear


@pytest.mark.parametrize("basin", [Quartic(), TwoExponential((0.5,), (4.0,)), RandomExponential()])
def test_the_lowest_points_are_where_the_basins_were_put(basin: Quartic) -> None:
    sweep = exact(line(0.37), basin=basin, soft_cliff=0.6)
    truth = truth_of(sweep)
    assert truth.optimum_I == pytest.approx(sweep.curves.planted_I, abs=1e-3)
    assert truth.best_I == pytest.approx([3.0, 2.9, 2.8, 2.7], abs=1e-6)


def test_the_lowest_point_is_of_the_curve_and_not_of_its_name() -> None:
    """A sum of two basins is lowest between them. Nothing but the numbers of the curve can know."""
    at, loss = lowest_points(lambda x: ((x + 6.0) ** 2 + (x + 5.0) ** 2)[None], -9.0, -3.0)
    assert at[0] == pytest.approx(-5.5, abs=1e-3)
    assert loss[0] == pytest.approx(0.5, abs=1e-6)
    at, _ = lowest_points(lambda x: np.where(x > -6.5, np.inf, (x + 6.0) ** 2)[None], -9.0, -3.0)
    assert at[0] == pytest.approx(-6.5, abs=1e-3)


def test_an_hp_transfers_below_both_limits_and_drifts_above_either() -> None:
    """The limit at the largest width is 0.027 nats: 0.7 octaves cost 0.0098, and at four times the curvature 0.039."""
    assert transfers(exact((0.0, 0.0, 0.0, 0.7)))
    assert not transfers(exact((0.0, 0.0, 0.0, 0.7), curvature=(0.08,)))
    assert not transfers(exact((0.0, 0.0, 0.0, 1.1)))
    assert not transfers(exact((0.0, 0.6, -0.6, 0.0), curvature=(0.001,)))
    assert transfers(exact((0.0, 0.4, -0.4, 0.0), curvature=(0.001,)))


def test_the_limit_of_an_octave_itself_drifts() -> None:
    assert not transfers(exact((0.0, 0.0, 0.0, 1.0), curvature=(0.001,)))
    assert transfers(exact((0.0, 0.0, 0.0, 0.99), curvature=(0.001,)))


def test_the_hp_that_is_handed_over_is_judged_at_the_base_too() -> None:
    sweep = exact()
    assert regrets(sweep, truth_of(sweep), 2.0**-5) == pytest.approx([0.02] * 4)
    assert transfers(sweep, 2.0**-5)
    assert not transfers(sweep, 2.0**-4)
    assert not transfers(exact(cliff=0.5), 2.0**-5)
    assert transfers(exact(cliff=1.5), 2.0**-5)
    assert transfers(sweep, None)


def test_clear_is_half_or_twice_a_limit() -> None:
    flat = {"curvature": (0.001,)}
    assert clear(exact((0.0, 0.75), **flat))
    assert not clear(exact((0.0, 0.8), **flat))
    assert not clear(exact((0.0, 1.2), **flat))
    assert clear(exact((0.0, 1.25), **flat))
    for curvature, is_clear in ((0.028, True), (0.032, False), (0.11, False), (0.12, True)):
        assert clear(exact((0.0, 0.7), curvature=(curvature,))) == is_clear, curvature
    assert not clear(exact(), 2.0**-5)  # two thirds of the limit, at every shape
    assert clear(exact(cliff=0.5), 2.0**-5)
    assert true_verdict(exact(cliff=0.5), truth_of(exact(cliff=0.5)), 2.0**-5).worst == math.inf


def test_drift_and_moves() -> None:
    back = truth_of(exact((0.0, 1.5, 1.5, 0.0)))
    assert (back.drift, back.ends) == (pytest.approx(0.0, abs=1e-3), pytest.approx(0.0, abs=1e-3))
    assert sorted(back.widest) == pytest.approx([-1.5, -1.5, 1.5, 1.5], abs=1e-3)
    assert not back.is_line
    straight = truth_of(exact(line(-0.25)))
    assert (straight.drift, straight.ends, straight.is_line) == (
        pytest.approx(-0.25, abs=1e-3),
        pytest.approx(-0.75, abs=1e-3),
        True,
    )
    assert straight.widest == pytest.approx((-0.75,), abs=1e-3)
    stops = truth_of(exact((0.0, 1.2, 1.2, 1.2)))
    assert stops.drift == pytest.approx(1.2 * 1.5 / 5, abs=1e-3)
    assert not stops.is_line


def test_an_optimum_is_visible_inside_the_grid_with_three_finite_cells_around() -> None:
    assert truth_of(exact()).visible_I == (True,) * 4
    assert truth_of(exact((0.0, 3.5))).visible_I == (True, False)
    assert truth_of(exact(x=values(3, 2.0))).visible_I == (True,) * 4  # 2^-8, 2^-6, 2^-4
    assert truth_of(exact(x=values(3, 2.0), base=-5.9)).visible_I == (False,) * 4
    assert truth_of(exact(cliff=0.3, x=values(3))).visible_I == (False,) * 4
