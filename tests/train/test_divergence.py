"""Divergence is a result: how it is detected, what is recorded, and when a stack stops."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tiny_trials import JOINT, numbers, trained, trial

from hpxfer.scaling.evaluate import parameterization
from hpxfer.train import monitor, trainer
from hpxfer.train.compaction import fits_memory, saves_time
from hpxfer.train.device import CPU
from hpxfer.train.monitor import BLOW_UP
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


def test_nan_from_the_first_step(setting: Setting, steps_taken: list[tuple[int, int]]) -> None:
    (result,) = trained(trial(setting, init_scale=1e30))
    assert_diverged(result, 0)
    assert result.curves == ()
    assert steps_taken == [(0, 1)]
    assert result.tokens_per_s is not None
    assert result.tokens_per_s > 0


def test_an_infinite_first_loss(setting: Setting) -> None:
    # Finite logits and losses whose mean is beyond float32.
    hps = {"multipliers": (("readout.init_mult", 5e37),)}
    (result,) = trained(trial(setting, **hps))
    assert_diverged(result, 0)


def test_a_blow_up_later(setting: Setting) -> None:
    tested = trial(setting, lr=1e6)
    (result,) = trained(tested)
    assert result.diverged_step is not None
    assert 0 < result.diverged_step < setting.steps
    assert_diverged(result, result.diverged_step)
    bound = BLOW_UP * max(train_losses(result)[0], math.log(setting.vocab_size))
    assert all(loss <= bound for loss in train_losses(result))


def test_a_blow_up_at_the_last_step_is_seen_by_validation(setting: Setting) -> None:
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


@pytest.mark.usefixtures("compacting")
def test_diverged_trials_leave_and_the_stack_goes_on_while_one_lives(
    setting: Setting, steps_taken: list[tuple[int, int]]
) -> None:
    results = trained(trial(setting, init_scale=1e30), trial(setting), trial(setting, lr=1e6))
    assert [result.status for result in results] == ["diverged", "finished", "diverged"]
    later = results[2].diverged_step
    assert later is not None
    sizes = [3] + [2] * later + [1] * (setting.steps - 1 - later)
    assert steps_taken == list(enumerate(sizes))


def test_a_stack_that_would_not_gain_keeps_its_size(
    setting: Setting, steps_taken: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "saves_time", lambda *_: False)
    trained(trial(setting, init_scale=1e30), trial(setting), trial(setting, lr=1e6))
    assert steps_taken == [(step, 3) for step in range(setting.steps)]


LONGER = {"steps": 24, "final_window_steps": 4}
# They diverge at different steps, or never.
RATES = (2.0**-6, 1e6, 2.0**-7, 40.0, 2.0**-5, 4.0)


@pytest.mark.first
@pytest.mark.usefixtures("compacting")
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("schedule", [None, 1.0])
def test_who_leaves_changes_no_bit_of_who_stays(setting: Setting, optimizer: str, schedule: float | None) -> None:
    """Compares each trial of a stack with diverging trials to the trial alone. Router noise and seeds differ."""
    longer = replace(setting, optimizer=optimizer, **LONGER)
    table = parameterization("mup-moe", {"router_bias_std": schedule} if schedule else None)
    stack = [replace(trial(longer, JOINT, lr=rate, seed=k % 2), parameterization=table) for k, rate in enumerate(RATES)]
    stack.insert(2, replace(trial(longer, JOINT, seed=5, init_scale=1e30), parameterization=table))
    together = trained(*stack)
    ends = {item.diverged_step for item in together}
    assert None in ends
    assert 0 in ends
    assert len(ends) > 2
    for item, result in zip(stack, together, strict=True):
        assert numbers(trained(item)[0]) == numbers(result)


@pytest.mark.usefixtures("compacting")
@pytest.mark.parametrize("looks", [1, 2, 5, 100])
def test_how_often_the_host_looks_changes_no_number(
    setting: Setting, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = replace(setting, **LONGER)
    stack = [trial(longer, lr=rate) for rate in RATES]
    each = trained(*stack)
    monkeypatch.setattr(trainer, "setup_for", lambda *_: replace(CPU, steps_per_read=looks))
    for item, other in zip(trained(*stack), each, strict=True):
        assert numbers(item) == numbers(other)


def test_a_smaller_stack_must_save_more_than_it_costs() -> None:
    assert saves_time(0.5, 3.0, 1.0, CPU)
    assert not saves_time(0.5, 1.0, 1.0, CPU)
    assert not saves_time(0.5, 3.0, 1.0, replace(CPU, captured=True))  # the next stack captures again, too
    assert fits_memory(0.5, CPU)


def test_the_stack_stops_when_the_last_trial_dies(setting: Setting, steps_taken: list[tuple[int, int]]) -> None:
    later, at_once = trained(trial(setting, lr=1e6), trial(setting, init_scale=1e30))
    assert at_once.diverged_step == 0
    assert later.diverged_step is not None
    assert later.diverged_step > 0
    assert [step for step, _ in steps_taken] == list(range(later.diverged_step + 1))


def test_divergence_is_the_same_in_every_stack(setting: Setting) -> None:
    tested = trial(setting, JOINT, "completep-moe", lr=1e6)
    (alone,) = trained(tested)
    assert numbers(trained(trial(setting, JOINT), tested)[1]) == numbers(alone)
