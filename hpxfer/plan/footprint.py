"""The memory of a stack, by a model that follows the code: its state, what the backward pass needs, and the peak.

A step has four moments at which it may hold most:

    head        the state, everything that the forward pass kept, the logits, and the readout's gradient
    block       the same without the logits, and the gradients that pass through the last block
    update      the state and all gradients, with what the first block still holds or with the optimizer's buffer
    probe       the same and two copies of the parameters, at the steps that log the size of an update
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpxfer.kernels.head_limits import CPU_PIECE_BYTES, KEPT_BYTES, held_bytes
from hpxfer.model.parameters import Memory, ParameterSpec
from hpxfer.registry import registry
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting

FLOAT_BYTES = {"float32": 4, "bfloat16": 2}
# What a process takes over the tensors of its stack at their peak: memory that the allocator keeps and cannot use.
# On a CPU 1.24 to 1.45 was measured above an idle worker (`python tests/tools/memory_peaks.py`, AMD EPYC, torch 2.13,
# 2026-11). On a GPU nobody measured it; torch's allocator and the pools of CUDA graphs are assumed to take this much.
CPU_ALLOCATOR, GPU_ALLOCATOR = 1.5, 1.15
# A buffer of the optimizer on a CPU: see hpxfer.train.optimizer.
_BUFFER_BYTES = 4 * 2**17


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The bytes of a stack's tensors at the moment at which it holds most."""

    moment: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def stack_bytes(shape: Shape, setting: Setting, num_trials: int, *, cuda: bool) -> int:
    """Return the bytes that a stack of `num_trials` needs: the tensors of its peak, and what the allocator takes."""
    allocator = GPU_ALLOCATOR if cuda else CPU_ALLOCATOR
    return int(allocator * footprint(shape, setting, num_trials, cuda=cuda).total)


def most_trials(shape: Shape, setting: Setting, room: float, *, cuda: bool) -> int:
    """Return how many trials a stack may have so that it and every smaller one needs at most `room` bytes.

    The head keeps the logits of smaller stacks and computes those of larger ones again, so a larger stack may need
    less. Among stacks of either kind a larger one needs more.
    """
    _, _, logits = _trial(shape, setting, cuda)

    def fits(number: int) -> bool:
        return stack_bytes(shape, setting, number, cuda=cuda) <= room

    keeping = KEPT_BYTES // max(1, logits)
    most = _last(fits, 0, keeping)
    return most if most < keeping else _last(fits, keeping, None)


def footprint(shape: Shape, setting: Setting, num_trials: int, *, cuda: bool) -> Footprint:
    """Return the peak of a stack's tensors, part by part."""
    specs, memory, logits = _trial(shape, setting, cuda)
    rule = registry("optimizer").get(setting.optimizer)
    floats = 4 * num_trials * sum(spec.numel * spec.layers for spec in specs)
    largest = 4 * num_trials * max(spec.numel for spec in specs)
    readout = 4 * num_trials * max((spec.numel for spec in specs if spec.role in ("embedding", "readout")), default=0)
    held = held_bytes(num_trials * logits, cuda=cuda)
    if not cuda and setting.precision == "bfloat16":
        held += 2 * min(num_trials * logits, CPU_PIECE_BYTES)  # torch's cross entropy takes a piece in float32
    kept = {name: num_trials * count for name, count in memory.parts.items() if count}
    passing, head_passing = num_trials * memory.passing, num_trials * memory.head_passing
    ends = {"embedding, final norm and losses": num_trials * memory.ends}
    # HPs are not known here. A stack of SGD in which no trial has momentum keeps no moments.
    state = {"parameters": floats, "moments": rule.moments_of(True) * floats}
    # A rule with a kernel updates in place.
    buffer = (0 if rule.kernel else largest) if cuda else min(_BUFFER_BYTES, largest)
    # The sums of squares are float64: a copy of the largest parameter, and its squares.
    probe = 2 * floats + 4 * largest
    moments = {
        "head": {**state, **kept, **ends, "logits": held, "gradients": head_passing + readout},
        "block": {**state, **kept, "gradients": passing + readout},
        "update": {**state, "gradients": floats + max(num_trials * memory.first, buffer)},
        "probe": {**state, "gradients": floats, "probe": probe},
    }
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    return Footprint(moment=moment, parts=moments[moment])


@functools.lru_cache(maxsize=1024)
def _trial(shape: Shape, setting: Setting, cuda: bool) -> tuple[tuple[ParameterSpec, ...], Memory, int]:
    """Return the parameters of one trial, its memory, and the bytes of its logits."""
    family = registry("family").get(setting.family)
    tokens = FLOAT_BYTES[setting.precision] * setting.batch_tokens
    if family.memory is None:
        memory = Memory(parts={"activations": tokens * family.features_per_token(shape, setting)})
    else:
        memory = family.memory(shape, setting, cuda)
    return tuple(family.parameters(shape, setting)), memory, tokens * family.logits_per_token(shape, setting)


def _last(fits: Callable[[int], bool], low: int, high: int | None) -> int:
    """Return the largest number from `low` to `high` that fits, where all below a number that fits do too."""

    step = 1
    while high is None:
        if not fits(low + step):
            high = low + step - 1
        else:
            low, step = low + step, 2 * step
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
