"""What a step takes and leaves: batches, the LR schedule, logged steps, their curves, and sums of squares."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_trials import BASE, JOINT, SETTING, trial
from tolerances import assert_near

from hpxfer.data import open_data
from hpxfer.data.batches import TokenData
from hpxfer.model.draws import NOISE_STEPS, draw, router_noise
from hpxfer.model.flat import FlatLayout, Weights
from hpxfer.model.gpt.layout import gpt_parameters
from hpxfer.scaling.evaluate import parameterization
from hpxfer.train.batch_loader import CHUNK_STEPS, BatchLoader
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
from hpxfer.train.optimizer import sums_of_squares
from hpxfer.train.schedules import lr_factor
from hpxfer.trial import Setting, Trial
from hpxfer.trial.result import Curve

CPU = torch.device("cpu")
LONG = 2 * CHUNK_STEPS + 5
SEEDS = (3, 0, 3, 7)


def fed(trials: list[Trial]) -> tuple[BatchLoader, TokenData]:
    data = open_data(trials[0].setting)
    return BatchLoader(data, trials, CPU, (0, 2)), data


def test_every_trial_reads_its_own_seeds_batches(setting: Setting) -> None:
    feed, data = fed([trial(replace(setting, steps=LONG), seed=seed) for seed in SEEDS])
    for step in (*range(LONG), *reversed(range(0, LONG, 7))):
        inputs, targets = feed.batch(step)
        for k, seed in enumerate(SEEDS):
            for mine, own in zip((inputs[k], targets[k]), data.train_batch(seed, step), strict=True):
                assert np.array_equal(mine.numpy(), own), (step, k)


def test_a_seed_is_drawn_once_a_chunk_and_its_noise_not_without_a_schedule(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, int, int]] = []
    plain = TokenData.train_batches

    def counted(self: TokenData, seed: int, first_step: int, num_steps: int) -> object:
        drawn.append((seed, first_step, num_steps))
        return plain(self, seed, first_step, num_steps)

    feed, _ = fed([trial(replace(setting, steps=LONG), seed=seed) for seed in SEEDS])
    monkeypatch.setattr(TokenData, "train_batches", counted)
    for step in range(LONG):
        feed.batch(step)
    firsts = ((0, CHUNK_STEPS), (CHUNK_STEPS, CHUNK_STEPS), (2 * CHUNK_STEPS, 5))  # none beyond the run
    assert drawn == [(seed, *first) for first in firsts for seed in (0, 3, 7)]
    feed, _ = fed([trial(setting)])
    assert not feed.has_noise
    assert feed.noise(0) is None


def test_noise_is_the_seeds_draw_times_the_trials_std(setting: Setting) -> None:
    stds = (1.0, 0.0, 0.25, 2.0)
    trials = [
        replace(trial(setting, JOINT, seed=seed), parameterization=parameterization("mup-moe", {"router_bias_std": s}))
        for seed, s in zip(SEEDS, stds, strict=True)
    ]
    feed, _ = fed(trials)
    assert feed.has_noise
    for step in (0, NOISE_STEPS - 1, NOISE_STEPS, 1):
        found = feed.noise(step)
        assert found is not None
        assert found.shape == (2, len(SEEDS), JOINT.num_experts)
        for k, (seed, std) in enumerate(zip(SEEDS, stds, strict=True)):
            own = router_noise([seed], (0, 2), JOINT.num_experts, step // NOISE_STEPS)[step % NOISE_STEPS, :, 0]
            assert torch.equal(found[:, k], std * own)


def factors(decay: str, steps: int, *, warmup: int = 0, decay_steps: int = 0, final: float = 0.0) -> list[float]:
    setting = replace(
        SETTING, decay=decay, steps=steps, warmup_steps=warmup, decay_steps=decay_steps, final_fraction=final
    )
    return [lr_factor(setting, step) for step in range(steps)]


def test_factors_by_hand() -> None:
    assert factors("constant", 6, warmup=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert factors("constant", 3) == [1.0, 1.0, 1.0]
    assert factors("linear", 6, warmup=2, final=0.5) == [0.5, 1.0, 0.875, 0.75, 0.625, 0.5]
    assert factors("wsd", 8, warmup=2, decay_steps=4) == [0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    thirds = [0.5 * (1 + math.cos(math.pi * k / 3)) for k in (1, 2, 3)]
    assert factors("cosine", 4, warmup=1, final=0.25) == [1.0, *(0.25 + 0.75 * third for third in thirds)]


@st.composite
def schedules(draw: st.DrawFn) -> Setting:
    steps = draw(st.integers(2, 60))
    decay_steps = draw(st.integers(1, steps))
    return replace(
        SETTING,
        decay=draw(st.sampled_from(("constant", "cosine", "linear", "wsd"))),
        steps=steps,
        warmup_steps=draw(st.integers(0, steps - decay_steps)),
        decay_steps=decay_steps,
        final_fraction=draw(st.sampled_from((0.0, 0.1, 1.0))),
    )


@given(schedules())
def test_rises_then_falls_to_the_final_fraction(setting: Setting) -> None:
    found = [lr_factor(setting, step) for step in range(setting.steps)]
    rise, fall = found[: setting.warmup_steps], found[setting.warmup_steps :]
    assert rise == sorted(rise)
    assert fall == sorted(fall, reverse=True)
    assert all(0 <= found_value <= 1 for found_value in found)
    if setting.warmup_steps:
        assert rise[-1] == 1.0
    assert fall[-1] == pytest.approx(1.0 if setting.decay == "constant" else setting.final_fraction)


STEPS = st.integers(1, 100_000)


@given(STEPS)
def test_losses_of_the_beginning_are_all_kept_the_rest_is_thinned_and_both_ends_are_measured(steps: int) -> None:
    found = loss_steps(steps)
    head = min(steps, LOSS_HEAD)
    assert found[:head] == tuple(range(head))
    assert len(found) - head <= LOSS_POINTS
    assert found == tuple(sorted(set(found)))
    assert found[-1] == steps - 1

    for logged, most in ((balance_steps(steps), BALANCE_POINTS), (probe_steps(steps), PROBE_POINTS + 1)):
        assert len(logged) <= most
        assert {0, steps - 1} <= logged <= set(range(steps))


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


@pytest.mark.parametrize(("first", "stop"), [(0, 500), (0, 1), (0, 150), (99, 100), (120, 300), (499, 500)])
def test_loss_curve_has_the_logged_steps_from_the_first_and_before_the_last(first: int, stop: int) -> None:
    curve = loss_curve(np.arange(500.0), stop, first)
    assert curve is not None
    assert curve.metric == "train_loss_nats"
    assert curve.steps == tuple(step for step in loss_steps(500) if first <= step < stop)
    assert curve.values == tuple(map(float, curve.steps))
    assert 101 not in loss_steps(500)
    assert loss_curve(np.arange(500.0), 102, 101) is loss_curve(np.arange(500.0), 0, first) is None


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


SMALL = replace(SETTING, norm_gains=True, biases=True)
STDS = {role: values.init_std for role, values in trial(SMALL).resolved().items()}


def drawn(*seeds: int) -> Weights:
    layout = FlatLayout(parameters=gpt_parameters(BASE, SMALL), num_trials=len(seeds))
    return layout.weights(draw(layout, seeds, [STDS] * len(seeds)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_squares_do_not_depend_on_the_stack(dtype: torch.dtype) -> None:
    weights, alone = drawn(0, 1, 2), sums_of_squares(drawn(1), dtype)
    for name, got in sums_of_squares(weights, dtype).items():
        own, exact = (
            torch.stack(weights[name]).to(to).square().flatten(2).sum((0, 2)) for to in (dtype, torch.float64)
        )
        assert_near(got, own, exact, name)
        assert got[1] == alone[name][0]
