"""The statistics of deviations, on planted losses: a limit, a bias c/N, and correlated noise of size N^-1/2.

The generator shares no code with the statistics. Networks that approach their limit are accused no more often than the
level says; an offset that stays is found, and so is a swapped limit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples

from hpxfer.limit import deviations
from hpxfer.limit.deviations import ALPHA, Deviations, distances, mean_of, mean_slope, missed, network_slope

SIZES = (64.0, 128.0, 256.0, 512.0, 1024.0)
LIMIT = np.array([1.8, 1.2, 0.7, 0.4, 0.25, 0.2])
FALL = 1.6


def planted(
    rng: np.random.Generator,
    seeds: int,
    *,
    sizes: tuple[float, ...] = SIZES,
    bias: float = 2.0,
    offset: float = 0.0,
    pole: float = 0.0,
    spread: float = 1.0,
    solver: float = 0.0,
) -> Deviations:
    """Return deviations [J, S, T]: bias/N + offset + a skewed noise of size spread/sqrt(N), which sizes share in part.

    A `pole` N0 adds -0.3/(1 + N/N0), a bias with all powers of 1/N.
    """
    passes = len(LIMIT)
    common = rng.standard_normal((seeds, passes))
    values = []
    for n in sizes:
        own = 0.7 * common + 0.7 * rng.standard_normal((seeds, passes))
        skewed = (np.exp(0.4 * np.cumsum(own, axis=1) / np.sqrt(1 + np.arange(passes))) - np.exp(0.08)) / 0.45
        values.append(
            bias / n * np.cos(np.arange(passes))
            + offset * np.linspace(0, 1, passes)
            - (0.3 / (1 + n / pole) if pole else 0.0)
            + spread / np.sqrt(n) * skewed
        )
    draws = solver * rng.standard_normal((8, passes)).cumsum(axis=1)
    return Deviations(
        sizes=sizes,
        values=np.stack(values) - draws.mean(axis=0),
        error=np.maximum.accumulate(draws.std(axis=0, ddof=1) / np.sqrt(8)),
        error_seeds=8 if solver else 0,
        scale=FALL,
        most=LIMIT.max(),
    )


def share_accused(repeats: int, seeds: int, level: float = ALPHA, **how: Any) -> float:
    rng = np.random.default_rng(7)
    return float(np.mean([missed(planted(rng, seeds, **how)).p < level for _ in range(repeats)]))


@pytest.mark.first
@pytest.mark.parametrize("seeds", [64, 4, 16])
def test_networks_that_approach_are_not_accused(seeds: int) -> None:
    """Nor are they for the error of the solver."""
    assert share_accused(300, seeds, bias=50.0) == 0.0
    assert share_accused(300, seeds, bias=0.0, level=0.05) <= 0.05
    assert share_accused(300, seeds, bias=0.0, solver=0.02) <= 0.005


def test_a_slow_approach_is_not_accused() -> None:
    """At widths far below the pole, means hardly shrink yet: a widest mean of 15% of the fall, 30 errors away."""
    found = planted(np.random.default_rng(0), 64, pole=1000.0, bias=0.0)
    assert np.max(np.abs(mean_of(found.values, found).z[-1])) > 10
    for pole in (1000.0, 100.0):
        assert share_accused(200, 64, pole=pole, bias=0.0) == 0.0


def test_an_offset_that_stays_is_found() -> None:
    """Negative twin: a fifth of the fall, where one network at the largest width spreads by 2%, and by 0.6%."""
    assert share_accused(100, 64, offset=0.32) > 0.9
    assert share_accused(100, 16, offset=0.32, spread=0.3) > 0.9
    assert share_accused(100, 64, offset=0.32, spread=0.3) == 1.0


def test_what_would_be_seen_is_seen() -> None:
    """At the offset that the test names, four of five sweeps are accused, or more."""
    seen = float(np.median([missed(planted(np.random.default_rng(k), 32)).seen for k in range(20)]))
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(100):
        found = planted(rng, 32)
        hits += missed(replace(found, values=found.values + seen * FALL)).p < ALPHA
    assert hits >= 75


def test_a_swapped_limit_is_found() -> None:
    """The networks of one limit beside another one, which ends as low."""
    other = np.array([1.8, 1.6, 1.3, 0.9, 0.3, 0.2])
    found = planted(np.random.default_rng(1), 16)
    assert missed(found).p > 0.05
    assert missed(replace(found, values=found.values + LIMIT - other)).p < 1e-6


def test_one_network_deviates_as_the_root_and_the_mean_as_the_inverse() -> None:
    found = planted(np.random.default_rng(2), 200, bias=30.0, spread=1.0)
    of_mean = mean_slope(found)
    assert of_mean is not None
    assert of_mean.low < -1.0 < of_mean.high
    of_network = network_slope(planted(np.random.default_rng(2), 200, bias=0.0))
    assert of_network is not None
    assert of_network.low < -0.5 < of_network.high
    assert of_network.high - of_network.low < 0.2


def test_the_interval_of_the_slope_holds_the_exponent_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    found = [network_slope(planted(rng, 16, bias=0.0)) for _ in range(150)]
    held = np.mean([each is not None and each.low < -0.5 < each.high for each in found])
    assert held > 0.88


def test_a_mean_that_is_noise_has_no_exponent() -> None:
    assert mean_slope(planted(np.random.default_rng(0), 8, bias=0.0)) is None


def test_a_size_is_within_the_tolerance_only_for_sure() -> None:
    rng = np.random.default_rng(4)
    near = distances(planted(rng, 400, bias=4.0, spread=0.05), LIMIT, 0.05)
    assert [each["within"] for each in near] == [False, False, True, True, True]
    few = distances(planted(rng, 2, bias=2.0, spread=1.0), LIMIT, 0.05)
    assert few[-1]["within"] is not True
    assert near[0]["mean_minus_limit"] > 2 * near[0]["noise"]
    assert near[0]["mean_minus_limit"] == pytest.approx(
        4 / 64 * np.sqrt(np.mean(np.cos(np.arange(6)) ** 2)) / FALL, rel=0.05
    )


@settings(max_examples=examples(50), deadline=None)
@given(
    st.integers(2, 6),
    st.integers(2, 5),
    st.integers(1, 5),
    st.floats(1e-6, 1e6),
    st.integers(0, 2**31),
)
def test_statistics_do_not_depend_on_the_unit_of_the_loss(
    sizes: int, seeds: int, passes: int, unit: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((sizes, seeds, passes))
    n = tuple(float(2**k) for k in range(4, 4 + sizes))
    one, other = (
        Deviations(sizes=n, values=values * u, error=np.full(passes, 0.1 * u), error_seeds=4, scale=u, most=u)
        for u in (1.0, unit)
    )
    assert missed(one).p == pytest.approx(missed(other).p, rel=1e-6)
    assert missed(one).seen == pytest.approx(missed(other).seen, rel=1e-6)
    assert 0 <= missed(one).p <= 1
    assert [each["largest_z"] for each in distances(one, np.ones(passes), 0.05)] == pytest.approx(
        [each["largest_z"] for each in distances(other, np.full(passes, unit), 0.05)], rel=1e-6
    )


def few_updates(*, first: float, fall: float, offset: float = 0.0, most: float = 1.0) -> Deviations:
    """Return deviations under a readout of zero after 0, 1 and 2 updates. The first ones are rounding."""
    noise = np.random.default_rng(5).standard_normal((3, 16, 2)) / np.array([32.0, 64.0, 128.0])[:, None, None] ** 0.5
    values = np.concatenate([np.full((3, 16, 1), first), fall * (offset + 0.2 * noise)], axis=2)
    return Deviations(sizes=(32.0, 64.0, 128.0), values=values, error=np.zeros(3), error_seeds=0, scale=fall, most=most)


def test_rounding_is_a_share_of_the_loss_and_not_of_its_fall() -> None:
    found, of_fall = (few_updates(first=1.3e-7, fall=5e-3, most=most) for most in (1.0, 5e-3))
    assert missed(found).p > 0.05
    assert abs(mean_of(found.values, found).z[:, 0]).max() < 1
    assert mean_of(of_fall.values, of_fall).z[:, 0].min() > 20  # negative twin: a share of the fall


def test_a_pass_at_which_nothing_can_deviate_is_no_agreement() -> None:
    found = few_updates(first=0.0, fall=0.5, offset=0.1)
    assert missed(found).seen > 0.03
    seen = missed(found).seen
    assert missed(few_updates(first=0.0, fall=0.5, offset=1.5 * seen)).p < ALPHA


def test_exact_zeros_say_nothing_and_a_deviation_without_spread_all() -> None:
    """From a readout of zero the first loss is that of the targets, at every size and seed."""
    flat = np.zeros((2, 4, 3))
    found = Deviations(sizes=(64.0, 128.0), values=flat, error=np.zeros(3), error_seeds=0, scale=1.0, most=1.0)
    assert missed(found).p == 1.0
    assert network_slope(found) is None
    off = replace(found, values=flat + 0.01)
    assert missed(off).p < 1e-12
    assert mean_of(off.values, off).error == pytest.approx(deviations.ROUNDING)
