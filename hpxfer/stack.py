"""Stacks: trials of one shape and setting that train together, and how a sweep's trials are packed into them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hpxfer.model.cost import count_params, train_flops
from hpxfer.shape import Shape
from hpxfer.trial import Setting, Trial

# 8 trials of 512 tokens, the stack that `hpxfer bench trainer` measures: it wins at every width there, most at 32
# (float32, 2026-11). Larger ones are unmeasured, and coarsen the progress and the balance between workers.
CPU_STEP_TOKENS = 4096
# On a GPU a step of 64k tokens fills the chip (derived from its occupancy; unmeasured here).
GPU_STEP_TOKENS = 65536
# Parameters, gradient, both Adam moments and a probe's copy, float32, should stay below this many bytes a stack.
STACK_STATE_BYTES = 4 * 2**30
STATE_BYTES_PER_PARAM = 5 * 4


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


def stack_size(shape: Shape, setting: Setting, *, cuda: bool, asked: int | None = None) -> int:
    """Return how many trials of this shape train together: what was asked, or what fills the device."""
    if asked is not None:
        return asked
    by_tokens = (GPU_STEP_TOKENS if cuda else CPU_STEP_TOKENS) // setting.batch_tokens
    by_memory = STACK_STATE_BYTES // (STATE_BYTES_PER_PARAM * count_params(shape, setting).total)
    return max(1, min(by_tokens, by_memory))


def pack(trials: Iterable[Trial], *, cuda: bool, asked: int | None = None) -> Iterator[Stack]:
    """Yield stacks of equal shape and setting; every trial is in exactly one.

    The trials of a shape are spread evenly over as few stacks as their size allows, so no worker gets a short rest.
    """
    groups: dict[tuple[Shape, Setting], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.shape, trial.setting), []).append(trial)
    for (shape, setting), members in groups.items():
        num_stacks = -(-len(members) // stack_size(shape, setting, cuda=cuda, asked=asked))
        for index in range(num_stacks):
            low, high = len(members) * index // num_stacks, len(members) * (index + 1) // num_stacks
            yield Stack(trials=tuple(members[low:high]))
