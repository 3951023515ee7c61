"""Divergence is a result: how the monitor detects it, what is recorded, and when a stack stops."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_trials import JOINT, SETTING, numbers, trained, trial
from torch import Tensor

from hpxfer.scaling.evaluate import parameterization
from hpxfer.train import monitor, trainer
from hpxfer.train.device import CPU, fits_memory, saves_time
from hpxfer.train.monitor import BLOW_UP, DivergenceMonitor, mean_losses
from hpxfer.train.schedules import lr_factor
from hpxfer.train.step import TrainStep
from hpxfer.trial import Setting
from hpxfer.trial.result import TrialResult


def train_losses(result: TrialResult) -> tuple[float, ...]:
    return next((curve.values for curve in result.curves if curve.metric == "train_loss_nats"), ())


def assert_diverged(result: TrialResult, step: int) -> None:
    assert result.status == "diverged"
    assert result.diverged_step == step
    assert result.validation_loss_nats is None
    assert result.final_window_loss_nats is None
    assert len(train_losses(result)) == step
    assert result.last_finite_loss_nats == (train_losses(result)[-1] if step else None)
    assert all(
        at < step and math.isfinite(value) for c in result.curves for at, value in zip(c.steps, c.values, strict=True)
    )


@pytest.fixture
def steps_taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the steps of a run in order, with the size of the stack at each."""
    taken: list[tuple[int, int]] = []
    plain = TrainStep.gradients

    def counted(self: TrainStep, step: int) -> Any:
        taken.append((step, self.state.num_trials))
        return plain(self, step)

    monkeypatch.setattr(TrainStep, "gradients", counted)
    return taken


@pytest.fixture
def compacting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every diverged trial leave at once, as if that saved time."""
    monkeypatch.setattr(trainer, "saves_time", lambda *_: True)


# The second has finite logits and losses whose mean is beyond float32.
@pytest.mark.parametrize("hps", [{"init_scale": 1e30}, {"multipliers": (("readout.init_mult", 5e37),)}], ids=str)
def test_nan_or_an_infinite_loss_from_the_first_step(
    setting: Setting, hps: dict[str, Any], steps_taken: list[tuple[int, int]]
) -> None:
    (result,) = trained(trial(setting, **hps))
    assert_diverged(result, 0)
    assert (result.curves, steps_taken) == ((), [(0, 1)])
    assert (result.tokens_per_s or 0) > 0


def test_a_blow_up_is_seen_in_training_or_by_validation(setting: Setting) -> None:
    tested = trial(setting, lr=1e6)
    (result,) = trained(tested)
    assert result.diverged_step is not None
    assert 0 < result.diverged_step < setting.steps
    assert_diverged(result, result.diverged_step)
    bound = BLOW_UP * max(train_losses(result)[0], math.log(setting.vocab_size))
    assert all(loss <= bound for loss in train_losses(result))
    one_step = replace(setting, steps=1, warmup_steps=0, final_window_steps=1)
    (result,) = trained(trial(one_step, lr=1e6))
    assert_diverged(result, 1)
    assert trained(trial(one_step))[0].status == "finished"


@pytest.mark.parametrize(("times", "status"), [(0.5, "diverged"), (0.9, "diverged"), (2.0, "finished")])
def test_the_bound_is_a_multiple_of_the_larger_of_first_loss_and_uniform_guess(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, times: float, status: str
) -> None:
    monkeypatch.setattr(monitor, "BLOW_UP", times)
    # With a tiny readout the first loss is ln(V) up to rounding, and so is the bound's unit.
    hps = {"multipliers": (("readout.init_mult", 1e-6),)}
    (result,) = trained(trial(replace(setting, steps=2, warmup_steps=0), lr=2.0**-9, **hps))
    assert result.status == status
    assert result.diverged_step == (0 if status == "diverged" else None)


def test_a_large_first_loss_is_its_own_measure(setting: Setting) -> None:
    # First losses far above BLOW_UP * ln(V): bad, but no blow-up.
    hps = {"multipliers": (("readout.init_mult", 50.0),)}
    (result,) = trained(trial(setting, lr=2.0**-12, **hps))
    assert result.status == "finished"
    assert train_losses(result)[0] > BLOW_UP * math.log(setting.vocab_size)


@pytest.mark.parametrize("leave", [True, False])
def test_diverged_trials_leave_if_that_saves_time_and_the_stack_goes_on_while_one_lives(
    setting: Setting, steps_taken: list[tuple[int, int]], leave: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "saves_time", lambda *_: leave)
    results = trained(trial(setting, init_scale=1e30), trial(setting), trial(setting, lr=1e6))
    assert [result.status for result in results] == ["diverged", "finished", "diverged"]
    later = results[2].diverged_step or 0
    sizes = [3] + [2] * later + [1] * (setting.steps - 1 - later) if leave else [3] * setting.steps
    assert steps_taken == list(enumerate(sizes))


LONGER = {"steps": 16, "final_window_steps": 4}
# They diverge at different steps, or never.
RATES = (2.0**-6, 1e6, 2.0**-7, 40.0, 2.0**-5, 4.0)


@pytest.mark.first
@pytest.mark.usefixtures("compacting")
@pytest.mark.parametrize(("optimizer", "schedule"), [("adamw", 1.0), ("sgd", None)])
def test_who_leaves_changes_no_bit_of_who_stays(setting: Setting, optimizer: str, schedule: float | None) -> None:
    """Compares each trial of a stack with diverging trials to the trial alone. Router noise and seeds differ."""
    longer = replace(setting, optimizer=optimizer, **LONGER)
    table = parameterization("mup-moe", {"router_bias_std": schedule} if schedule else None)
    stack = [replace(trial(longer, JOINT, lr=rate, seed=k % 2), parameterization=table) for k, rate in enumerate(RATES)]
    stack.insert(2, replace(trial(longer, JOINT, seed=5, init_scale=1e30), parameterization=table))
    together = trained(*stack)
    ends = {item.diverged_step for item in together}
    assert ends > {None, 0}
    for item, result in zip(stack[::2], together[::2], strict=True):
        assert numbers(trained(item)[0]) == numbers(result)


@pytest.mark.usefixtures("compacting")
def test_how_often_the_host_looks_changes_no_number(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = [trial(replace(setting, **LONGER), lr=rate) for rate in RATES]
    each = list(map(numbers, trained(*stack)))
    for looks in (3, 100):
        monkeypatch.setattr(trainer, "setup_for", lambda *_, looks=looks: replace(CPU, steps_per_read=looks))
        assert list(map(numbers, trained(*stack))) == each, looks


def test_a_smaller_stack_must_save_more_than_it_costs() -> None:
    assert saves_time(0.5, 3.0, 1.0, CPU)
    assert not saves_time(0.5, 1.0, 1.0, CPU)
    assert not saves_time(0.5, 3.0, 1.0, replace(CPU, captured=True))  # the next stack captures again, too
    assert fits_memory(0.5, CPU)


def test_the_stack_stops_when_the_last_trial_dies(setting: Setting, steps_taken: list[tuple[int, int]]) -> None:
    later, at_once = trained(trial(setting, lr=1e6), trial(setting, init_scale=1e30))
    assert at_once.diverged_step == 0 < (later.diverged_step or 0)
    assert [step for step, _ in steps_taken] == list(range((later.diverged_step or 0) + 1))


WATCHED_STEPS, TRIALS = 7, 3
WATCHED = replace(SETTING, steps=WATCHED_STEPS, decay="linear")
LOSSES = st.floats(0, 1e3, width=32) | st.sampled_from((math.nan, math.inf, -math.inf, 1e38))


def ended(losses: list[float]) -> int:
    """Return the first bad step, or WATCHED_STEPS."""
    limit = BLOW_UP * max(losses[0], math.log(WATCHED.vocab_size))
    return next((at for at, loss in enumerate(losses) if not (math.isfinite(loss) and loss <= limit)), WATCHED_STEPS)


def watched(rows: list[list[float]], monitor: DivergenceMonitor | None = None) -> DivergenceMonitor:
    """Return a monitor that has recorded one row of losses per step, each of two tokens."""
    monitor = monitor or DivergenceMonitor(WATCHED, torch.ones(len(rows[0]), dtype=torch.bool))
    for row in rows:
        monitor.record(torch.tensor(row).unsqueeze(1).expand(-1, 2))
        monitor.advance()
    return monitor


@given(st.lists(st.lists(LOSSES, min_size=TRIALS, max_size=TRIALS), min_size=WATCHED_STEPS, max_size=WATCHED_STEPS))
def test_a_trial_ends_at_its_first_bad_loss(rows: list[list[float]]) -> None:
    for num_steps in (1, 3, WATCHED_STEPS):
        monitor = watched(rows[:num_steps])
        means = [watched(rows).losses[:, k].tolist() for k in range(TRIALS)]
        ends = [ended(mean[:num_steps] + [0.0] * (WATCHED_STEPS - num_steps)) for mean in means]
        assert monitor.ended.tolist() == ends
        assert monitor.alive.tolist() == [end == WATCHED_STEPS for end in ends]
        assert monitor.losses[num_steps:].isnan().all()


def test_a_trial_that_ended_stays_so_and_the_factor_is_the_schedules() -> None:
    monitor = watched([[1.0, 1.0], [math.nan, 1.0], [1.0, 1.0], [math.inf, 1.0]])
    assert monitor.ended.tolist() == [1, WATCHED_STEPS]
    assert monitor.alive.tolist() == [False, True]
    monitor = DivergenceMonitor(WATCHED, torch.ones(1, dtype=torch.bool))
    for step in range(WATCHED_STEPS):
        assert monitor.factor().tolist() == [lr_factor(WATCHED, step)]
        monitor.advance()
    monitor.reset()
    assert monitor.factor().tolist() == [lr_factor(WATCHED, 0)]


def test_a_monitor_that_starts_again_forgets_everything_and_one_that_goes_on_keeps_its_limits() -> None:
    alive = torch.ones(2, dtype=torch.bool)
    monitor = watched([[50.0, 1.0], [60.0, math.nan]], DivergenceMonitor(WATCHED, alive))
    assert alive.tolist() == [True, False]
    monitor.reset()
    assert alive.tolist() == [True, True]
    again = watched([[1.0, 1.0], [60.0, 1.0]], monitor)  # beside a first loss of 1 it is a blow-up
    assert again.ended.tolist() == [1, WATCHED_STEPS]
    rows = [[50.0, 1.0, 1.0], [60.0, math.nan, 2.0]]
    before, smaller = watched(rows), DivergenceMonitor(WATCHED, torch.ones(2, dtype=torch.bool))
    smaller.resume(before, [0, 2])
    watched([[70.0, 60.0]], smaller)
    assert smaller.ended.tolist() == [WATCHED_STEPS, 2]
    assert smaller.losses[2].tolist() == [70.0, 60.0]
    assert smaller.losses[:2].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_is_each_trials_own(dtype: torch.dtype) -> None:
    losses: Tensor = torch.rand(5, 96, generator=torch.Generator().manual_seed(0))
    together = mean_losses(losses, dtype=dtype)
    assert together.dtype == dtype
    for k in range(5):
        assert torch.equal(mean_losses(losses[k : k + 1].clone(), dtype=dtype), together[k : k + 1])
