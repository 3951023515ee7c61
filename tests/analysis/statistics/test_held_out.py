"""Held-out extrapolation: the largest shape is where the others say, or it is planted elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
from planted_sweeps import Planted, plant

from hpxfer.analysis.statistics.held_out import HeldOut, _law, held_out, without_largest
from hpxfer.verdict.estimate import estimate_all
from hpxfer.verdict.loss_grid import LossGrid, loss_grids


def of(grid: LossGrid, value: float | None = 2.0**-6) -> HeldOut:
    (whole,), smaller = estimate_all([grid]), without_largest(grid)
    return held_out(whole, None if smaller is None else estimate_all([smaller])[0], value, "lr")


def predicted(kind: Planted, seed: int, value: float = 2.0**-6) -> HeldOut:
    return of(plant(kind, seed).grid(), value)


def moved(seed: int, octaves: float, nats: float = 0.0) -> HeldOut:
    """Return the prediction of a largest shape whose optimum and loss are not on the others' lines."""
    sweep = plant(Planted(noise=0.003), seed)
    frame = sweep.frame()
    last = frame["scale"] == frame["scale"].max()
    away = np.log2(frame["value"]) - sweep.optimum_I[-1]
    shift = 0.02 * ((away - octaves) ** 2 - away**2) + nats
    return of(*loss_grids(frame.assign(loss=frame["loss"] + shift.where(last, 0.0))))


@pytest.mark.parametrize("drift", [0.0, 0.5])
def test_a_straight_drift_is_extrapolated(drift: float) -> None:
    kind = Planted(noise=0.003, drift=drift)
    agree, errors, inside = 0, [], 0
    for seed in range(20):
        found, true = predicted(kind, seed), plant(kind, seed).optimum_I[-1]
        assert found.predicted_log2 is not None
        assert found.predicted_low is not None
        assert found.predicted_high is not None
        errors.append(found.predicted_log2 - true)
        inside += found.predicted_low <= true <= found.predicted_high
        agree += found.hp_agrees is True
    assert abs(np.mean(errors)) < 0.1
    assert inside >= 17
    assert agree >= 17


def test_a_largest_shape_that_is_elsewhere_is_seen() -> None:
    away = [moved(seed, 1.5).hp_agrees for seed in range(12)]
    assert sum(agrees is False for agrees in away) >= 10
    worse = [moved(seed, 0.0, nats=0.3).loss_agrees for seed in range(12)]
    assert sum(agrees is False for agrees in worse) >= 11


def saturating(seed: int) -> HeldOut:
    """Return the prediction of losses that follow a saturating power law over scale."""
    kind = Planted(noise=0.003)
    frame = plant(kind, seed).frame()
    doublings = np.log2(frame["scale"])
    return of(*loss_grids(frame.assign(loss=frame["loss"] + kind.gain * doublings + 2.0 ** (-0.4 * doublings))))


def test_the_loss_is_extrapolated_along_its_law() -> None:
    found = [saturating(seed) for seed in range(20)]
    assert sum(held.loss_agrees is True for held in found) >= 17
    errors = [abs((held.predicted_loss or 0.0) - (held.measured_loss or 0.0)) for held in found]
    assert np.median(errors) < 0.02


def test_the_regret_is_that_of_the_closest_value_on_the_grid() -> None:
    found = predicted(Planted(noise=1e-6), 3)
    assert found.regret_nats == pytest.approx(0.0, abs=1e-3)
    worse = moved(3, 2.0)
    assert worse.regret_nats is not None
    assert worse.regret_nats > 0.03


def test_what_is_unknown_says_why() -> None:
    assert of(plant(Planted(doublings=(0.0, 1.0)), 0).grid()).why_not == "1 smaller shapes, 3 are needed"
    found = of(plant(Planted(off_center=6.0, noise=1e-4), 0).grid(), None)
    assert found.why_no_hp == "0 smaller shapes have an optimum inside the grid, 2 are needed"
    assert found.why_no_loss == "the largest shape has no finite loss at the transferred HP"
    assert found.why_not is not None


def test_one_seed_predicts_without_an_interval() -> None:
    found = of(plant(Planted(seeds=1, noise=1e-4), 0).grid())
    assert found.predicted_log2 == pytest.approx(plant(Planted(seeds=1, noise=1e-4), 0).optimum_I[-1], abs=0.1)
    assert (found.predicted_low, found.hp_agrees) == (None, None)
    assert not math.isnan(found.predicted_loss or 0.0)


def test_the_law_of_one_seed_says_how_far_a_new_loss_may_be_off() -> None:
    inside = 0
    for seed in range(60):
        doublings = np.arange(9.0)
        losses = 2 + 2.0 ** (-0.4 * doublings) + 0.01 * np.random.default_rng(seed).standard_normal(9)
        draws = _law(doublings, losses, None, 0)
        assert draws is not None
        low, high = np.quantile(draws[1:], [0.025, 0.975])
        inside += low <= losses[-1] <= high
    assert inside >= 54
