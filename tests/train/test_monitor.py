"""The monitor against its rule computed on the host, for each trial by itself."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_trials import SETTING
from torch import Tensor

from hpxfer.train.monitor import BLOW_UP, DivergenceMonitor, mean_losses
from hpxfer.train.schedules import lr_factor

STEPS, TRIALS = 7, 3
LONGER = replace(SETTING, steps=STEPS, decay="linear")
LOSSES = st.floats(0, 1e3, width=32) | st.sampled_from((math.nan, math.inf, -math.inf, 1e38))


def ended(losses: list[float]) -> int:
    """Return the first bad step, or STEPS."""
    limit = BLOW_UP * max(losses[0], math.log(LONGER.vocab_size))
    return next((at for at, loss in enumerate(losses) if not (math.isfinite(loss) and loss <= limit)), STEPS)


def watched(rows: list[list[float]], monitor: DivergenceMonitor | None = None) -> DivergenceMonitor:
    """Return a monitor that has recorded one row of losses per step, each of two tokens."""
    monitor = monitor or DivergenceMonitor(LONGER, torch.ones(len(rows[0]), dtype=torch.bool))
    for row in rows:
        monitor.record(torch.tensor(row).unsqueeze(1).expand(-1, 2))
        monitor.advance()
    return monitor


@given(st.lists(st.lists(LOSSES, min_size=TRIALS, max_size=TRIALS), min_size=STEPS, max_size=STEPS))
def test_a_trial_ends_at_its_first_bad_loss(rows: list[list[float]]) -> None:
    for num_steps in (1, 3, STEPS):
        monitor = watched(rows[:num_steps])
        means = [watched(rows).losses[:, k].tolist() for k in range(TRIALS)]
        ends = [ended(mean[:num_steps] + [0.0] * (STEPS - num_steps)) for mean in means]
        assert monitor.ended.tolist() == ends
        assert monitor.alive.tolist() == [end == STEPS for end in ends]
        assert monitor.losses[num_steps:].isnan().all()


def test_a_trial_that_ended_stays_so() -> None:
    monitor = watched([[1.0, 1.0], [math.nan, 1.0], [1.0, 1.0], [math.inf, 1.0]])
    assert monitor.ended.tolist() == [1, STEPS]
    assert monitor.alive.tolist() == [False, True]


def test_the_factor_is_the_schedules() -> None:
    monitor = DivergenceMonitor(LONGER, torch.ones(1, dtype=torch.bool))
    for step in range(STEPS):
        assert monitor.factor().tolist() == [lr_factor(LONGER, step)]
        monitor.advance()
    monitor.reset()
    assert monitor.factor().tolist() == [lr_factor(LONGER, 0)]


def test_a_start_forgets_everything() -> None:
    alive = torch.ones(2, dtype=torch.bool)
    monitor = watched([[50.0, 1.0], [60.0, math.nan]], DivergenceMonitor(LONGER, alive))
    assert alive.tolist() == [True, False]
    monitor.reset()
    assert alive.tolist() == [True, True]
    again = watched([[1.0, 1.0], [60.0, 1.0]], monitor)  # beside a first loss of 1 it is a blow-up
    assert again.ended.tolist() == [1, STEPS]


def test_who_is_kept_goes_on_with_its_own_limit() -> None:
    rows = [[50.0, 1.0, 1.0], [60.0, math.nan, 2.0]]
    before, smaller = watched(rows), DivergenceMonitor(LONGER, torch.ones(2, dtype=torch.bool))
    smaller.resume(before, [0, 2])
    watched([[70.0, 60.0]], smaller)
    assert smaller.ended.tolist() == [STEPS, 2]
    assert smaller.losses[2].tolist() == [70.0, 60.0]
    assert smaller.losses[:2].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_is_each_trials_own(dtype: torch.dtype) -> None:
    losses: Tensor = torch.rand(5, 96, generator=torch.Generator().manual_seed(0))
    together = mean_losses(losses, dtype=dtype)
    assert together.dtype == dtype
    for k in range(5):
        assert torch.equal(mean_losses(losses[k : k + 1].clone(), dtype=dtype), together[k : k + 1])
