"""How trials are packed into stacks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_trials import BASE, JOINT, SETTING, trial

from hpxfer.model.cost import count_params, train_flops
from hpxfer.stack import (
    CPU_STEP_TOKENS,
    GPU_STEP_TOKENS,
    STACK_STATE_BYTES,
    STATE_BYTES_PER_PARAM,
    Stack,
    pack,
    stack_size,
)
from hpxfer.trial import Trial

SHAPES = (BASE, JOINT, replace(BASE, depth=3))
SETTINGS = (SETTING, replace(SETTING, batch_tokens=1024), replace(SETTING, steps=7))
TRIALS = st.lists(
    st.builds(trial, st.sampled_from(SETTINGS), st.sampled_from(SHAPES), st.sampled_from(("sp", "completep-moe"))),
    max_size=40,
).map(lambda found: [replace(one, seed=seed) for seed, one in enumerate(found)])


@given(TRIALS, st.booleans(), st.none() | st.integers(1, 9))
def test_packing_is_a_partition_into_even_stacks(trials: list[Trial], cuda: bool, asked: int | None) -> None:
    stacks = list(pack(trials, cuda=cuda, asked=asked))
    assert Counter(one for stack in stacks for one in stack.trials) == Counter(trials)
    groups: dict[object, list[int]] = {}
    for stack in stacks:
        assert {(one.shape, one.setting) for one in stack.trials} == {(stack.shape, stack.setting)}
        groups.setdefault((stack.shape, stack.setting), []).append(len(stack.trials))
    for (shape, setting), sizes in groups.items():  # type: ignore[misc]
        most = stack_size(shape, setting, cuda=cuda, asked=asked)
        assert max(sizes) <= most
        assert max(sizes) - min(sizes) <= 1
        assert len(sizes) == -(-sum(sizes) // most)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch_tokens", [32, 512, 10**6])
def test_size_fills_a_step_and_never_less_than_one_trial(shape: object, batch_tokens: int) -> None:
    setting = replace(SETTING, batch_tokens=batch_tokens)
    for cuda, tokens in ((False, CPU_STEP_TOKENS), (True, GPU_STEP_TOKENS)):
        assert stack_size(BASE, setting, cuda=cuda) == max(1, tokens // batch_tokens)


def test_size_is_bounded_by_memory() -> None:
    large = replace(BASE, width=512, depth=8, expert_width=512)
    setting = replace(SETTING, batch_tokens=32)
    size = stack_size(large, setting, cuda=True)
    state = STATE_BYTES_PER_PARAM * count_params(large, setting).total
    assert size * state <= STACK_STATE_BYTES < (size + 1) * state
    assert 1 < size < GPU_STEP_TOKENS // 32


def test_what_was_asked_is_given() -> None:
    assert stack_size(BASE, SETTING, cuda=False, asked=3) == 3


def test_flops_are_those_of_all_trials() -> None:
    stack = Stack(trials=(trial(SETTING), trial(SETTING, seed=1)))
    assert stack.flops == 2 * train_flops(BASE, SETTING)
