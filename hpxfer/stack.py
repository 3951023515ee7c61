"""Stacks: trials of one shape and setting that train together, and how a sweep's trials are packed into them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hpxfer.model.cost import count_params, train_flops
from hpxfer.model.layout import moe_blocks
from hpxfer.shape import Shape
from hpxfer.trial import Setting, Trial

# 16 trials of 512 tokens. Of 4, 8, 16 and 32 trials, 16 took the least time a trial at widths 64 to 256 (2 to 10% less
# than 8 at 32 to 128, the same at 256); 32 won at width 32 alone, by 6%, and lost up to a third at 256 (one core of a
# two-core AMD EPYC, float32, depth 2, E4A1, 2026-11).
CPU_STEP_TOKENS = 8192
# A stack is cut so that the longest is at most this part of a worker's share: what is left over at the end is short.
# Not below so many trials, where stacking would be lost.
SHARE_OF_WORKER = 0.5
MIN_CUT = 4
# On a GPU a step of 64k tokens fills the chip (derived from its occupancy; unmeasured here).
GPU_STEP_TOKENS = 65536
# What a stack may need of memory. A CPU is shared by as many workers as it has cores; of a GPU that nobody could ask
# for its size, the smallest that is worth training on is assumed. A guess too high costs a halving, which is recorded.
CPU_STACK_BYTES = 4 * 2**30
GPU_STACK_BYTES = 20 * 2**30
GPU_SHARE = 0.85  # of a GPU's memory, the rest is for CUDA itself and for fragments
# float32: parameters, gradient, both Adam moments, and on a few steps a copy to see the update by.
STATE_BYTES_PER_PARAM = 5 * 4
FLOAT_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Trials that train in one batched model. They differ in seed, parameterization and HPs only."""

    trials: tuple[Trial, ...]

    @property
    def shape(self) -> Shape:
        return self.trials[0].shape

    @property
    def setting(self) -> Setting:
        return self.trials[0].setting

    @property
    def flops(self) -> float:
        return train_flops(self.shape, self.setting) * len(self.trials)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What earlier stacks of a shape say of it: medians over stored trials."""

    trial_s: float | None = None  # worker seconds of one trial: its share of its stack
    trial_bytes: float | None = None  # the largest share of a device's peak memory; None on a CPU
    most: int | None = None  # the largest stack that fitted, where a larger one was cut in half for lack of memory


@dataclass(frozen=True, kw_only=True)
class Device:
    """What stacks run on, as far as planning needs to know it."""

    cuda: bool = False
    memory_bytes: int | None = None  # of one GPU; None if unknown

    @property
    def stack_bytes(self) -> float:
        """What one stack may need."""
        if not self.cuda:
            return CPU_STACK_BYTES
        return GPU_STACK_BYTES if self.memory_bytes is None else GPU_SHARE * self.memory_bytes


CPU = Device()


def stack_size(
    shape: Shape, setting: Setting, device: Device = CPU, *, asked: int | None = None, measured: Measured | None = None
) -> int:
    """Return how many trials of this shape train together: what was asked, or what fills the device and fits in it."""
    if asked is not None:
        return asked
    known = measured or Measured()
    by_tokens = (GPU_STEP_TOKENS if device.cuda else CPU_STEP_TOKENS) // setting.batch_tokens
    by_memory = device.stack_bytes // (known.trial_bytes or trial_bytes(shape, setting))
    return max(1, int(min(by_tokens, by_memory, known.most or by_tokens)))


def stack_sizes(
    counts: Mapping[tuple[Shape, Setting], int],
    device: Device = CPU,
    *,
    asked: int | None = None,
    measured: Mapping[Shape, Measured] | None = None,
    workers: int = 1,
) -> dict[tuple[Shape, Setting], int]:
    """Return shape and setting -> most trials a stack, given the trials of each that are to be shared by workers."""
    flops = {group: train_flops(*group) for group in counts}
    share = SHARE_OF_WORKER * sum(flops[group] * count for group, count in counts.items()) / workers
    out = {}
    for group in counts:
        size = stack_size(*group, device, asked=asked, measured=(measured or {}).get(group[0]))
        if asked is None and workers > 1:
            size = min(size, max(MIN_CUT, int(share / flops[group])))
        out[group] = size
    return out


def trial_bytes(shape: Shape, setting: Setting) -> int:
    """Return the bytes that one trial needs in a stack: its state, and what the backward pass keeps of its tokens.

    A model, not a measurement: per token and block the norms, projections, hidden features and branches, and once the
    logits, all in the precision of the computation.
    """
    size = FLOAT_BYTES[setting.precision]
    state = STATE_BYTES_PER_PARAM + (size if size < 4 else 0)  # and a rounded copy of the parameters
    hidden = 3 if setting.ffn == "swiglu" else 2  # before and after the activation, and the gate
    num_moe = len(moe_blocks(shape, setting))
    routed = shape.num_active * (2 * shape.width + hidden * shape.expert_width) + 2 * shape.num_experts
    moe = routed + shape.num_shared * hidden * shape.shared_width + shape.width
    dense = shape.width + hidden * shape.dense_width
    features = shape.depth * 9 * shape.width + num_moe * moe + (shape.depth - num_moe) * dense
    features += 2 * shape.width + setting.vocab_size
    return state * count_params(shape, setting).total + size * features * setting.batch_tokens


def pack(
    trials: Iterable[Trial],
    device: Device = CPU,
    *,
    asked: int | None = None,
    measured: Mapping[Shape, Measured] | None = None,
    workers: int = 1,
) -> Iterator[Stack]:
    """Yield stacks of equal shape and setting; every trial is in exactly one.

    The trials of a shape are spread evenly over as few stacks as their size allows, so no worker gets a short rest.
    """
    groups: dict[tuple[Shape, Setting], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.shape, trial.setting), []).append(trial)
    counts = {group: len(members) for group, members in groups.items()}
    sizes = stack_sizes(counts, device, asked=asked, measured=measured, workers=workers)
    for group, members in groups.items():
        num_stacks = -(-len(members) // sizes[group])
        for index in range(num_stacks):
            low, high = len(members) * index // num_stacks, len(members) * (index + 1) // num_stacks
            yield Stack(trials=tuple(members[low:high]))
