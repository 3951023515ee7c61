"""The benchmarks' trials: they train, on random tokens, and a dense twin costs what its model costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench_cases import TINY

from hpxfer.bench.cases import Case, stacks, trials
from hpxfer.bench.sweep import CPU_CASE, CUDA_CASE
from hpxfer.bench.trainer_cuda import LARGE, SMALL
from hpxfer.data import open_data
from hpxfer.model.cost import count_params, flops_per_token


def test_trials_differ_in_seed_and_lr_and_stack(tmp_path: Path) -> None:
    members = trials(TINY, 5, tmp_path)
    assert len({trial.id for trial in members}) == len({trial.seed for trial in members}) == 5
    assert len({trial.hps.lr for trial in members}) == 5
    assert len({(trial.shape, trial.setting) for trial in members}) == 1
    assert [len(stack.trials) for stack in stacks(members, 2)] == [2, 2, 1]


def test_the_data_is_random_and_holds_the_run(tmp_path: Path) -> None:
    (member,) = trials(TINY, 1, tmp_path)
    data = open_data(member.setting)
    ids, targets = data.train_batch(0, TINY.steps - 1)
    assert ids.shape == targets.shape == (TINY.batch_tokens // TINY.context, TINY.context)
    counts = np.bincount(np.concatenate([data.train_batch(0, step)[0].ravel() for step in range(TINY.steps)]))
    assert len(counts) == TINY.vocab_size
    assert counts.max() < 30  # 384 tokens over 48 ids


@pytest.mark.parametrize("case", [CPU_CASE, CUDA_CASE, LARGE, SMALL])
def test_a_dense_twin_has_equal_active_flops(case: Case, tmp_path: Path) -> None:
    few = replace(case, steps=1, batch_tokens=case.context)
    moe, twin = (trials(case, 1, tmp_path)[0] for case in (few, replace(few, dense=True)))
    assert not twin.shape.num_experts
    router = 6 * case.depth * case.width * case.num_experts
    assert flops_per_token(moe.shape, moe.setting) - router == flops_per_token(twin.shape, twin.setting)


def test_the_large_case_has_about_two_billion_parameters(tmp_path: Path) -> None:
    (member,) = trials(replace(LARGE, steps=1, batch_tokens=LARGE.context), 1, tmp_path)
    assert 2.0e9 < count_params(member.shape, member.setting).total < 2.2e9
