"""Order: which stacks train first."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from hpxfer.plan.packing import stack_flops
from hpxfer.scaling.shape import Shape
from hpxfer.trial.stack import Stack

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
    near = sorted(stacks, key=lambda stack: (distances.get(stack.shape, 0), -cost[stack.id]))
    longest_first = sorted(cost.values(), reverse=True)
    limit = LONGER * _time(longest_first, workers)
    fillers = [stack for stack in reversed(near) if distances.get(stack.shape, 0) and cost[stack.id] < longest_first[0]]
    num_kept = 0
    while True:
        kept = fillers[:num_kept]
        out = _without(near, kept) + sorted(kept, key=lambda stack: -cost[stack.id])
        if num_kept >= len(fillers) or _time([cost[stack.id] for stack in out], workers) <= limit:
            return out
        num_kept += 1 + num_kept // 8


def _without(stacks: Iterable[Stack], left_out: Iterable[Stack]) -> list[Stack]:
    ids = {stack.id for stack in left_out}
    return [stack for stack in stacks if stack.id not in ids]


def _time(costs: Iterable[float], workers: int) -> float:
    """Return when the last stack ends, if each goes to the first worker that is idle."""
    busy = [0.0] * workers
    for cost in costs:
        heapq.heapreplace(busy, busy[0] + cost)
    return max(busy)
