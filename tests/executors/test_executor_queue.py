"""The queue of executors and what a worker does with a last try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpxfer.executors.executor import TRIES, once
from hpxfer.executors.queue import Queue
from hpxfer.executors.worker import guarded
from hpxfer.testing.executor import FINE, tiny_stack
from hpxfer.trial import Setting
from hpxfer.trial.events import Ended, Event, Started
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack


@pytest.fixture
def stacks(setting: Setting) -> list[Stack]:
    return [tiny_stack(setting, FINE, size=3, name=name) for name in "abc"]


def test_it_asks_when_nothing_waits_and_again_only_after_something_was_done(stacks: list[Stack]) -> None:
    num_asked = 0

    def more() -> Sequence[Stack]:
        nonlocal num_asked
        num_asked += 1
        return [stacks[0]] if num_asked == 1 else []

    queue = Queue(more)
    assert queue.ask(0) == 0
    assert [queue.ask(2), queue.ask(2)] == [1, 1]
    assert num_asked == 1
    out = queue.take()
    assert [queue.ask(1), queue.ask(1)] == [0, 0]
    assert num_asked == 2
    queue.done(out)
    assert queue.ask(2) == queue.num_running == 0
    assert num_asked == 3


def test_a_lost_stack_goes_first_until_its_tries_are_used_up(stacks: list[Stack]) -> None:
    queue = Queue(once(stacks))
    queue.ask(1)
    for left in reversed(range(TRIES)):
        assert queue.take() is stacks[0]
        assert queue.is_last_try(stacks[0]) is (left == 0)
        assert queue.lost(stacks[0]) is (left > 0)
    assert queue.num_running == 0
    assert list(queue.waiting()) == stacks[1:]


@given(found=st.lists(st.integers(-1, 6), min_size=60, max_size=60))
def test_a_loss_costs_a_try_unless_more_was_reached_than_ever(setting: Setting, found: list[int]) -> None:
    (stack,) = only = [tiny_stack(setting, FINE, size=1)]
    left = iter(found)
    queue = Queue(once(only), lambda _: next(left))
    queue.ask(1)
    losses = 0
    while queue.take() and queue.lost(stack):
        losses += 1
    # By hand: the first number is that before the first try.
    best, free, cost = found[0], 0, 0
    for number in found[1 : losses + 2]:
        free, cost, best = (free + 1, cost, number) if number > best else (free, cost + 1, best)
    assert cost == TRIES
    assert losses + 1 == free + TRIES <= 7 + TRIES  # no number beyond 6: it ends
    assert queue.num_running == 0


def test_the_first_stack_that_fits_is_taken_out_of_the_line(stacks: list[Stack]) -> None:
    queue = Queue(once(stacks))
    queue.ask(1)
    assert queue.take_if(lambda stack: stack is stacks[1]) is stacks[1]
    assert queue.take_if(lambda stack: stack is stacks[1]) is None
    assert queue.num_running == 1
    assert list(queue.waiting()) == [stacks[0], stacks[2]]


@pytest.mark.parametrize(("size", "parts"), [(3, [1, 2]), (1, [1])])
def test_the_last_try_of_a_stack_is_in_halves(setting: Setting, size: int, parts: list[int]) -> None:
    seen: list[int] = []

    def train(stack: Stack) -> Iterator[Event]:
        seen.append(len(stack.trials))
        yield Ended(results=tuple(TrialResult(trial_id=trial.id, status="finished") for trial in stack.trials))

    stack = tiny_stack(setting, FINE, size=size)
    started, ended = guarded(train, stack, cut=True)
    assert isinstance(started, Started)
    assert seen == parts
    assert isinstance(ended, Ended)
    results = ended.results
    assert [result.trial_id for result in results] == [trial.id for trial in stack.trials]
    assert {result.halvings for result in results} == {len(parts) - 1}


def test_a_stack_is_known_by_its_trials_in_their_order(stacks: list[Stack]) -> None:
    again = Stack(trials=tuple(stacks[0].trials))
    turned = Stack(trials=tuple(reversed(stacks[0].trials)))
    assert stacks[0].id == again.id
    assert len({stacks[0].id, stacks[1].id, turned.id}) == 3
