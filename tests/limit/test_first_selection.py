"""Top-K without a bias: the sets of experts that finite networks take at initialization, against the distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from finite_net import train
from limit_cases import one

from hpxfer.limit import Batch, Given
from hpxfer.limit.selection import draw, expected_overlap, first_features, selection

SEEDS = 4000


@pytest.mark.parametrize(("cosine", "overlap"), [(0.0, 0.5), (0.5, 0.656), (0.9, 0.841)])
def test_networks_take_sets_as_the_distribution_says(cosine: float, overlap: float) -> None:
    inputs = np.array([[2.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]])
    given = Given.full_batch(Batch(inputs=inputs, targets=np.ones((2, 1))), steps=0, lr=0.1)
    network = one(num_experts=4, num_active=2, expert_matrices=1, expert_ratio=1.0)
    used = train(network, given, 48, seeds=SEEDS, chunk=500).used[0]  # [R, 2, 4]
    share = (used[:, 0] & used[:, 1]).sum(-1) / 2
    error = share.std() / math.sqrt(SEEDS)
    h1 = first_features(network, given)
    expected = selection(h1[0], 4, 2)
    assert expected.overlaps[0, 1] == pytest.approx(overlap, abs=2e-3)
    assert abs(share.mean() - expected.overlaps[0, 1]) < 4 * error + 2e-3
    # every set of two has the same frequency
    sets = np.unique(used[:, 0] @ (1 << np.arange(4)), return_counts=True)[1]
    assert len(sets) == expected.num_sets == 6
    assert ((sets - SEEDS / 6) ** 2 / (SEEDS / 6)).sum() < 25  # chi squared, 5 degrees of freedom
    # the room's own draws have the same overlap
    drawn = np.array([draw(h1, 4, 2, seed)[0] for seed in range(1500)])
    assert abs((drawn[:, 0] & drawn[:, 1]).sum(-1).mean() / 2 - overlap) < 0.03


def test_overlaps_of_many_samples_are_interpolated() -> None:
    h1 = np.random.default_rng(0).standard_normal((60, 3))
    found = selection(h1, 5, 2).overlaps
    assert np.array_equal(found, found.T)
    assert (np.diag(found) == 1).all()
    cosines = h1 @ h1.T / np.linalg.norm(h1, axis=1) / np.linalg.norm(h1, axis=1)[:, None]
    for a, b in ((0, 1), (2, 40), (59, 7), np.unravel_index(np.argmin(cosines), cosines.shape)):
        assert found[a, b] == pytest.approx(expected_overlap(float(cosines[a, b]), 5, 2), abs=5e-4)


def test_an_activation_of_the_input_layer_makes_samples_more_alike() -> None:
    """The router reads h1: under relu, even samples with opposite inputs have experts in common."""
    inputs = np.array([[1.5, 0.0, 0.0], [0.0, 1.5, 0.0], [-1.5, 0.0, 0.0]])
    given = Given.full_batch(Batch(inputs=inputs, targets=np.ones((3, 1))), steps=0, lr=0.1)
    network = one(num_experts=4, num_active=1, expert_matrices=1, expert_ratio=1.0, input_activation="relu")
    used = train(network, given, 48, seeds=SEEDS, chunk=500).used[0]
    h1 = first_features(network, given)
    expected = selection(h1[0], 4, 1).overlaps
    drawn = np.array([draw(h1, 4, 1, seed)[0] for seed in range(1500)])
    for a, b in ((0, 1), (0, 2), (1, 2)):
        share, of_draws = ((masks[:, a] & masks[:, b]).sum(-1) for masks in (used, drawn))
        assert abs(share.mean() - expected[a, b]) < 4 * share.std() / math.sqrt(SEEDS) + 2e-3
        assert abs(of_draws.mean() - expected[a, b]) < 0.05
    by_inputs = selection(inputs, 4, 1).overlaps  # negative twin: the cosines of the inputs are 0 and -1
    assert expected[0, 1] - by_inputs[0, 1] > 0.1
    assert expected[0, 2] - by_inputs[0, 2] > 0.2


@pytest.mark.slow
def test_free_networks_draw_again_after_the_first_update() -> None:
    given = Given.full_batch(Batch(inputs=np.array([[1.0, 0.0]]), targets=np.ones((1, 1))), steps=1, lr=0.2)
    network = one(
        num_experts=2, num_active=1, expert_matrices=1, expert_ratio=1.0, gate="normalized_softmax", aggregation="none"
    )
    shares = []
    for width, seeds in ((32, 2000), (128, 2000)):
        used = train(network, given, width, seeds=seeds, chunk=500).used  # [passes][R, 1, 2]
        shares.append(float((used[0] != used[1]).any(-1).mean()))
    assert min(shares) > 0.13  # 0.17, with an error of 0.008
    assert abs(shares[0] - shares[1]) < 0.04  # it does not fall with the width, as N^-1/2 would by a half
