"""The conformance suite of executors. Derive a pytest class from `ExecutorSuite`, and define `executor`."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from hpxfer.errors import HpxferError
from hpxfer.executors import STOP_S, TRIES, Executor, More, Trains, once
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Ended, Event, Progress, Setting, Stack, Started, Trial, TrialResult

# What a stack of the suite does. It is the seed of its trials.
FINE, RAISES, BAD_INPUT, LOST_ONCE, LOST_ALWAYS, TOO_BIG, TOO_BIG_THEN_LOST, TOO_BIG_ALONE, WAITS = range(9)
# Of each act but WAITS: how its trials end, how often training is called, and how often the stack is started.
EXPECTED = {
    FINE: (("finished", None), 1, 1),
    RAISES: (("failed", "bug"), 1, 1),
    BAD_INPUT: (("failed", "input"), 1, 1),
    LOST_ONCE: (("finished", None), 2, 2),
    LOST_ALWAYS: (("failed", "lost"), TRIES, TRIES),
    TOO_BIG: (("finished", None), 3, 1),
    TOO_BIG_THEN_LOST: (("finished", None), 6, 2),
    TOO_BIG_ALONE: (("failed", "memory"), 5, 1),  # whole, and each half once more in the way of least memory
}
GO = "go"  # a file in the suite's folder that WAITS waits for
_WAIT_S = 120.0


@dataclass(frozen=True)
class Misbehave(Trains):
    """A stand-in for training that does what the stack's seed says and leaves a file for every call."""

    folder: str
    stop_s: float = STOP_S

    def __call__(self, stack: Stack) -> Iterator[Event]:
        act, folder = stack.trials[0].seed, Path(self.folder)
        earlier = len(list(folder.glob(f"{act}-*")))
        (folder / f"{act}-{uuid.uuid4().hex}").touch()
        yield Progress(tokens=1, step=1, losses=(2.0,) * len(stack.trials))
        if act == RAISES:
            raise ZeroDivisionError("a bug in the user's code")
        if act == BAD_INPUT:
            raise HpxferError("the data is not on this machine")
        if act == LOST_ALWAYS or (act == LOST_ONCE and not earlier):
            os.kill(os.getpid(), signal.SIGKILL)
        if act == TOO_BIG_ALONE or (act in (TOO_BIG, TOO_BIG_THEN_LOST) and len(stack.trials) > 1):
            raise MemoryError
        if act == TOO_BIG_THEN_LOST and earlier == 2:  # whole, first half, and now the second half
            os.kill(os.getpid(), signal.SIGKILL)
        deadline = time.monotonic() + _WAIT_S
        while act == WAITS and not (folder / GO).exists():
            assert time.monotonic() < deadline, f"{GO} did not come"
            time.sleep(0.01)
        ends = (TrialResult(trial_id=one.id, status="finished", stack_size=len(stack.trials)) for one in stack.trials)
        yield Ended(results=tuple(ends))


def tiny_stack(setting: Setting, seed: int, size: int, name: str = "") -> Stack:
    """Return a stack of trials of the smallest shape. Their ids have the form SEED NAME-INDEX."""
    shape = Shape(width=8, depth=1, num_experts=2, num_active=1, expert_width=8, head_dim=8)
    trial = Trial(id="", setting=setting, shape=shape, base=shape, parameterization=None, hps=HPs(lr=0.01), seed=seed)
    return Stack(trials=tuple(replace(trial, id=f"{seed}{name}-{k}") for k in range(size)))


@dataclass
class Reported:
    """What an executor has reported. `on_event` checks the executor's promises."""

    thread: int = field(default_factory=threading.get_ident)
    events: list[tuple[Stack, Event]] = field(default_factory=list)
    ended: dict[str, Stack] = field(default_factory=dict)

    def on_event(self, stack: Stack, event: Event) -> None:
        """Take note of an event."""
        assert threading.get_ident() == self.thread, "on_event must be called in the caller's thread"
        assert stack.id not in self.ended, "nothing comes after the results"
        if not any(seen.id == stack.id for seen, _ in self.events):
            assert isinstance(event, Started | Ended), "Started is the first event of a stack"
        self.events.append((stack, event))
        if isinstance(event, Ended):
            assert [result.trial_id for result in event.results] == [trial.id for trial in stack.trials]
            self.ended[stack.id] = stack

    @property
    def results(self) -> dict[str, TrialResult]:
        """The results by trial id."""
        return {end.trial_id: end for _, event in self.events if isinstance(event, Ended) for end in event.results}

    def starts(self, stack: Stack) -> list[Started]:
        """Return the starts of a stack: one event per try."""
        return [event for seen, event in self.events if seen.id == stack.id and isinstance(event, Started)]


def collect(executor: Executor, stacks: Sequence[Stack] | More, train: Misbehave) -> Reported:
    """Return what a run reports."""
    seen = Reported()
    executor.run(stacks if callable(stacks) else once(stacks), train, seen.on_event)
    return seen


class ExecutorSuite:
    """Derive from it, and define the fixtures `executor` (of two workers) and `setting` (any; nothing is trained)."""

    @pytest.fixture
    def train(self, tmp_path: Path) -> Misbehave:
        return Misbehave(str(tmp_path))

    def test_every_stack_ends_exactly_once_however_it_behaves(
        self, executor: Executor, setting: Setting, train: Misbehave, tmp_path: Path
    ) -> None:
        """In a run of well-behaved and misbehaving stacks, nothing is lost, doubled, or retried without need."""
        stacks = [tiny_stack(setting, act, size=2) for act in EXPECTED]
        seen = collect(executor, stacks, train)
        results, calls = seen.results, Counter(int(path.name.partition("-")[0]) for path in tmp_path.iterdir())
        assert set(seen.ended) == {stack.id for stack in stacks}
        for act, (end, num_calls, num_starts) in EXPECTED.items():
            assert {(results[f"{act}-{k}"].status, results[f"{act}-{k}"].error_kind) for k in range(2)} == {end}, act
            assert (calls[act], len(seen.starts(stacks[act]))) == (num_calls, num_starts), act
        error = results[f"{RAISES}-0"].error or ""
        assert "Traceback" in error
        assert "ZeroDivisionError: a bug in the user's code" in error
        assert results[f"{BAD_INPUT}-0"].error == "the data is not on this machine"
        assert f"the worker was lost {TRIES} times" in (results[f"{LOST_ALWAYS}-0"].error or "")
        for act, found in ((TOO_BIG, (1, 1)), (FINE, (2, 0))):
            assert {(results[f"{act}-{k}"].stack_size, results[f"{act}-{k}"].halvings) for k in range(2)} == {found}
        assert (stacks[FINE], Progress(tokens=1, step=1, losses=(2.0, 2.0))) in seen.events

    def test_idle_workers_are_fed_as_results_come(
        self, executor: Executor, setting: Setting, train: Misbehave, tmp_path: Path
    ) -> None:
        """A stack that depends on the results of another is asked for after them, while a third is running."""
        held, first = (tiny_stack(setting, act, size=1) for act in (WAITS, FINE))
        second, third = (tiny_stack(setting, FINE, size=1, name=name) for name in ("b", "c"))
        seen, asked = Reported(), list[int]()  # the number of stacks that had ended, at each call

        def more() -> Sequence[Stack]:
            assert threading.get_ident() == seen.thread, "more must be called in the caller's thread"
            asked.append(len(seen.ended))
            if third.id in seen.ended:
                (tmp_path / GO).touch()
            return {1: (held,), 2: (first,), 3: (second, third)}.get(len(asked), ())

        executor.run(more, train, seen.on_event)
        assert list(seen.ended) == [first.id, second.id, third.id, held.id]
        assert asked == [0, 0, 1, 3, 4]

    def test_stacks_begin_in_the_order_that_they_are_given_in(
        self, executor: Executor, setting: Setting, train: Misbehave
    ) -> None:
        """With two workers, a stack begins when at most one of those before it has not ended."""
        stacks = [tiny_stack(setting, FINE, size=1, name=name) for name in "abcdef"]
        place = {stack.id: index for index, stack in enumerate(stacks)}
        seen = Reported()

        def take(stack: Stack, event: Event) -> None:
            assert not isinstance(event, Started) or place[stack.id] <= len(seen.ended) + 1, "a stack began early"
            seen.on_event(stack, event)

        executor.run(once(stacks), train, take)
        assert len(seen.ended) == len(stacks)

    def test_a_lost_worker_is_noticed_while_others_are_idle(
        self, executor: Executor, setting: Setting, train: Misbehave
    ) -> None:
        """The stack is tried again although nothing else happens and no stacks are left."""
        stack = tiny_stack(setting, LOST_ONCE, size=1)
        seen = collect(executor, [stack], train)
        assert seen.results[f"{LOST_ONCE}-0"].status == "finished"
        assert len({(start.host, start.pid) for start in seen.starts(stack)}) == 2

    def test_an_exception_in_the_callback_ends_the_run_and_a_new_one_works(
        self, executor: Executor, setting: Setting, train: Misbehave
    ) -> None:
        """Like Ctrl-C or a full disk, the exception reaches the caller, and the next run works."""
        stacks = [tiny_stack(setting, FINE, size=1)]

        def interrupt(stack: Stack, event: Event) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            executor.run(once(stacks), train, interrupt)
        assert set(collect(executor, stacks, train).ended) == {stacks[0].id}

    def test_nothing_to_do_is_done_at_once(self, executor: Executor, train: Misbehave) -> None:
        """Without stacks there are no events."""
        assert collect(executor, [], train).events == []
