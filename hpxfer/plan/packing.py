"""Packing: how many trials train together, on what, in how many pieces, and what memory they need there."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from hpxfer.model.cost import relative_cost
from hpxfer.plan.footprint import Way, can_recompute, most_trials, stack_bytes
from hpxfer.registry import rows_of
from hpxfer.scaling.shape import Shape
from hpxfer.spec import Recompute, SweepSpec, divisors
from hpxfer.trial import Setting, Stack, Trial

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
CUDA_BYTES = 600 * 2**20  # that CUDA takes per process on a GPU. Derived from its kernels and workspaces, unmeasured
HOST_SHARE = 0.8  # of a machine's memory: what all workers together may use
# The memory of a worker without a stack. An interpreter with torch takes 218 MiB (torch 2.13 for CPUs, 2026-11); its
# buffers and the data take the rest.
WORKER_BYTES = 400 * 2**20
SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)  # of a GPU that a stack may have. Powers of two fill a GPU completely


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The time and the memory of a shape's earlier stacks: medians over stored trials."""

    trial_s: float | None = None  # worker seconds of one trial: its part of its stack's time
    trial_bytes: float | None = None  # the largest part of a device's peak memory that one trial had; None on a CPU
    most: int | None = None  # the largest stack that fitted, if a larger one was halved for lack of memory
    stack_size: float | None = None  # trials of the stacks that `trial_s` was measured on

    @property
    def size(self) -> int:
        """The trials of those stacks as a whole number, 1 if it is not known."""
        return max(1, round(self.stack_size or 1))


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
        return min(CPU_STACK_BYTES, self.most(workers))

    def most(self, workers: int = 1) -> float:
        """Return the bytes above which a stack certainly finds no memory. Infinity if that is unknown."""
        if self.cuda:
            return self.room()
        return math.inf if self.host_bytes is None else max(0.0, HOST_SHARE * self.host_bytes / workers - WORKER_BYTES)


CPU = Device()


@dataclass(frozen=True, kw_only=True)
class StackMemory:
    """The bytes that stacks of a shape need, by the model of memory.

    In the way in which stored trials were computed, what they needed counts. In other ways, the model's number times
    what they needed relative to the model.
    """

    shape: Shape
    setting: Setting
    cuda: bool
    known: Measured = Measured()  # of stored trials
    way: Way | None = None  # in which they were computed

    def measured(self, way: Way) -> float | None:
        """Return the bytes per trial of stored trials that were computed in this way, or None."""
        return self.known.trial_bytes if way == self.way else None

    @cached_property
    def _ratio(self) -> float:
        if self.known.trial_bytes is None or self.way is None:
            return 1.0
        size = self.known.size
        return size * self.known.trial_bytes / stack_bytes(self.shape, self.setting, size, cuda=self.cuda, way=self.way)

    def of(self, way: Way, num_trials: int) -> int:
        """Return the bytes that a stack of so many trials needs."""
        if (each := self.measured(way)) is not None:
            return int(num_trials * each)
        return int(self._ratio * stack_bytes(self.shape, self.setting, num_trials, cuda=self.cuda, way=way))

    def most(self, way: Way, room: float) -> int:
        """Return how many trials fit."""
        if (each := self.measured(way)) is not None:
            return int(room // each)
        return most_trials(self.shape, self.setting, room / self._ratio, cuda=self.cuda, way=way)

    def first(self, choices: Sequence[Way], num_trials: int, room: float) -> Way:
        """Return the first way in which so many trials fit, or the one that needs the least memory."""
        if len(choices) == 1:
            return choices[0]
        fitting = (way for way in choices if self.of(way, num_trials) <= room)
        return next(fitting, None) or min(choices, key=lambda way: self.of(way, num_trials))


@dataclass(frozen=True, kw_only=True)
class Packer:
    """How the trials of a sweep become stacks on a device. What is None or auto is left to the planner."""

    device: Device = CPU
    asked: int | None = None  # trials per stack
    workers: int = 1  # processes that share the work, and the memory of a CPU
    share: float | None = None  # of a GPU per stack. None: each stack gets what it needs
    micro_batch_tokens: int | None = None
    recompute: Recompute = "auto"
    ranks: int = 1
    measured: Mapping[Shape, Measured] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: SweepSpec, device: Device, workers: int, measured: Mapping[Shape, Measured]) -> Packer:
        """Return what the sweep's resources ask for, with so many stacks at once."""
        asked = spec.resources
        return cls(
            device=device,
            asked=spec.stack_size,
            workers=workers * asked.ranks,
            share=asked.gpu_share,
            micro_batch_tokens=asked.micro_batch,
            recompute=asked.recompute,
            ranks=asked.ranks,
            measured=measured,
        )

    def ways(self, shape: Shape, setting: Setting, num_trials: float) -> list[Way]:
        """Return how many pieces of its batch a stack may compute at once, and whether it computes its blocks again.

        Both change memory and speed, and no bit. The pieces of a lane divide it, and the trials fill the device. The
        planner takes the first way of this list in which the stack fits:

            1. keep everything, the most pieces that fill the device
            2. keep everything, fewer pieces
            3. compute blocks again (a third more FLOPs), the most pieces
            4. compute blocks again, fewer pieces
        """
        most = self.micro_batch_tokens or self._fill / num_trials / _tokens_of_row(setting)
        pieces = sorted(divisors(setting.pieces_per_lane), reverse=True)
        at_once = [number for number in pieces if number == 1 or number * setting.piece_tokens <= most]
        again = {"auto": (False, True), "none": (False,), "blocks": (True,)}[self.recompute]
        if not can_recompute(shape, setting, cuda=self.device.cuda):
            again = (False,)
        return [Way(pieces=number, recompute=each, ranks=self.ranks) for each in again for number in at_once]

    def memory(self, shape: Shape, setting: Setting) -> StackMemory:
        """Return the memory that stacks of a shape need, by the model or as stored trials measured it.

        The store does not say in which way those were computed: the one that the planner chooses for stacks of that
        size, which is wrong where the sweep asked for another way then.
        """
        modeled = StackMemory(shape=shape, setting=setting, cuda=self.device.cuda)
        known = self.measured.get(shape, Measured())
        if known.trial_bytes is None:
            return modeled
        way = modeled.first(self.ways(shape, setting, known.size), known.size, self._room)
        return replace(modeled, known=known, way=way)

    def way(self, shape: Shape, setting: Setting, num_trials: int) -> Way:
        """Return how a stack of this many trials computes its batch."""
        choices = self.ways(shape, setting, num_trials)
        return choices[0] if len(choices) == 1 else self.memory(shape, setting).first(choices, num_trials, self._room)

    def size(self, shape: Shape, setting: Setting) -> int:
        """Return how many trials of a shape train together: the number asked for, or what fills the device and fits
        into it. A number that cannot fit is cut.
        """
        known = self.measured.get(shape, Measured())
        wanted = self.asked or min(
            max(1, self._fill // (setting.batch_tokens * _tokens_of_row(setting))), known.most or self._fill
        )
        room = self._room
        if self.asked is not None:
            room = self.device.room(self.share or 1.0) if self.device.cuda else self.device.most(self.workers)
        if math.isinf(room):
            return wanted
        memory, most = self.memory(shape, setting), 1
        for way in self.ways(shape, setting, wanted):
            most = max(most, min(wanted, memory.most(way, room)))
            if most == wanted:
                break
        return most

    def sizes(self, counts: Mapping[tuple[Shape, Setting], int]) -> dict[tuple[Shape, Setting], int]:
        """Return (shape, setting) -> most trials per stack, given how many trials of each the workers share."""
        flops = {group: relative_cost(*group) for group in counts}
        part = SHARE_OF_WORKER * sum(flops[group] * count for group, count in counts.items()) / self.workers
        sizes = {group: self.size(*group) for group in counts}
        if self.asked is not None or self.workers == 1:
            return sizes
        return {group: min(size, max(MIN_CUT, int(part / flops[group]))) for group, size in sizes.items()}

    def pack(self, trials: Iterable[Trial]) -> Iterator[Stack]:
        """Yield stacks of equal shape and setting, but for ties. Every trial is in exactly one.

        The trials of a shape are spread evenly over as few stacks as their size allows, so no worker gets a small
        remainder.
        """
        groups: dict[tuple[Shape, Setting], list[Trial]] = {}
        for trial in trials:
            groups.setdefault((trial.shape, trial.setting.of_stack), []).append(trial)
        sizes = self.sizes({group: len(members) for group, members in groups.items()})
        for group, members in groups.items():
            num_stacks = -(-len(members) // sizes[group])
            for index in range(num_stacks):
                low, high = len(members) * index // num_stacks, len(members) * (index + 1) // num_stacks
                yield self.with_way(Stack(trials=tuple(members[low:high])))

    def with_way(self, stack: Stack) -> Stack:
        """Return the stack with the way in which the device computes its batch."""
        way = self.way(stack.shape, stack.setting, len(stack.trials))
        return replace(stack, pieces=way.pieces, recompute=way.recompute)

    @property
    def _fill(self) -> int:
        """The tokens that fill a worker, computed at once."""
        return int(self.device.step_tokens * (self.share or 1.0) if self.device.cuda else CPU_STEP_TOKENS)

    @property
    def _room(self) -> float:
        """The bytes that a stack of the planner's choice may need."""
        return self.device.room(self.share or 1.0, self.workers)


def _tokens_of_row(setting: Setting) -> int:
    """Return what each token or sample of a batch counts for in the tokens that fill a device."""
    count: int = rows_of("family").get(setting.family).tokens_of_row(setting)
    return count


def gpu_share(stack: Stack, device: Device, *, measured: Measured | None = None) -> float:
    """Return the share of a GPU that a stack needs: the smallest of 1/8, 1/4, 1/2 and 1 that covers its memory and
    tokens.

    Stacks whose shares add up to at most 1 fit on a GPU together, if the memory estimate is right: each may use
    `memory_fraction` of the GPU, and the memory that CUDA takes per process fits into the rest.
    """
    way, known = Way(pieces=stack.pieces, recompute=stack.recompute), measured or Measured()
    memory = StackMemory(shape=stack.shape, setting=stack.setting, cuda=device.cuda, known=known, way=way)
    return share_of(memory, way, len(stack.trials), device)


def share_of(memory: StackMemory, way: Way, num_trials: int, device: Device) -> float:
    """Return the share of a GPU that a stack of this many trials needs, see `gpu_share`."""
    tokens = num_trials * way.pieces * memory.setting.piece_tokens * _tokens_of_row(memory.setting)
    total = device.memory_bytes or GPU_STACK_BYTES / GPU_SHARE
    need = memory.of(way, num_trials) / (GPU_SHARE * total)
    least = max(need, tokens / device.step_tokens, CUDA_BYTES / ((1 - GPU_SHARE) * total))
    return next((share for share in SHARES if least <= share), 1.0)


def memory_fraction(share: float) -> float:
    """Return the part of a GPU's memory that a worker with this share of the GPU may allocate."""
    return GPU_SHARE * share


def stack_flops(stack: Stack) -> float:
    """Return the FLOPs that training a stack takes."""
    return relative_cost(stack.shape, stack.setting) * len(stack.trials)


# How much longer a run may take than with its costliest stacks first, which end most evenly. Without a limit, a run of
# the sweeps in `sweeps/` on 2 to 16 workers takes up to 45% longer.
LONGER = 1.1


def nearest_first(stacks: Sequence[Stack], distances: Mapping[Shape, int], workers: int) -> list[Stack]:
    """Return the stacks by the distance of their shape from the base, of equal distances the costliest first.

    `distances` is shape -> distance, 0 of the base. The farthest stacks are mostly the costliest, and some workers
    would be idle while others end them. So a few cheaper stacks are kept back to fill these gaps: as few as needed, the
    farthest of them, and none of the base.
    """
    cost = {stack.id: stack_flops(stack) for stack in stacks}
    away = {stack.id: distances.get(stack.shape, 0) for stack in stacks}
    near = sorted(stacks, key=lambda stack: (away[stack.id], -cost[stack.id]))
    longest_first = sorted(cost.values(), reverse=True)
    limit = LONGER * _time(longest_first, workers)
    fillers = [stack for stack in reversed(near) if away[stack.id] and cost[stack.id] < longest_first[0]]
    num_kept = 0
    while True:
        ids = {stack.id for stack in fillers[:num_kept]}
        kept = sorted(fillers[:num_kept], key=lambda stack: -cost[stack.id])
        out = [stack for stack in near if stack.id not in ids] + kept
        if num_kept >= len(fillers) or _time([cost[stack.id] for stack in out], workers) <= limit:
            return out
        num_kept += 1 + num_kept // 8


def _time(costs: Iterable[float], workers: int) -> float:
    """Return when the last stack ends, if each goes to the first worker that is idle."""
    busy = [0.0] * workers
    for cost in costs:
        heapq.heapreplace(busy, busy[0] + cost)
    return max(busy)
