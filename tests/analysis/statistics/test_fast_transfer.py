"""Fast transfer: optima that close in on the largest shape's faster, or slower, than the loss does."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hpxfer.analysis.statistics.fast_transfer import FastTransfer, fast_transfer
from hpxfer.verdict.estimate import estimate_all
from hpxfer.verdict.loss_grid import loss_grids

DOUBLINGS = np.arange(5.0)
CURVATURE = 0.05


def planted(closes: float, *, falls: float = 0.5, noise: float = 1e-4, seeds: int = 3, seed: int = 0) -> FastTransfer:
    """Return the analysis of optima 2^(1 - closes * doublings) octaves off, and losses 0.5 * 2^(-falls * doublings).

    A power of 0 is a straight line.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for d in DOUBLINGS:
        off = 2 ** (1 - closes * d) if closes else 1 - 0.5 * d  # a steady drift
        gap = 0.5 * 2 ** (-falls * d) if falls else 0.3 - 0.05 * d
        for x in range(-10, -2):
            for s in range(seeds):
                loss = 3 + gap + CURVATURE * (x + 6.5 - off) ** 2 + noise * rng.standard_normal()
                rows.append((2.0**d, 2.0**x, s, loss))
    frame = pd.DataFrame(rows, columns=["scale", "value", "seed", "loss"])
    frame = frame.assign(
        axis="width",
        scale_name="width",
        shape=frame["scale"].map("w{:g}".format),
        is_base=frame["scale"] == 1,
        parameterization="planted",
        status="finished",
    )
    (estimates,) = estimate_all(loss_grids(frame))
    return fast_transfer(estimates, "lr")


def test_optima_that_close_in_quickly_transfer_fast() -> None:
    found = planted(1.0)  # the regret goes as 2^(-2 doublings), the gap as 2^(-doublings / 2)
    assert found.optimum_power == pytest.approx(1.0, abs=0.08)
    assert found.gap_power == pytest.approx(0.5, abs=0.02)
    assert found.fast is True
    assert found.points[0].regret_nats == pytest.approx(CURVATURE * (2 - 0.125) ** 2, rel=0.05)
    assert found.points[0].gap_nats == pytest.approx(0.375, rel=0.02)


def test_a_steady_drift_is_not_fast_though_its_regret_falls_off_faster_than_the_gap() -> None:
    found = planted(0.0, falls=0.0)
    assert found.regret_slope is not None
    assert found.gap_slope is not None
    assert found.regret_slope == pytest.approx(2 * found.gap_slope, rel=0.01)
    assert (found.optimum_power, found.gap_power) == (pytest.approx(0.0, abs=0.03), pytest.approx(0.0, abs=0.01))
    assert found.fast is None
    assert planted(0.0, falls=0.5).fast is False


def test_the_intervals_cover() -> None:
    inside = 0
    for seed in range(20):
        found = planted(0.5, falls=1.0, noise=0.005, seed=seed)
        assert found.excess_low is not None
        assert found.excess_high is not None
        inside += found.excess_low <= 0 <= found.excess_high
    assert inside >= 17


def test_optima_that_close_in_slowly_do_not() -> None:
    found = planted(0.3, falls=1.5)  # 2^(-0.6 doublings) against 2^(-1.5 doublings)
    assert found.fast is False
    assert found.optimum_power is not None
    assert found.gap_power is not None
    assert 2 * found.optimum_power - found.gap_power == pytest.approx(-0.9, abs=0.15)
    assert (found.excess_low or 0.0) < -0.9 < (found.excess_high or 0.0) < 0


def test_noise_that_hides_the_optima_decides_nothing() -> None:
    answers = [planted(0.25, falls=0.5, noise=0.02, seed=seed).fast for seed in range(40)]  # equal powers
    assert sum(fast is not None for fast in answers) <= 6


def test_one_seed_has_slopes_without_interval_and_two_shapes_none() -> None:
    single = planted(1.0, seeds=1)
    assert (single.fast, single.excess_low, single.points[0].regret_low) == (None, None, None)
    assert single.regret_slope is not None
    why = planted(1.0, falls=-0.5).why_not
    assert why == "fewer than two smaller shapes have an optimum inside the grid and a higher loss"
