"""The batch loader: each trial gets its own batches and router noise, in whichever chunk they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_trials import JOINT, trial

from hpxfer.data import open_data
from hpxfer.data.batches import TokenData
from hpxfer.model.draws import NOISE_STEPS, router_noise
from hpxfer.scaling.evaluate import parameterization
from hpxfer.train.batch_loader import CHUNK_STEPS, BatchLoader
from hpxfer.trial import Setting, Trial

CPU = torch.device("cpu")
STEPS = 2 * CHUNK_STEPS + 5
SEEDS = (3, 0, 3, 7)


def fed(trials: list[Trial]) -> tuple[BatchLoader, TokenData]:
    data = open_data(trials[0].setting)
    return BatchLoader(data, trials, CPU, (0, 2)), data


@pytest.mark.parametrize("order", ["forward", "backward"])
def test_every_trial_reads_its_own_seeds_batches(setting: Setting, order: str) -> None:
    feed, data = fed([trial(replace(setting, steps=STEPS), seed=seed) for seed in SEEDS])
    for step in range(STEPS) if order == "forward" else reversed(range(STEPS)):
        inputs, targets = feed.batch(step)
        for k, seed in enumerate(SEEDS):
            for mine, own in zip((inputs[k], targets[k]), data.train_batch(seed, step), strict=True):
                assert np.array_equal(mine.numpy(), own), (step, k)


def test_a_seed_is_drawn_once_a_chunk(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, int, int]] = []
    plain = TokenData.train_batches

    def counted(self: TokenData, seed: int, first_step: int, num_steps: int) -> object:
        drawn.append((seed, first_step, num_steps))
        return plain(self, seed, first_step, num_steps)

    feed, _ = fed([trial(replace(setting, steps=STEPS), seed=seed) for seed in SEEDS])
    monkeypatch.setattr(TokenData, "train_batches", counted)
    for step in range(STEPS):
        feed.batch(step)
    firsts = ((0, CHUNK_STEPS), (CHUNK_STEPS, CHUNK_STEPS), (2 * CHUNK_STEPS, 5))  # none beyond the run
    assert drawn == [(seed, *first) for first in firsts for seed in (0, 3, 7)]


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


def test_no_schedule_no_noise(setting: Setting) -> None:
    feed, _ = fed([trial(setting)])
    assert not feed.has_noise
    assert feed.noise(0) is None
