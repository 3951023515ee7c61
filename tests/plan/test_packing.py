"""How trials are packed into stacks, in which order these run, and how a batch is computed so that they fit."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from tiny import write_tiny
from tiny_trials import BASE, JOINT, SETTING, trial

from hpxfer.driver.prepared import prepare
from hpxfer.model.cost import train_flops
from hpxfer.plan.footprint import ONE, Way, stack_bytes
from hpxfer.plan.make import make_plan
from hpxfer.plan.packing import (
    CPU,
    CPU_STEP_TOKENS,
    CUDA_BYTES,
    GPU_SHARE,
    GPU_STACK_BYTES,
    GPU_STEP_TOKENS,
    LONGER,
    MIN_CUT,
    SHARES,
    Device,
    Measured,
    Packer,
    gpu_share,
    memory_fraction,
    nearest_first,
    stack_flops,
)
from hpxfer.plan.text import plan_text
from hpxfer.scaling.shape import Shape
from hpxfer.spec.model_section import Balance
from hpxfer.trial import Expansion, Setting, Trial
from hpxfer.trial.stack import Stack

SHAPES = (BASE, JOINT, replace(BASE, depth=3))
SETTINGS = (SETTING, replace(SETTING, batch_tokens=1024), replace(SETTING, steps=7))
TRIALS = st.lists(
    st.builds(trial, st.sampled_from(SETTINGS), st.sampled_from(SHAPES), st.sampled_from(("sp", "completep-moe"))),
    max_size=40,
).map(lambda found: [replace(stack, seed=seed) for seed, stack in enumerate(found)])


@given(TRIALS, st.booleans(), st.none() | st.integers(1, 9), st.integers(1, 5))
def test_packing_makes_even_stacks(trials: list[Trial], cuda: bool, asked: int | None, workers: int) -> None:
    device = Device(cuda=cuda)
    stacks = list(Packer(device=device, asked=asked, workers=workers).pack(trials))
    assert Counter(trial for stack in stacks for trial in stack.trials) == Counter(trials)
    groups: dict[object, list[int]] = {}
    for stack in stacks:
        assert {(trial.shape, trial.setting) for trial in stack.trials} == {(stack.shape, stack.setting)}
        groups.setdefault((stack.shape, stack.setting), []).append(len(stack.trials))
    counts = {group: sum(sizes) for group, sizes in groups.items()}
    mosts = Packer(device=device, asked=asked, workers=workers).sizes(counts)  # type: ignore[arg-type]
    for group, sizes in groups.items():
        most = mosts[group]  # type: ignore[index]
        assert most <= Packer(device=device, asked=asked).size(*group)  # type: ignore[misc]
        assert max(sizes) <= most
        assert max(sizes) - min(sizes) <= 1
        assert len(sizes) == -(-sum(sizes) // most)


@pytest.mark.parametrize("batch_tokens", [32, 512, 10**6])
def test_size_fills_a_step_and_never_less_than_one_trial(batch_tokens: int) -> None:
    setting = replace(SETTING, batch_tokens=batch_tokens)
    for device, tokens in ((CPU, CPU_STEP_TOKENS), (Device(cuda=True), GPU_STEP_TOKENS)):
        assert Packer(device=device).size(BASE, setting) == max(1, tokens // batch_tokens)
        assert Packer(device=device, asked=3).size(BASE, setting) == 3
    assert stack_flops(Stack(trials=(trial(SETTING), trial(SETTING, seed=1)))) == 2 * train_flops(BASE, SETTING)


def test_what_was_measured_counts() -> None:
    device, few = Device(cuda=True), replace(SETTING, batch_tokens=64)
    assert Packer(device=device).size(BASE, few) == GPU_STEP_TOKENS // 64
    assert Packer(device=device, measured={BASE: Measured(trial_s=1.0)}).size(BASE, few) == GPU_STEP_TOKENS // 64
    large = Measured(trial_bytes=GPU_STACK_BYTES / 5)
    assert Packer(device=device, measured={BASE: large}, recompute="none").size(BASE, few) == 5
    deep, many = replace(BASE, depth=16), replace(few, batch_tokens=4096)
    assert 5 < Packer(device=device, measured={deep: large}).size(deep, many) <= 16  # of blocks that are computed again
    # A stack that had to be halved is not tried again.
    assert Packer(device=device, measured={BASE: Measured(trial_bytes=1.0, most=3)}).size(BASE, few) == 3
    assert Packer(device=device, asked=9, measured={BASE: Measured(most=3)}).size(BASE, few) == 9
    trials = [trial(few, seed=seed) for seed in range(7)]
    assert [len(stack.trials) for stack in Packer(device=device, measured={BASE: Measured(most=4)}).pack(trials)] == [
        3,
        4,
    ]


def test_workers_share_what_there_is() -> None:
    """One stack of all would leave a worker idle; the longest is half of a worker's share, but no stack is tiny."""
    few = replace(SETTING, batch_tokens=32)
    group = (BASE, few)
    assert Packer().sizes({group: 40}) == {group: CPU_STEP_TOKENS // 32}
    assert Packer(workers=2).sizes({group: 40}) == {group: 10}
    assert Packer(workers=2, asked=33).sizes({group: 40}) == {group: 33}
    assert Packer(workers=64).sizes({group: 40}) == {group: MIN_CUT}
    wide = (JOINT, few)
    sizes = Packer(workers=2).sizes({group: 40, wide: 40})
    assert sizes[wide] < sizes[group]
    assert train_flops(*group) * sizes[group] == pytest.approx(train_flops(*wide) * sizes[wide], rel=0.2)


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


@settings(max_examples=examples(15))
@given(st.lists(STACKS, min_size=1, max_size=12), GPUS)
def test_stacks_whose_shares_make_a_gpu_fit_on_it(stacks: list[Stack], device: Device) -> None:
    """Whatever the planner makes of trials: on a GPU together, none finds less memory than the model says it needs."""
    assert device.memory_bytes is not None
    free, need, tokens, number = 1.0, 0.0, 0, 0
    for stack in [stack for whole in stacks for stack in Packer(device=device).pack(whole.trials)] * len(SHARES) * 2:
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
    size = Packer(device=device, asked=asked, share=share, recompute="none").size(stack.shape, stack.setting)
    fits, over = (stack_bytes(stack.shape, stack.setting, number, cuda=True) for number in (size, size + 1))
    assert 1 <= size <= asked
    assert size == 1 or fits <= device.room(share)
    assert size == asked or over > device.room(share)


def test_the_planner_fills_the_share_that_was_asked_for() -> None:
    few = replace(SETTING, batch_tokens=64)
    device = Device(cuda=True, memory_bytes=2**37)
    for share in SHARES:
        assert Packer(device=device, share=share).size(BASE, few) == share * GPU_STEP_TOKENS // 64


# Distances from the base; a farther shape is deeper, and so costs more.
DEPTHS = [replace(BASE, depth=2 * 4**distance) for distance in range(4)]
DISTANCES = {shape: distance for distance, shape in enumerate(DEPTHS)}


def stacks_of(counts: Sequence[int]) -> list[Stack]:
    """Return as many stacks of one trial as each shape has in `counts`, the largest shapes first."""
    found = [trial(SETTING, shape, "sp") for shape, count in zip(DEPTHS, counts, strict=True) for _ in range(count)]
    return [Stack(trials=(replace(each, id=f"{each.id}-{index}"),)) for index, each in enumerate(found)][::-1]


def ends(stacks: Sequence[Stack], workers: int) -> float:
    busy = [0.0] * workers
    for stack in stacks:
        heapq.heappush(busy, heapq.heappop(busy) + stack_flops(stack))
    return max(busy)


@given(st.lists(st.integers(1, 9), min_size=4, max_size=4), st.integers(1, 6))
def test_the_base_goes_first_and_the_end_is_as_even_as_promised(counts: list[int], workers: int) -> None:
    stacks = stacks_of(counts)
    order = nearest_first(stacks, DISTANCES, workers)
    assert sorted(stack.id for stack in order) == sorted(stack.id for stack in stacks)
    assert [stack.shape for stack in order[: counts[0]]] == [DEPTHS[0]] * counts[0]
    costliest_first = sorted(stacks, key=stack_flops, reverse=True)
    base, others = costliest_first[-counts[0] :], costliest_first[: -counts[0]]
    # The base cannot fill a gap at the end, as it goes first.
    most = max(LONGER * ends(costliest_first, workers), ends([*base, *others], workers))
    assert ends(order, workers) <= most * (1 + 1e-9)


def test_one_worker_takes_the_shapes_by_their_distance() -> None:
    distances = [DISTANCES[stack.shape] for stack in nearest_first(stacks_of([2, 3, 3, 2]), DISTANCES, 1)]
    assert distances == sorted(distances)


GPU_80 = Device(cuda=True, memory_bytes=80 * 2**30, num_gpus=1)
PAPER_BASE = Shape(width=512, depth=8, head_dim=64, num_experts=4, num_active=1, expert_width=512)
PAPER = replace(
    SETTING, context=1024, vocab_size=50304, precision="bfloat16", batch_tokens=2**19, accumulation_tokens=2**14
)


def with_memory(room: float) -> Device:
    return replace(GPU_80, memory_bytes=int(room / GPU_SHARE) + 1)


def need(way: Way, setting: Setting = PAPER, trials: int = 1) -> int:
    return stack_bytes(PAPER_BASE, setting, trials, cuda=True, way=way)


def paper_way(device: Device, setting: Setting = PAPER, trials: int = 1, **asked: Any) -> Way:
    return Packer(device=device, **asked).way(PAPER_BASE, setting, trials)


def test_as_many_pieces_as_fill_the_device_where_they_fit() -> None:
    assert paper_way(GPU_80, PAPER) == Way(pieces=4)  # 65,536 tokens fill a GPU_80
    assert paper_way(replace(GPU_80, step_tokens=2**18), PAPER) == Way(pieces=16)
    assert paper_way(GPU_80, replace(PAPER, accumulation_lanes=16), 1) == Way(pieces=2)  # a lane has no more
    assert paper_way(GPU_80, PAPER, 4) == ONE
    assert paper_way(replace(GPU_80, memory_bytes=2**40), replace(PAPER, accumulation_tokens=None), 1) == ONE


def test_fewer_pieces_before_blocks_are_computed_again() -> None:
    four, one = need(Way(pieces=4)), need(ONE)
    again, one_again = need(Way(pieces=4, recompute=True)), need(Way(recompute=True))
    assert one_again < one < four
    assert again < four
    assert paper_way(with_memory(four), PAPER) == Way(pieces=4)
    assert paper_way(with_memory(one), PAPER) == ONE
    assert paper_way(with_memory(one_again), PAPER) == Way(recompute=True)
    assert paper_way(with_memory(one_again // 2), PAPER) == Way(recompute=True)  # the least that there is


def test_what_the_sweep_asks_for_is_done() -> None:
    assert paper_way(GPU_80, PAPER, 1, micro_batch_tokens=2**15) == Way(pieces=2)
    assert paper_way(GPU_80, PAPER, 1, micro_batch_tokens=2**14) == ONE
    # At most so many tokens: a lane of 4 pieces is never cut into 3 and 1.
    lanes = replace(PAPER, accumulation_lanes=8)
    assert paper_way(GPU_80, lanes, 1, micro_batch_tokens=3 * 2**14).pieces == 2
    assert paper_way(GPU_80, PAPER, 1, recompute="blocks") == Way(pieces=4, recompute=True)
    small = with_memory(need(Way(recompute=True)))
    assert not paper_way(small, PAPER, 1, recompute="none").recompute


def test_blocks_are_computed_again_where_a_larger_stack_then_fits() -> None:
    whole = replace(PAPER, batch_tokens=2**14, accumulation_tokens=None)
    deep = replace(PAPER_BASE, depth=32)
    fits = stack_bytes(deep, whole, 4, cuda=True, way=Way(recompute=True))
    device = with_memory(fits)
    assert Packer(device=device, recompute="none").size(deep, whole) < 4
    assert Packer(device=device).size(deep, whole) == 4
    assert Packer(device=device).way(deep, whole, 4).recompute
    assert not Packer(device=device).way(deep, whole, 1).recompute
    (stack,) = Packer(device=device).pack([trial(whole, deep, seed=k) for k in range(4)])
    assert (len(stack.trials), stack.recompute) == (4, True)


@given(
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(1, 2**13),
    st.sampled_from(["auto", "none", "blocks"]),
    st.booleans(),
)
def test_ways_are_legal_and_stand_once(pieces: int, lanes: int, trials: int, recompute: str, cuda: bool) -> None:
    setting = replace(
        SETTING, batch_tokens=32 * 2**pieces, accumulation_tokens=32, accumulation_lanes=2 ** min(lanes, pieces)
    )
    found = Packer(recompute=recompute, device=Device(cuda=cuda)).ways(BASE, setting, trials)  # type: ignore[arg-type]
    fill = (GPU_STEP_TOKENS if cuda else CPU_STEP_TOKENS) / trials
    assert len(set(found)) == len(found) > 0
    for way in found:
        assert setting.pieces_per_lane % way.pieces == 0
        assert way.pieces == 1 or way.pieces * 32 <= fill
    assert {way.recompute for way in found} == {"auto": {False, True}, "none": {False}, "blocks": {True}}[recompute]
    assert min(way.pieces for way in found) == 1


def plan_of(folder: Path, training: str, resources: str = "") -> Expansion:
    file = write_tiny(
        folder,
        ("batch_tokens: 64", f"batch_tokens: 512, {training}"),
        ("validation_tokens: 128", "validation_tokens: 512"),
        ("workers: 2}", f"workers: 2{resources}}}"),
    )
    return prepare(file, results=folder).expansion


def test_the_plan_says_how_a_batch_is_computed(tmp_path: Path) -> None:
    sweep = plan_of(tmp_path, "accumulation_tokens: 64, accumulation_lanes: 2", ", micro_batch_tokens: 128")
    plan = make_plan(sweep, ())
    text = plan_text(plan)
    assert "8 pieces of 64 tokens in 2 lanes, 128 tokens at once" in text
    assert "sums of gradients" in text
    assert plan.to_dict()["shapes"][0]["batch"]["micro_batch_tokens"] == 128
    again = plan_of(tmp_path, "accumulation_tokens: 64", ", recompute: blocks")
    slower = make_plan(again, ())
    assert "blocks computed again in the backward pass (a third more FLOPs)" in plan_text(slower)
    for one, other in zip(plan.shapes, slower.shapes, strict=True):
        assert other.trial_s == pytest.approx(4 / 3 * one.trial_s)
    losses = (Balance(aux="switch"), Balance(aux="sequence"), Balance(aux="switch", load="last_step"))
    assert [loss.is_of_batch for loss in losses] == [True, False, False]  # it costs a forward pass
