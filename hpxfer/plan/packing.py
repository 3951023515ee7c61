"""Packing: how many trials train together, on what, in how many pieces, and what memory they need there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpxfer.model.cost import relative_cost
from hpxfer.plan.footprint import ONE, Way, can_recompute, most_trials, stack_bytes
from hpxfer.scaling.shape import Shape
from hpxfer.spec.check_shapes import divisors
from hpxfer.spec.resources_section import Recompute, ResourcesSpec
from hpxfer.trial import Setting, Trial
from hpxfer.trial.stack import Stack

# Ways: how many pieces of its batch a stack computes at once, and whether it computes its blocks again.
#
# Both change memory and speed, and no bit. The planner takes the first way of this list in which the stack fits:
#
#     1. keep everything, the most pieces that fill the device
#     2. keep everything, fewer pieces
#     3. compute blocks again (a third more FLOPs), the most pieces
#     4. compute blocks again, fewer pieces


@dataclass(frozen=True, kw_only=True)
class How:
    """What a sweep asks for. None and auto leave it to the planner."""

    micro_batch_tokens: int | None = None
    recompute: Recompute = "auto"
    ranks: int = 1

    @classmethod
    def of(cls, resources: ResourcesSpec) -> How:
        """Return what the sweep's resources ask for."""
        return cls(
            micro_batch_tokens=resources.micro_batch_tokens, recompute=resources.recompute, ranks=resources.ranks
        )


ANY = How()


def ways(shape: Shape, setting: Setting, tokens_at_once: float, how: How = ANY, *, cuda: bool) -> list[Way]:
    """Return the ways in the order in which the planner prefers them.

    `tokens_at_once` of a trial fill the device. The pieces that are computed at once divide those of a lane.
    """
    at_once = [number for number in divisors(setting.pieces_per_lane) if _may(number, setting, tokens_at_once, how)]
    again = {"auto": (False, True), "none": (False,), "blocks": (True,)}[how.recompute]
    if not can_recompute(shape, setting, cuda=cuda):
        again = (False,)
    return [
        Way(pieces=number, recompute=each, ranks=how.ranks)
        for each in again
        for number in sorted(at_once, reverse=True)
    ]


@dataclass(frozen=True, kw_only=True)
class StackMemory:
    """The bytes that stacks of a shape need, by the model of memory.

    In the way in which stored trials were computed, what they needed counts. In other ways, the model's number times
    `ratio`, which is what they needed relative to the model.
    """

    shape: Shape
    setting: Setting
    cuda: bool
    way: Way = ONE  # of the stored trials
    trial_bytes: float | None = None  # that they needed
    ratio: float = 1.0

    def of(self, way: Way, num_trials: int) -> int:
        """Return the bytes that a stack of so many trials needs."""
        if self.trial_bytes is not None and way == self.way:
            return int(num_trials * self.trial_bytes)
        return int(self.ratio * stack_bytes(self.shape, self.setting, num_trials, cuda=self.cuda, way=way))

    def most(self, way: Way, room: float) -> int:
        """Return how many trials fit."""
        if self.trial_bytes is not None and way == self.way:
            return int(room // self.trial_bytes)
        return most_trials(self.shape, self.setting, room / self.ratio, cuda=self.cuda, way=way)

    def most_of(self, choices: Sequence[Way], room: float, wanted: int) -> int:
        """Return how many trials fit: `wanted` if any way holds so many, else the most that some way holds."""
        most = 0
        for way in choices:
            most = max(most, min(wanted, self.most(way, room)))
            if most == wanted:
                break
        return most

    def first(self, choices: Sequence[Way], num_trials: int, room: float) -> Way:
        """Return the first way in which so many trials fit, or the one that needs the least memory."""
        if len(choices) == 1:
            return choices[0]
        fitting = (way for way in choices if self.of(way, num_trials) <= room)
        return next(fitting, None) or min(choices, key=lambda way: self.of(way, num_trials))


def _may(number: int, setting: Setting, tokens_at_once: float, how: How) -> bool:
    most = how.micro_batch_tokens or tokens_at_once
    return number == 1 or number * setting.piece_tokens <= most


# Tokens per step of a full stack on a CPU core: 16 trials of 512 tokens. Of 4, 8, 16 and 32 trials, 16 took the least
# time per trial at widths 64 to 256: 2 to 10% less than 8 at widths 32 to 128, and the same at 256. 32 trials were 6%
# faster at width 32 only, and up to a third slower at 256 (one core of a two-core AMD EPYC, float32, depth 2, E4A1,
# 2026-11).
CPU_STEP_TOKENS = 8192
# A stack takes at most this part of a worker's share of the work, so that workers end at nearly the same time. Stacks
# are not cut below MIN_CUT trials, where the gain of stacking would be lost.
SHARE_OF_WORKER = 0.5
MIN_CUT = 4
# Tokens per step that fill a GPU on which `hpxfer bench` never measured stacks. Derived from occupancy.
GPU_STEP_TOKENS = 65536
# The memory that a stack may need. A CPU's memory is shared by as many workers as it has cores. If the size of a GPU is
# unknown, it counts as the smallest that is worth training on. If the guess is too high, a stack is halved, and the
# result records it.
CPU_STACK_BYTES = 4 * 2**30
GPU_STACK_BYTES = 20 * 2**30
GPU_SHARE = 0.85  # of a GPU's memory; the rest is for CUDA itself and for fragmentation
# The memory that CUDA takes per process on a GPU. Derived from its kernels and workspaces, unmeasured.
CUDA_BYTES = 600 * 2**20
# HOST_SHARE: the part of a machine's memory that all workers together may use. WORKER_BYTES: the memory of a worker
# without a stack. An interpreter with torch takes 218 MiB (torch 2.13 for CPUs, 2026-11); its buffers and the data take
# the rest.
HOST_SHARE = 0.8
WORKER_BYTES = 400 * 2**20
# The shares of a GPU that a stack may have. Powers of two fill a GPU completely.
SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The time and the memory of a shape's earlier stacks: medians over stored trials."""

    trial_s: float | None = None  # worker seconds of one trial: its part of its stack's time
    trial_bytes: float | None = None  # the largest part of a device's peak memory that one trial had; None on a CPU
    most: int | None = None  # the largest stack that fitted, if a larger one was halved for lack of memory
    stack_size: float | None = None  # trials of the stacks that `trial_s` was measured on
    way: Way = ONE  # in which those stacks computed their batch, see `as_computed`


@dataclass(frozen=True, kw_only=True)
class Device:
    """What stacks run on, as far as the planner needs to know. None means unknown."""

    cuda: bool = False
    memory_bytes: int | None = None  # of one GPU
    num_gpus: int | None = None  # of the machine or of the cluster
    num_cpus: int | None = None
    host_bytes: int | None = None  # memory that all workers share, on all machines
    name: str | None = None  # of the GPU
    step_tokens: int = GPU_STEP_TOKENS  # tokens per step that fill one GPU

    def room(self, share: float = 1.0, workers: int = 1) -> float:
        """Return the bytes that one stack may need, given its share of a GPU, or the number of workers that share
        the memory.
        """
        if self.cuda:
            return share * (GPU_STACK_BYTES if self.memory_bytes is None else GPU_SHARE * self.memory_bytes)
        if self.host_bytes is None:
            return CPU_STACK_BYTES
        return min(CPU_STACK_BYTES, self.most(workers))

    def most(self, workers: int = 1) -> float:
        """Return the bytes above which a stack certainly finds no memory. Infinity if that is unknown."""
        if self.cuda:
            return self.room()
        if self.host_bytes is None:
            return math.inf
        return max(0.0, HOST_SHARE * self.host_bytes / workers - WORKER_BYTES)


CPU = Device()


def gpu_share(stack: Stack, device: Device, *, measured: Measured | None = None) -> float:
    """Return the share of a GPU that a stack needs: the smallest of 1/8, 1/4, 1/2 and 1 that covers its memory and
    tokens.

    Stacks whose shares add up to at most 1 fit on a GPU together, if the memory estimate is right: each may use
    `memory_fraction` of the GPU, and the memory that CUDA takes per process fits into the rest.
    """
    way = Way(pieces=stack.pieces, recompute=stack.recompute)
    if measured is not None:
        measured = replace(measured, way=way)
    return share_of(stack.shape, stack.setting, len(stack.trials), device, measured=measured, way=way)


def share_of(
    shape: Shape,
    setting: Setting,
    num_trials: int,
    device: Device,
    *,
    measured: Measured | None = None,
    way: Way = ONE,
) -> float:
    """Return the share of a GPU that a stack of this many trials needs, see `gpu_share`."""
    need = memory_of(shape, setting, device, measured).of(way, num_trials)
    tokens = num_trials * way.pieces * setting.piece_tokens
    total = device.memory_bytes or GPU_STACK_BYTES / GPU_SHARE
    least = max(need / (GPU_SHARE * total), tokens / device.step_tokens, CUDA_BYTES / ((1 - GPU_SHARE) * total))
    return next((share for share in SHARES if least <= share), 1.0)


def as_computed(
    measured: Measured | None,
    shape: Shape,
    setting: Setting,
    device: Device,
    how: How,
    *,
    share: float | None = None,
    workers: int = 1,
) -> Measured | None:
    """Return what was measured with the way in which it was: the one that the planner chose for stacks of that size.

    The store does not say it. It is wrong where the sweep asked for another way then.
    """
    if measured is None or measured.trial_bytes is None:
        return measured
    size = max(1, round(measured.stack_size or 1))
    return replace(measured, way=way_on(shape, setting, size, device, how, share=share, workers=workers))


def memory_of(shape: Shape, setting: Setting, device: Device, measured: Measured | None = None) -> StackMemory:
    """Return the memory that stacks of a shape need on a device."""
    memory = StackMemory(shape=shape, setting=setting, cuda=device.cuda)
    if measured is None or measured.trial_bytes is None:
        return memory
    size = max(1, round(measured.stack_size or 1))
    ratio = size * measured.trial_bytes / memory.of(measured.way, size)
    return replace(memory, way=measured.way, trial_bytes=measured.trial_bytes, ratio=ratio)


def way_on(
    shape: Shape,
    setting: Setting,
    num_trials: int,
    device: Device = CPU,
    how: How = ANY,
    *,
    measured: Measured | None = None,
    share: float | None = None,
    workers: int = 1,
) -> Way:
    """Return how a stack of this many trials computes its batch on a device."""
    part = share or 1.0
    choices = ways(shape, setting, _fill(device, part) / num_trials, how, cuda=device.cuda)
    if len(choices) == 1:
        return choices[0]
    measured = as_computed(measured, shape, setting, device, how, share=share, workers=workers)
    return memory_of(shape, setting, device, measured).first(choices, num_trials, device.room(part, workers))


def _fill(device: Device, share: float) -> int:
    """Return the tokens that fill a worker, computed at once."""
    return int(device.step_tokens * share if device.cuda else CPU_STEP_TOKENS)


def memory_fraction(share: float) -> float:
    """Return the part of a GPU's memory that a worker with this share of the GPU may allocate."""
    return GPU_SHARE * share


def stack_size(
    shape: Shape,
    setting: Setting,
    device: Device = CPU,
    *,
    asked: int | None = None,
    measured: Measured | None = None,
    share: float | None = None,
    workers: int = 1,
    how: How = ANY,
) -> int:
    """Return how many trials of this shape train together: the number asked for, or what fills the device and fits into
    it.

    `share` is the share of a GPU per stack. None means that each stack gets what it needs. A number that cannot fit is
    cut.
    """
    measured = as_computed(measured, shape, setting, device, how, share=share, workers=workers)
    known, part = measured or Measured(), share or 1.0
    fill = _fill(device, part)
    wanted = asked or min(max(1, fill // setting.batch_tokens), known.most or fill)
    room = device.room(part, workers)
    if asked is not None:
        room = device.room(part) if device.cuda else device.most(workers)
    if math.isinf(room):
        return wanted
    choices = ways(shape, setting, fill / wanted, how, cuda=device.cuda)
    return max(1, memory_of(shape, setting, device, known).most_of(choices, room, wanted))


def stack_sizes(
    counts: Mapping[tuple[Shape, Setting], int],
    device: Device = CPU,
    *,
    asked: int | None = None,
    measured: Mapping[Shape, Measured] | None = None,
    workers: int = 1,
    share: float | None = None,
    how: How = ANY,
) -> dict[tuple[Shape, Setting], int]:
    """Return (shape, setting) -> most trials per stack, given how many trials of each the workers share."""
    flops = {group: relative_cost(*group) for group in counts}
    part = SHARE_OF_WORKER * sum(flops[group] * count for group, count in counts.items()) / workers
    out = {}
    for group in counts:
        known = (measured or {}).get(group[0])
        size = stack_size(*group, device, asked=asked, measured=known, share=share, workers=workers, how=how)
        if asked is None and workers > 1:
            size = min(size, max(MIN_CUT, int(part / flops[group])))
        out[group] = size
    return out


def pack(
    trials: Iterable[Trial],
    device: Device = CPU,
    *,
    asked: int | None = None,
    measured: Mapping[Shape, Measured] | None = None,
    workers: int = 1,
    share: float | None = None,
    how: How = ANY,
) -> Iterator[Stack]:
    """Yield stacks of equal shape and setting, but for ties. Every trial is in exactly one.

    The trials of a shape are spread evenly over as few stacks as their size allows, so no worker gets a small
    remainder.
    """
    groups: dict[tuple[Shape, Setting], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.shape, trial.setting.of_stack), []).append(trial)
    counts = {group: len(members) for group, members in groups.items()}
    sizes = stack_sizes(counts, device, asked=asked, measured=measured, workers=workers, share=share, how=how)
    for group, members in groups.items():
        num_stacks = -(-len(members) // sizes[group])
        for index in range(num_stacks):
            low, high = len(members) * index // num_stacks, len(members) * (index + 1) // num_stacks
            stack = Stack(trials=tuple(members[low:high]))
            known = (measured or {}).get(stack.shape)
            yield with_way(stack, device, how, measured=known, share=share, workers=workers)


def with_way(
    stack: Stack,
    device: Device = CPU,
    how: How = ANY,
    *,
    measured: Measured | None = None,
    share: float | None = None,
    workers: int = 1,
) -> Stack:
    """Return the stack with the way in which the device computes its batch."""
    number = len(stack.trials)
    way = way_on(stack.shape, stack.setting, number, device, how, measured=measured, share=share, workers=workers)
    return replace(stack, pieces=way.pieces, recompute=way.recompute)


def stack_flops(stack: Stack) -> float:
    """Return the FLOPs that training a stack takes."""
    return relative_cost(stack.shape, stack.setting) * len(stack.trials)
