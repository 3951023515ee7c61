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
    CPU,
    CPU_STEP_TOKENS,
    GPU_SHARE,
    GPU_STACK_BYTES,
    GPU_STEP_TOKENS,
    MIN_CUT,
    STATE_BYTES_PER_PARAM,
    Device,
    Measured,
    Stack,
    pack,
    stack_size,
    stack_sizes,
    trial_bytes,
)
from hpxfer.trial import Trial

SHAPES = (BASE, JOINT, replace(BASE, depth=3))
SETTINGS = (SETTING, replace(SETTING, batch_tokens=1024), replace(SETTING, steps=7))
TRIALS = st.lists(
    st.builds(trial, st.sampled_from(SETTINGS), st.sampled_from(SHAPES), st.sampled_from(("sp", "completep-moe"))),
    max_size=40,
).map(lambda found: [replace(one, seed=seed) for seed, one in enumerate(found)])


@given(TRIALS, st.booleans(), st.none() | st.integers(1, 9), st.integers(1, 5))
def test_packing_is_a_partition_into_even_stacks(
    trials: list[Trial], cuda: bool, asked: int | None, workers: int
) -> None:
    device = Device(cuda=cuda)
    stacks = list(pack(trials, device, asked=asked, workers=workers))
    assert Counter(one for stack in stacks for one in stack.trials) == Counter(trials)
    groups: dict[object, list[int]] = {}
    for stack in stacks:
        assert {(one.shape, one.setting) for one in stack.trials} == {(stack.shape, stack.setting)}
        groups.setdefault((stack.shape, stack.setting), []).append(len(stack.trials))
    counts = {group: sum(sizes) for group, sizes in groups.items()}
    mosts = stack_sizes(counts, device, asked=asked, workers=workers)  # type: ignore[arg-type]
    for group, sizes in groups.items():
        most = mosts[group]  # type: ignore[index]
        assert most <= stack_size(*group, device, asked=asked)  # type: ignore[misc]
        assert max(sizes) <= most
        assert max(sizes) - min(sizes) <= 1
        assert len(sizes) == -(-sum(sizes) // most)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch_tokens", [32, 512, 10**6])
def test_size_fills_a_step_and_never_less_than_one_trial(shape: object, batch_tokens: int) -> None:
    setting = replace(SETTING, batch_tokens=batch_tokens)
    for device, tokens in ((CPU, CPU_STEP_TOKENS), (Device(cuda=True), GPU_STEP_TOKENS)):
        assert stack_size(BASE, setting, device) == max(1, tokens // batch_tokens)


def test_size_is_bounded_by_memory() -> None:
    large = replace(BASE, width=512, depth=8, expert_width=512)
    setting = replace(SETTING, batch_tokens=32)
    for device in (Device(cuda=True), Device(cuda=True, memory_bytes=2**34)):
        room = GPU_SHARE * 2**34 if device.memory_bytes else GPU_STACK_BYTES
        size, each = stack_size(large, setting, device), trial_bytes(large, setting)
        assert size * each <= room < (size + 1) * each
        assert 1 < size < GPU_STEP_TOKENS // 32


def test_a_trial_needs_its_state_and_its_tokens_activations() -> None:
    state = STATE_BYTES_PER_PARAM * count_params(BASE, SETTING).total
    one, two = (trial_bytes(BASE, replace(SETTING, batch_tokens=tokens)) - state for tokens in (512, 1024))
    assert two == 2 * one > 0
    rounded = trial_bytes(BASE, replace(SETTING, batch_tokens=512, precision="bfloat16")) - state
    assert rounded == one // 2 + 2 * count_params(BASE, SETTING).total


def test_what_was_measured_counts() -> None:
    device, few = Device(cuda=True), replace(SETTING, batch_tokens=64)
    assert stack_size(BASE, few, device) == GPU_STEP_TOKENS // 64
    assert stack_size(BASE, few, device, measured=Measured(trial_s=1.0)) == GPU_STEP_TOKENS // 64
    assert stack_size(BASE, few, device, measured=Measured(trial_bytes=GPU_STACK_BYTES / 5)) == 5
    # A stack that had to be halved is not tried again.
    assert stack_size(BASE, few, device, measured=Measured(trial_bytes=1.0, most=3)) == 3
    assert stack_size(BASE, few, device, asked=9, measured=Measured(most=3)) == 9
    trials = [trial(few, seed=seed) for seed in range(7)]
    assert [len(one.trials) for one in pack(trials, device, measured={BASE: Measured(most=4)})] == [3, 4]


def test_workers_share_what_there_is() -> None:
    """One stack of all would leave a worker idle; the longest is half of a worker's share, but no stack is tiny."""
    few = replace(SETTING, batch_tokens=32)
    group = (BASE, few)
    assert stack_sizes({group: 40}) == {group: CPU_STEP_TOKENS // 32}
    assert stack_sizes({group: 40}, workers=2) == {group: 10}
    assert stack_sizes({group: 40}, workers=2, asked=33) == {group: 33}
    assert stack_sizes({group: 40}, workers=64) == {group: MIN_CUT}
    wide = (JOINT, few)
    sizes = stack_sizes({group: 40, wide: 40}, workers=2)
    assert sizes[wide] < sizes[group]
    assert train_flops(*group) * sizes[group] == pytest.approx(train_flops(*wide) * sizes[wide], rel=0.2)


def test_what_was_asked_is_given() -> None:
    assert stack_size(BASE, SETTING, asked=3) == 3


def test_flops_are_those_of_all_trials() -> None:
    stack = Stack(trials=(trial(SETTING), trial(SETTING, seed=1)))
    assert stack.flops == 2 * train_flops(BASE, SETTING)
