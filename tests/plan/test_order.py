"""The order of stacks: near the base first, and still an even end."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tiny_trials import BASE, SETTING, trial

from hpxfer.plan.order import LONGER, nearest_first
from hpxfer.plan.packing import stack_flops
from hpxfer.trial.stack import Stack

# Distances from the base; a farther shape is deeper, and so costs more.
SHAPES = [replace(BASE, depth=2 * 4**distance) for distance in range(4)]
DISTANCES = {shape: distance for distance, shape in enumerate(SHAPES)}


def stacks_of(counts: Sequence[int]) -> list[Stack]:
    """Return as many stacks of one trial as each shape has in `counts`, the largest shapes first."""
    found = [trial(SETTING, shape, "sp") for shape, count in zip(SHAPES, counts, strict=True) for _ in range(count)]
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
    assert [stack.shape for stack in order[: counts[0]]] == [SHAPES[0]] * counts[0]
    costliest_first = sorted(stacks, key=stack_flops, reverse=True)
    base, others = costliest_first[-counts[0] :], costliest_first[: -counts[0]]
    # The base cannot fill a gap at the end, as it goes first.
    most = max(LONGER * ends(costliest_first, workers), ends([*base, *others], workers))
    assert ends(order, workers) <= most * (1 + 1e-9)


def test_one_worker_takes_the_shapes_by_their_distance() -> None:
    distances = [DISTANCES[stack.shape] for stack in nearest_first(stacks_of([2, 3, 3, 2]), DISTANCES, 1)]
    assert distances == sorted(distances)


def test_few_stacks_are_kept_back_and_these_are_far_ones() -> None:
    order = [DISTANCES[stack.shape] for stack in nearest_first(stacks_of([2, 4, 12, 3]), DISTANCES, 2)]
    assert order[:6] == [0, 0, 1, 1, 1, 1]
    assert order[-1] == 2
