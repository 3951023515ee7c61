"""About how long a solution takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpxfer.errors import HpxferError
from hpxfer.limit import Batch, Given, Network, solve
from hpxfer.limit.cost import seconds

NETWORKS = {
    "I": (Network(regime="I", parameterization="mup", num_experts=4), 4),
    "II": (Network(regime="II", parameterization="mssp", expert_width=2), 4),
    "III": (Network(regime="III", parameterization="mssp"), 8),
    "residual": (Network(regime="residual", parameterization="mup", depth=2, init_mult={"router": 0.0}), 2),
}


def training(samples: int, steps: int = 100) -> Given:
    x = np.random.default_rng(0).standard_normal((samples, 3))
    return Given.full_batch(Batch(inputs=x, targets=x[:, :1]), steps=steps, lr=0.01)


@pytest.mark.parametrize("regime", NETWORKS)
def test_twice_the_samples_take_the_power_of_the_regime(regime: str) -> None:
    network, factor = NETWORKS[regime]
    assert seconds(network, training(8), 1024, 0) == pytest.approx(factor * seconds(network, training(4), 1024, 0))


def test_more_sites_blocks_and_features_take_longer() -> None:
    many, residual = NETWORKS["II"][0], NETWORKS["residual"][0]
    assert seconds(many, training(4), 2048, 0) == 2 * seconds(many, training(4), 1024, 0)
    assert seconds(replace(many, expert_width=5), training(4), 64, 0) == 2 * seconds(many, training(4), 64, 0)
    assert seconds(replace(residual, depth=6), training(4), 64, 0) == pytest.approx(
        3 * seconds(residual, training(4), 64, 0)
    )
    exact = NETWORKS["I"][0]
    assert seconds(exact, training(4), 2048, 0) == seconds(exact, training(4), 64, 0), "nothing is sampled"


def test_the_time_of_all_seeds_is_said_once_before_they_are_solved() -> None:
    network, given = NETWORKS["II"][0], training(2, steps=1)
    said: list[float] = []
    solve(network, given, sites=64, seeds=3, on_start=said.append)
    gaussians = 3 * 4 + 2 * 2  # psi and h2 of every sample, and u of every pass
    assert said == [3 * seconds(network, given, 64, gaussians)]
    solve(NETWORKS["I"][0], given, seeds=3, on_start=said.append)
    assert said[1:] == [seconds(NETWORKS["I"][0], given, 0, 0)], "an exact limit has one seed"
    with pytest.raises(HpxferError, match="sites: must be a power of two"):
        solve(network, given, sites=63, on_start=said.append)
    assert len(said) == 2, "nothing is said of what is refused"


def test_many_classes_take_longer_though_samples_are_few() -> None:
    x = np.random.default_rng(0).standard_normal((3, 3))
    few, many = (
        Given.full_batch(Batch(inputs=x, targets=np.arange(3)), steps=1, lr=0.01, loss="cross_entropy", num_classes=c)
        for c in (3, 300)
    )
    said: list[float] = []
    for given in (few, many):
        solve(NETWORKS["II"][0], given, sites=2048, seeds=1, on_start=said.append)
    assert said[1] > 10 * said[0]
