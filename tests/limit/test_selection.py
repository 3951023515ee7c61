"""Which experts are chosen: without a bias at initialization, and by the bias-rate simulation.

The sets that finite networks take, against the distribution. Of the simulation its truth by another quadrature, the
paper's snippet, its claim, and twins of the claim.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from finite_net import train
from limit_cases import one
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm

from hpxfer.errors import HpxferError
from hpxfer.figures import chart
from hpxfer.limit import Batch, BiasRateOptions, Given, bias_rate
from hpxfer.limit.bias_rate import BiasRate, changed_limit
from hpxfer.limit.figures import bias_rate_block
from hpxfer.limit.selection import draw, expected_overlap, first_features, selection

SEEDS = 4000


@pytest.mark.first
@pytest.mark.parametrize(("cosine", "overlap"), [(0.5, 0.656), (0.0, 0.5), (0.9, 0.841)])
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


@pytest.mark.slow
def test_overlaps_of_many_samples_are_interpolated() -> None:
    h1 = np.random.default_rng(0).standard_normal((60, 3))
    found = selection(h1, 5, 2).overlaps
    assert np.array_equal(found, found.T)
    assert (np.diag(found) == 1).all()
    cosines = h1 @ h1.T / np.linalg.norm(h1, axis=1) / np.linalg.norm(h1, axis=1)[:, None]
    for a, b in ((0, 1), (2, 40), (59, 7), np.unravel_index(np.argmin(cosines), cosines.shape)):
        assert found[a, b] == pytest.approx(expected_overlap(float(cosines[a, b]), 5, 2), abs=5e-4)


@pytest.mark.slow
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


# How a rate of the bias changes the choice: a simulation.

PAPER = {"logit_scale": 0.02, "bias_scale": 0.05, "update_scale": 0.01}


def snippet(sparsity: float, num_experts: int, tests: int, rng: np.random.Generator) -> list[float]:
    """Return what the paper's snippet prints (App. B), 1 minus it."""
    active, out = int(sparsity * num_experts), []
    for _ in range(tests):
        logits = 0.02 * rng.normal(0, 1, num_experts)
        sig_logits = expit(logits)
        bias = 0.05 * rng.uniform(0, 1, num_experts)
        mask_top_a = set(np.argsort(sig_logits + bias)[-active:])
        bias_update = 0.01 * rng.uniform(0, 1, num_experts)
        mask_top_b = set(np.argsort(sig_logits + bias + bias_update)[-active:])
        out.append(1 - len(mask_top_a & mask_top_b) / active)
    return out


@pytest.mark.first
@pytest.mark.parametrize("share", [0.25, 0.0625, 0.9])
def test_the_limit_is_that_of_adaptive_quadrature_over_the_densities(share: float) -> None:
    """q is a sigmoid of a normal plus a uniform: integrated here over the uniform, in the room over the normal."""
    s, b, u = PAPER.values()

    def score_above(y: float) -> float:
        return float(norm.sf(np.log(y / (1 - y)) / s))

    def q_above(x: float) -> float:
        return quad(lambda bias: score_above(x - bias) / b, 0, b, epsabs=1e-9)[0]

    def updated_above(x: float) -> float:
        return quad(lambda update: q_above(x - update) / u, 0, u, epsabs=1e-8)[0]

    before = brentq(lambda x: q_above(x) - share, 0.4, 0.7, xtol=1e-9)
    after = brentq(lambda x: updated_above(x) - share, 0.4, 0.7, xtol=1e-8)
    kept = quad(lambda update: q_above(max(before, after - update)) / u, 0, u, points=[after - before], epsabs=1e-8)[0]
    assert changed_limit(share, **PAPER) == pytest.approx(1 - kept / share, abs=1e-6)


def test_the_limit_of_plain_cases_is_known() -> None:
    # Uniform q and a small uniform update u: an expert at distance d < u/2 below the threshold enters if its update is
    # above u/2 + d. So u/8 of the density 1/b changes.
    uniform = {"logit_scale": 0.0, "bias_scale": 1.0}
    assert changed_limit(0.5, **uniform, update_scale=0.08) == pytest.approx(0.01 / 0.5, abs=1e-10)
    assert changed_limit(0.5, **uniform, update_scale=0.0) == 0.0
    assert changed_limit(1.0, **PAPER) == 0.0
    # An update that is all that counts leaves a random choice.
    assert changed_limit(0.25, logit_scale=0.02, bias_scale=0.0, update_scale=1000.0) == pytest.approx(0.75, abs=1e-3)


def test_the_simulation_is_the_paper_s_snippet_and_reaches_the_limit() -> None:
    (small,) = bias_rate(BiasRateOptions(num_experts=(64,), active_shares=(0.25,), repeats=4000)).rows
    (large,) = bias_rate(BiasRateOptions(num_experts=(4096,), active_shares=(0.25,), repeats=400)).rows
    other = snippet(0.25, 64, 2000, np.random.default_rng(9))
    error = np.hypot(small["error"], np.std(other) / len(other) ** 0.5)
    assert abs(small["changed"] - np.mean(other)) < 4 * error
    assert abs(small["changed"] - small["limit"]) > 4 * small["error"]  # of so few experts the quantile is uncertain
    assert abs(large["changed"] - large["limit"]) < 4 * large["error"]
    assert large["error"] < 1e-3


def trends(**changed: Any) -> BiasRate:
    return bias_rate(BiasRateOptions(num_experts=(128, 256, 512, 1024, 2048), repeats=400, **changed))


@pytest.mark.slow
def test_a_constant_rate_changes_the_same_part_and_others_do_not() -> None:
    assert all(abs(each["slope"]) < 0.03 for each in trends().trends)
    for exponent in (1.0, -1.0):
        found = trends(rate_exponent=exponent)
        assert all(each["slope"] * exponent > 0.1 for each in found.trends)
        assert all(each["slope"] * exponent > 20 * each["error"] for each in found.trends)


def test_the_same_seed_gives_the_same_numbers_as_json_and_text() -> None:
    options = BiasRateOptions(num_experts=(16, 32), active_shares=(0.25, 0.5), repeats=50)
    one, other = bias_rate(options), bias_rate(options)
    assert one == other
    assert json.loads(json.dumps(one.to_dict(), allow_nan=False))["rows"][0]["num_experts"] == 16
    answer, _, head, *_ = lines = one.table().splitlines()
    assert answer.startswith("From 16 to 32 experts, the part of the active experts that one update of the bias")
    assert head.split()[:2] == ["num", "experts"]
    assert len(lines) == 2 + 1 + 4 + 1 + 2 + 2
    assert one.cautions
    assert bias_rate(BiasRateOptions(num_experts=(16,), repeats=50, seed=1)).trends == ()


def test_the_figure_has_a_line_and_a_limit_per_share() -> None:
    axes = chart.draw(bias_rate_block(bias_rate(BiasRateOptions(num_experts=(16, 32, 64), repeats=50)))).axes[0]
    assert sum(line.get_linestyle() == "--" and len(line.get_xdata()) == 3 for line in axes.lines) == 4
    assert axes.get_ylim()[0] == 0.0


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"logit_scale": float("nan")}, "logit_scale: must be a finite number"),
        ({"update_scale": -0.1}, "update_scale: must be a finite number of at least 0"),
        ({"logit_scale": 0.0, "bias_scale": 0.0}, "all experts would be equal"),
        ({"active_shares": (0.3,), "num_experts": (16,)}, "whole number of at least 1"),
        ({"active_shares": (1.5,)}, "at most 1"),
        ({"num_experts": (16, 16)}, "different"),
        ({"repeats": 1}, "at least 2"),
        ({"repeats": 10**9}, "take fewer repeats"),
        ({"seed": -1}, "seed"),
        ({"rate_exponent": float("inf")}, "rate_exponent"),
    ],
)
def test_options_that_mean_nothing_are_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(HpxferError, match=says):
        bias_rate(BiasRateOptions(**changed))
