"""Monotone improvement: the luck that a seed has at all scales is no noise of a step."""

from __future__ import annotations

import math

import pytest

from hpxfer.analysis.statistics.improvement import improvement


def test_paired_steps_see_what_unpaired_ones_would_not() -> None:
    lucky = {0: 3.0, 1: 3.5, 2: 4.0}
    found = improvement([64, 32], [{seed: loss - 0.1 + 0.001 * seed for seed, loss in lucky.items()}, lucky])
    (step,) = found.steps
    assert (step.scale, step.next_scale, step.num_seeds) == (32, 64, 3)
    assert step.gain_nats == pytest.approx(0.099)
    assert found.monotone is True


def test_a_larger_shape_that_is_surely_worse_is_told_from_noise() -> None:
    base = {0: 3.0, 1: 3.1, 2: 3.05}
    worse = improvement([32, 64], [base, {seed: loss + 0.1 + 0.001 * seed for seed, loss in base.items()}])
    assert worse.monotone is False
    assert improvement([32, 64], [base, {0: 3.1, 1: 3.0, 2: 3.05}]).monotone is None


def test_one_seed_tells_nothing_and_divergence_leaves_a_step_out() -> None:
    single = improvement([32, 64], [{0: 3.0}, {0: 2.9}])
    assert (single.steps[0].low, single.monotone) == (None, None)
    gone = improvement([32, 64, 128], [{0: 3.0, 1: 3.0}, {0: math.inf, 1: 2.9}, {2: 2.8}])
    assert gone.left_out == ((32, 64), (64, 128))
    assert gone.monotone is None
    assert gone.losses == (3.0, None, 2.8)
    assert gone.why_not is not None
