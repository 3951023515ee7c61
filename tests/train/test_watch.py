"""The watch against its rule written out on the host, and what it shares with nobody."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_trials import SETTING
from torch import Tensor

from hpxfer.train.schedule import lr_factor
from hpxfer.train.watch import BLOW_UP, Watch, mean_losses

STEPS, TRIALS = 7, 3
LONGER = replace(SETTING, steps=STEPS, decay="linear")
LOSSES = st.floats(0, 1e3, width=32) | st.sampled_from((math.nan, math.inf, -math.inf, 1e38))


def ended(losses: list[float]) -> int:
    """Return the first bad step, or STEPS."""
    limit = BLOW_UP * max(losses[0], math.log(LONGER.vocab_size))
    return next((at for at, loss in enumerate(losses) if not (math.isfinite(loss) and loss <= limit)), STEPS)


def watched(rows: list[list[float]], watch: Watch | None = None) -> Watch:
    """Return a watch that has noted a row of losses a step, each of two tokens."""
    watch = watch or Watch(LONGER, torch.ones(len(rows[0]), dtype=torch.bool))
    for row in rows:
        watch.note(torch.tensor(row).unsqueeze(1).expand(-1, 2))
        watch.advance()
    return watch


@given(st.lists(st.lists(LOSSES, min_size=TRIALS, max_size=TRIALS), min_size=STEPS, max_size=STEPS))
def test_a_trial_ends_at_its_first_bad_loss(rows: list[list[float]]) -> None:
    for num_steps in (1, 3, STEPS):
        watch = watched(rows[:num_steps])
        means = [watched(rows).losses[:, k].tolist() for k in range(TRIALS)]
        ends = [ended(one[:num_steps] + [0.0] * (STEPS - num_steps)) for one in means]
        assert watch.ended.tolist() == ends
        assert watch.alive.tolist() == [end == STEPS for end in ends]
        assert watch.losses[num_steps:].isnan().all()


def test_a_trial_that_ended_stays_so() -> None:
    watch = watched([[1.0, 1.0], [math.nan, 1.0], [1.0, 1.0], [math.inf, 1.0]])
    assert watch.ended.tolist() == [1, STEPS]
    assert watch.alive.tolist() == [False, True]


def test_the_factor_is_the_schedules() -> None:
    watch = Watch(LONGER, torch.ones(1, dtype=torch.bool))
    for step in range(STEPS):
        assert watch.factor().tolist() == [lr_factor(LONGER, step)]
        watch.advance()
    watch.start()
    assert watch.factor().tolist() == [lr_factor(LONGER, 0)]


def test_a_start_forgets_everything() -> None:
    alive = torch.ones(2, dtype=torch.bool)
    watch = watched([[50.0, 1.0], [60.0, math.nan]], Watch(LONGER, alive))
    assert alive.tolist() == [True, False]
    watch.start()
    assert alive.tolist() == [True, True]
    again = watched([[1.0, 1.0], [60.0, 1.0]], watch)  # beside a first loss of 1 it is a blow-up
    assert again.ended.tolist() == [1, STEPS]


def test_who_is_kept_goes_on_with_its_own_limit() -> None:
    rows = [[50.0, 1.0, 1.0], [60.0, math.nan, 2.0]]
    before, smaller = watched(rows), Watch(LONGER, torch.ones(2, dtype=torch.bool))
    smaller.follow(before, [0, 2])
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
