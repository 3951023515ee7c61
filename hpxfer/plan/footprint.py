"""The memory of a stack, by a model that follows the code: its state, what the backward pass needs, and the peak.

Of a batch in pieces, the model holds the pieces that are computed at once, and the sum of the gradients so far. The
copies of the weights that these pieces read count too. Where blocks are computed again, one block at a time keeps
everything. `Way` says which of it all.

A step has these moments at which it may hold most:

    head        the state, everything that the forward pass kept, the logits, and the readout's gradient
    block       the same without the logits, and the gradients that pass through the last block
    exchange    the state, and of several ranks the sums that they have sent
    update      the state and all gradients, with what the first block still holds or with the optimizer's buffer
    probe       the state, all gradients and a copy of the parameters, at the steps that log the size of an update
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hpxfer.kernels.head_limits import CPU_PIECE_BYTES, KEPT_BYTES, held_bytes
from hpxfer.model.parameters import Memory, ParameterSpec
from hpxfer.registry import rows_of
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting

FLOAT_BYTES = {"float32": 4, "bfloat16": 2}
# What a process takes over the tensors of its stack at their peak: memory that the allocator keeps and cannot use.
# On a CPU 1.24 to 1.45 was measured above an idle worker (`python tests/studies/memory_peaks.py`, AMD EPYC, torch 2.13,
# 2026-11). On a GPU nobody measured it; torch's allocator and the pools of CUDA graphs are assumed to take this much.
CPU_ALLOCATOR, GPU_ALLOCATOR = 1.5, 1.15
# A buffer of the optimizer on a CPU, and how many of them a rule for matrices needs: see hpxfer.train.optimizer.
_BUFFER_BYTES = 4 * 2**19
_OF_MATRICES = 7
# Per token of a whole batch: input and target, and the loss.
_BATCH_BYTES = 2 * 8 + 4


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The bytes of a stack's tensors at the moment at which it holds most."""

    moment: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a stack computes its batch. No way changes a bit of its trials."""

    pieces: int = 1  # of a trial's batch, computed at once
    recompute: bool = False  # whether the backward pass computes each block again
    ranks: int = 1  # the processes that share the stack


ONE = Way()


def stack_bytes(shape: Shape, setting: Setting, num_trials: int, *, cuda: bool, way: Way = ONE) -> int:
    """Return the bytes that a stack of `num_trials` needs: the tensors of its peak, and what the allocator takes."""
    allocator = GPU_ALLOCATOR if cuda else CPU_ALLOCATOR
    return int(allocator * footprint(shape, setting, num_trials, cuda=cuda, way=way).total)


def most_trials(shape: Shape, setting: Setting, room: float, *, cuda: bool, way: Way = ONE) -> int:
    """Return how many trials a stack may have so that it and every smaller one needs at most `room` bytes.

    The head keeps the logits of smaller stacks and computes those of larger ones again, so a larger stack may need
    less. Among stacks of either kind a larger one needs more.
    """
    _, _, logits = _row(shape, setting, cuda)
    if not stack_bytes(shape, setting, 1, cuda=cuda, way=way):
        return 1  # nothing is known of the model of a user's own trainer

    def fits(number: int) -> bool:
        return stack_bytes(shape, setting, number, cuda=cuda, way=way) <= room

    keeping = KEPT_BYTES // max(1, way.pieces * logits)
    most = _last(fits, 0, keeping)
    return most if most < keeping else _last(fits, keeping, None)


def can_recompute(shape: Shape, setting: Setting, *, cuda: bool) -> bool:
    """Return whether the family can compute blocks again."""
    return _row(shape, setting, cuda)[1].block > 0


def footprint(shape: Shape, setting: Setting, num_trials: int, *, cuda: bool, way: Way = ONE) -> Footprint:
    """Return the peak of a stack's tensors, part by part."""
    specs, memory, logits = _row(shape, setting, cuda)
    rule, rows = rows_of("optimizer").get(setting.optimizer), num_trials * way.pieces
    of_one = 4 * sum(spec.numel * spec.layers for spec in specs)
    floats = num_trials * of_one
    largest = 4 * num_trials * max((spec.numel for spec in specs), default=0)
    readout = 4 * rows * max((spec.numel for spec in specs if spec.role in ("embedding", "readout")), default=0)
    held = held_bytes(rows * logits, cuda=cuda)
    if not cuda and setting.precision == "bfloat16":
        held += 2 * min(rows * logits, CPU_PIECE_BYTES)  # torch's cross entropy takes a piece in float32
    parts, again = memory.parts, 0
    if way.recompute and memory.block:
        parts, again = {"between blocks": memory.between}, memory.block
    kept = {name: rows * count for name, count in parts.items() if count}
    passing, head_passing = rows * memory.passing, rows * memory.head_passing
    ends = {"embedding, final norm and losses": rows * memory.ends}
    # HPs are not known here. A stack of SGD in which no trial has momentum keeps no moments.
    shard = floats if way.ranks == 1 else max(floats // way.ranks, largest)  # whole matrices
    state = {"parameters": floats, "moments": rule.moments_of(True) * shard}
    if memory.measured:
        state["measures of routers"] = num_trials * memory.measured
    all_gradients, late = floats, readout
    if setting.num_pieces > 1:
        # The sum over the pieces, and that over a lane. A gradient is added to it and let go, but that of a table that
        # is also the readout is not complete before the end. And the tokens and losses of the whole batch.
        sums = shard + (floats if setting.accumulation_lanes > 1 else 0)
        sums += _BATCH_BYTES * num_trials * setting.batch_tokens
        copies = {"copies of the weights": rows * of_one} if way.pieces > 1 else {}
        state = {**state, "sums of gradients": sums, **copies}
        all_gradients, late = 0, readout if setting.tied_embeddings else 0
    # A rule with a kernel updates in place.
    buffer = (0 if rule.kernel else largest) if cuda else min(_BUFFER_BYTES, largest)
    if rule.matrices is not None:
        # Whole matrices: the momentum's parts, the matrix, the next one, and the products of each.
        whole = max((4 * spec.numel for spec in specs if spec.role in rule.matrices.roles), default=0)
        buffer = _OF_MATRICES * (num_trials * whole if cuda else max(min(_BUFFER_BYTES, num_trials * whole), whole))
    # A copy of the parameters, for which the sum of a lane has room. The sums of squares are float64: a copy of the
    # largest parameter, and its squares.
    probe = (floats if setting.accumulation_lanes == 1 else 0) + 4 * largest
    # Measures of routers hold nothing of it. Where a run goes on, they draw the parameters of its start once more.
    probe = max(probe, num_trials * memory.measuring + (floats if memory.measuring else 0))
    first = 0 if setting.num_pieces > 1 else rows * memory.first
    recomputed = {"a block computed again": rows * again} if again else {}
    exchange = {}
    if way.ranks > 1:
        # An owner adds the lanes when it has all. Those of this rank's last lane come after its backward pass.
        lanes = setting.accumulation_lanes * shard
        exchange = {"exchange": {**state, "sums of other ranks": lanes}}
        if lanes > way.ranks * shard:
            kept["sums of other ranks"] = lanes - way.ranks * shard
    moments = {
        **exchange,
        "head": {**state, **kept, **ends, "logits": held, "gradients": head_passing + readout},
        "block": {**state, **kept, **recomputed, "gradients": passing + late},
        "update": {**state, "gradients": all_gradients + max(first, buffer)},
        "probe": {**state, "gradients": all_gradients, "probe": probe},
    }
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    return Footprint(moment=moment, parts=moments[moment])


@functools.lru_cache(maxsize=1024)
def _row(shape: Shape, setting: Setting, cuda: bool) -> tuple[tuple[ParameterSpec, ...], Memory, int]:
    """Return the parameters of one trial, and of one piece of its batch the memory and the bytes of its logits."""
    family = rows_of("family").get(setting.family)
    setting = replace(setting, batch_tokens=setting.piece_tokens)
    tokens = FLOAT_BYTES[setting.precision] * setting.batch_tokens
    logits = tokens * family.logits_per_token(shape, setting)
    return tuple(family.parameters(shape, setting)), family.memory(shape, setting, cuda), logits


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
