"""How trials are packed into stacks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_trials import BASE, JOINT, SETTING, trial

from hpxfer.model.cost import train_flops
from hpxfer.plan.footprint import stack_bytes
from hpxfer.plan.packing import (
    CPU,
    CPU_STEP_TOKENS,
    CUDA_BYTES,
    GPU_SHARE,
    GPU_STACK_BYTES,
    GPU_STEP_TOKENS,
    MIN_CUT,
    SHARES,
    Device,
    Measured,
    gpu_share,
    memory_fraction,
    pack,
    stack_flops,
    stack_size,
    stack_sizes,
)
from hpxfer.plan.ways import How
from hpxfer.trial import Trial
from hpxfer.trial.stack import Stack

SHAPES = (BASE, JOINT, replace(BASE, depth=3))
SETTINGS = (SETTING, replace(SETTING, batch_tokens=1024), replace(SETTING, steps=7))
TRIALS = st.lists(
    st.builds(trial, st.sampled_from(SETTINGS), st.sampled_from(SHAPES), st.sampled_from(("sp", "completep-moe"))),
    max_size=40,
).map(lambda found: [replace(stack, seed=seed) for seed, stack in enumerate(found)])


@given(TRIALS, st.booleans(), st.none() | st.integers(1, 9), st.integers(1, 5))
def test_packing_is_a_partition_into_even_stacks(
    trials: list[Trial], cuda: bool, asked: int | None, workers: int
) -> None:
    device = Device(cuda=cuda)
    stacks = list(pack(trials, device, asked=asked, workers=workers))
    assert Counter(trial for stack in stacks for trial in stack.trials) == Counter(trials)
    groups: dict[object, list[int]] = {}
    for stack in stacks:
        assert {(trial.shape, trial.setting) for trial in stack.trials} == {(stack.shape, stack.setting)}
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
        size = stack_size(large, setting, device)
        fits, over = (stack_bytes(large, setting, number, cuda=True) for number in (size, size + 1))
        assert fits <= room < over
        assert 1 < size < GPU_STEP_TOKENS // 32


def test_what_was_measured_counts() -> None:
    device, few = Device(cuda=True), replace(SETTING, batch_tokens=64)
    assert stack_size(BASE, few, device) == GPU_STEP_TOKENS // 64
    assert stack_size(BASE, few, device, measured=Measured(trial_s=1.0)) == GPU_STEP_TOKENS // 64
    large = Measured(trial_bytes=GPU_STACK_BYTES / 5)
    assert stack_size(BASE, few, device, measured=large, how=How(recompute="none")) == 5
    deep, many = replace(BASE, depth=16), replace(few, batch_tokens=4096)
    assert 5 < stack_size(deep, many, device, measured=large) <= 16  # of blocks that are computed again
    # A stack that had to be halved is not tried again.
    assert stack_size(BASE, few, device, measured=Measured(trial_bytes=1.0, most=3)) == 3
    assert stack_size(BASE, few, device, asked=9, measured=Measured(most=3)) == 9
    trials = [trial(few, seed=seed) for seed in range(7)]
    assert [len(stack.trials) for stack in pack(trials, device, measured={BASE: Measured(most=4)})] == [3, 4]


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
    assert stack_flops(stack) == 2 * train_flops(BASE, SETTING)


GPUS = st.integers(2**32, 2**38).map(lambda memory: Device(cuda=True, memory_bytes=memory))
WIDE = replace(BASE, width=1024, depth=12, expert_width=4096)
STACKS = st.builds(
    lambda shape, tokens, size: Stack(
        trials=tuple(trial(replace(SETTING, batch_tokens=tokens), shape, seed=k) for k in range(size))
    ),
    st.sampled_from((*SHAPES, WIDE)),
    st.sampled_from((32, 1024, 16384, 10**6)),
    st.integers(1, 40),
)


@given(st.lists(STACKS, min_size=1, max_size=12), GPUS)
def test_stacks_whose_shares_make_a_gpu_fit_on_it(stacks: list[Stack], device: Device) -> None:
    """Whatever the planner makes of trials: on a GPU together, none finds less memory than the model says it needs."""
    assert device.memory_bytes is not None
    free, need, tokens, number = 1.0, 0.0, 0, 0
    for stack in [stack for whole in stacks for stack in pack(whole.trials, device)] * len(SHARES) * 2:
        share, size = gpu_share(stack, device), len(stack.trials)
        assert share in SHARES
        mine = stack_bytes(stack.shape, stack.setting, size, cuda=True)
        if share > free or (size == 1 and mine > device.room()):
            continue  # no place is left; or a single trial that is too large for any place, which the plan says
        assert mine <= memory_fraction(share) * device.memory_bytes
        free, need, tokens, number = free - share, need + mine, tokens + size * stack.setting.batch_tokens, number + 1
    if number > 1:
        assert need + number * CUDA_BYTES <= device.memory_bytes
        assert tokens <= GPU_STEP_TOKENS
    assert need <= GPU_SHARE * device.memory_bytes


@pytest.mark.parametrize(("size", "share"), [(1, 1 / 8), (8, 1 / 8), (9, 1 / 4), (16, 1 / 4), (32, 1 / 2), (33, 1.0)])
def test_a_share_is_the_smallest_that_covers_the_tokens(size: int, share: float) -> None:
    setting = replace(SETTING, batch_tokens=GPU_STEP_TOKENS // 64)
    stack = Stack(trials=tuple(trial(setting, seed=k) for k in range(size)))
    assert gpu_share(stack, Device(cuda=True, memory_bytes=2**37)) == share


def test_a_share_covers_what_was_measured_of_memory_and_cuda_itself() -> None:
    device, stack = Device(cuda=True, memory_bytes=2**37), Stack(trials=(trial(SETTING),))
    assert gpu_share(stack, device) == 1 / 8
    assert gpu_share(stack, device, measured=Measured(trial_bytes=0.4 * GPU_SHARE * 2**37)) == 1 / 2
    assert gpu_share(stack, device, measured=Measured(trial_bytes=2.0**40)) == 1.0
    # Eight processes on a small GPU would leave no room for CUDA in each.
    assert gpu_share(stack, Device(cuda=True, memory_bytes=2**33)) == 1 / 2


@given(STACKS, st.integers(1, 200), GPUS, st.sampled_from(SHARES))
def test_a_stack_that_was_asked_for_is_cut_to_what_fits(stack: Stack, asked: int, device: Device, share: float) -> None:
    size = stack_size(stack.shape, stack.setting, device, asked=asked, share=share, how=How(recompute="none"))
    fits, over = (stack_bytes(stack.shape, stack.setting, number, cuda=True) for number in (size, size + 1))
    assert 1 <= size <= asked
    assert size == 1 or fits <= device.room(share)
    assert size == asked or over > device.room(share)


def test_the_planner_fills_the_share_that_was_asked_for() -> None:
    few = replace(SETTING, batch_tokens=64)
    for share in SHARES:
        assert (
            stack_size(BASE, few, Device(cuda=True, memory_bytes=2**37), share=share) == share * GPU_STEP_TOKENS // 64
        )
