"""The steps that are logged, and their curves."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpxfer.train.log import (
    BALANCE_POINTS,
    LOSS_HEAD,
    LOSS_POINTS,
    PROBE_POINTS,
    MetricLog,
    balance_steps,
    loss_curve,
    loss_steps,
    probe_steps,
    rms_by_role,
    spaced,
)
from hpxfer.trial.result import Curve

STEPS = st.integers(1, 100_000)


@given(STEPS)
def test_losses_of_the_beginning_are_all_kept_and_the_rest_is_thinned(steps: int) -> None:
    found = loss_steps(steps)
    head = min(steps, LOSS_HEAD)
    assert found[:head] == tuple(range(head))
    assert len(found) - head <= LOSS_POINTS
    assert found == tuple(sorted(set(found)))
    assert found[-1] == steps - 1


@given(STEPS)
def test_balance_and_probe_steps_are_few_and_include_both_ends(steps: int) -> None:
    for found, most in ((balance_steps(steps), BALANCE_POINTS), (probe_steps(steps), PROBE_POINTS + 1)):
        assert len(found) <= most
        assert {0, steps - 1} <= found <= set(range(steps))


def test_a_long_run_uses_all_points() -> None:
    assert len(loss_steps(10_000)) == LOSS_HEAD + LOSS_POINTS
    assert len(balance_steps(10_000)) == BALANCE_POINTS
    assert sorted(probe_steps(2187)) == [0, 2, 8, 26, 80, 242, 728, 2186]  # ratio 3


@given(st.integers(0, 50), st.integers(0, 300), st.integers(2, 40))
def test_spaced_steps_are_even(first: int, count: int, points: int) -> None:
    found = spaced(first, first + count, points)
    assert len(found) == min(count, points)
    gaps = {high - low for low, high in itertools.pairwise(found)}
    assert not gaps or max(gaps) - min(gaps) <= 1
    assert found[:1] == [first][: min(count, 1)]
    assert found[-1:] == [first + count - 1][: min(count, 1)]


@pytest.mark.parametrize(("first", "stop"), [(0, 500), (0, 1), (0, 150), (0, 199), (99, 100), (120, 300), (499, 500)])
def test_loss_curve_has_the_logged_steps_from_the_first_and_before_the_last(first: int, stop: int) -> None:
    curve = loss_curve(np.arange(500.0), stop, first)
    assert curve is not None
    assert curve.metric == "train_loss_nats"
    assert curve.steps == tuple(step for step in loss_steps(500) if first <= step < stop)
    assert curve.values == tuple(map(float, curve.steps))


@pytest.mark.parametrize(("first", "stop"), [(0, 0), (101, 102), (300, 200)])
def test_a_loss_curve_without_a_logged_step_is_none(first: int, stop: int) -> None:
    assert 101 not in loss_steps(500)
    assert loss_curve(np.arange(500.0), stop, first) is None


def test_recorder_gives_each_trial_its_own_finite_values() -> None:
    log = MetricLog(3)
    for step in (0, 5, 9):
        values = torch.tensor([step + 0.25, math.inf if step == 5 else step + 0.5, math.nan])
        log.add(step, "grad_rms", values, (0, 1, 2), role="router")
    log.add(0, "load_deviation", torch.tensor([1.0, 2.0, 3.0]), (0, 1, 2), layer=1)
    log.fetch()
    rms = {"metric": "grad_rms", "role": "router"}
    load = {"metric": "load_deviation", "layer": 1, "steps": (0,)}
    assert log.curves(0, None) == (
        Curve(**rms, steps=(0, 5, 9), values=(0.25, 5.25, 9.25)),
        Curve(**load, values=(1.0,)),
    )
    assert log.curves(0, 5) == (Curve(**rms, steps=(0,), values=(0.25,)), Curve(**load, values=(1.0,)))
    assert log.curves(0, 9, 5) == (Curve(**rms, steps=(5,), values=(5.25,)),)
    assert log.curves(0, 5, 9) == log.curves(0, None, 10) == ()
    assert log.curves(1, None)[0] == Curve(**rms, steps=(0, 9), values=(0.5, 9.5))
    assert log.curves(2, None) == (Curve(**load, values=(3.0,)),)
    assert log.curves(0, 0) == ()


def test_a_trial_that_left_the_stack_has_no_values_any_more() -> None:
    log = MetricLog(3)
    log.add(0, "grad_rms", torch.tensor([1.0, 2.0, 3.0]), (0, 1, 2))
    log.fetch()
    log.add(4, "grad_rms", torch.tensor([5.0, 7.0]), (0, 2))
    log.fetch()
    log.fetch()
    found = [curve.values for trial in range(3) for curve in log.curves(trial, None)]
    assert found == [(1.0, 5.0), (2.0,), (3.0, 7.0)]


def test_rms_joins_the_tensors_of_a_role() -> None:
    roles = {"attn_norm": "norm", "moe_norm": "norm", "router": "router"}
    counts = {"attn_norm": 3, "moe_norm": 1, "router": 4}
    squares = {name: torch.tensor(values) for name, values in (("attn_norm", [9.0, 0.0]), ("moe_norm", [7.0, 4.0]))}
    squares["router"] = torch.tensor([1.0, 36.0])
    found = rms_by_role(squares, counts, roles)
    assert {role: item.tolist() for role, item in found.items()} == {"norm": [2.0, 1.0], "router": [0.5, 3.0]}
