"""Speed-up: curves that run through the same losses at a known rate."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hpxfer.analysis.statistics.speed_up import SpeedUp, speed_up

BARE = SpeedUp(axis="moe", parameterization="planted", hp="lr", dense_shape="dense", moe_shape="moe")
STEPS = np.arange(1000)
Curve = tuple[NDArray[np.int64], NDArray[np.float64]]


def curves(rate: float, *, seeds: int = 3, noise: float = 0.02) -> dict[int, Curve]:
    """Return curves that go `rate` times as fast; batches of a seed are the same at any rate."""
    out = {}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        out[seed] = (STEPS, 2 + (rate * (STEPS + 20) / 20.0) ** -0.5 + noise * rng.standard_normal(STEPS.size))
    return out


@pytest.mark.parametrize("rate", [1.0, 1.5, 3.0])
def test_the_planted_rate_is_found(rate: float) -> None:
    found = speed_up(curves(1.0), curves(rate), BARE)
    assert found.speed_up == pytest.approx(rate, rel=0.12)
    assert found.dense_steps == pytest.approx(1000, rel=0.1)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.speed_up <= found.high


def test_a_slower_moe_has_a_speed_up_below_one() -> None:
    found = speed_up(curves(1.0), curves(0.5), BARE)
    assert found.speed_up == pytest.approx(0.5, rel=0.12)
    assert found.moe_steps == pytest.approx(1000, rel=0.1)


def test_one_seed_has_no_interval_and_none_in_common_no_number() -> None:
    single = speed_up(curves(1.0, seeds=1), curves(2.0), BARE)
    assert (single.num_seeds, single.low, single.high) == (1, None, None)
    none = speed_up({5: curves(1.0)[0]}, curves(2.0), BARE)
    assert none.speed_up is None
    assert none.why_not == "no seed has a whole loss curve of both shapes"


def test_logged_steps_need_not_be_even() -> None:
    sparse = np.concatenate([np.arange(100), np.arange(100, 1000, 9)])
    thin = {seed: (sparse, loss[sparse]) for seed, (_, loss) in curves(2.0, noise=0.0).items()}
    assert speed_up(curves(1.0, noise=0.0), thin, BARE).speed_up == pytest.approx(2.0, rel=0.12)
