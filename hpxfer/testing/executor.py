"""The conformance suite of executors. Derive a pytest class from `ExecutorSuite` and give it `executor`.

class TestMine(ExecutorSuite):
    @pytest.fixture
    def executor(self):
        return MyExecutor(workers=2)
"""

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

from hpxfer.errors import HpxferError
from hpxfer.executors.executor import TRIES, Executor, More, once
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting, Trial
from hpxfer.trial.events import Ended, Event, Progress, Started
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

# What a stack of the suite does. It is the seed of its trials.
FINE, RAISES, BAD_INPUT, LOST_ONCE, LOST_ALWAYS, TOO_BIG, TOO_BIG_THEN_LOST, TOO_BIG_ALONE, WAITS = range(9)
GO = "go"  # a file in the suite's folder that WAITS waits for
_WAIT_S = 120.0


@dataclass(frozen=True)
class Misbehave:
    """A stand-in for training that does what the stack's seed says and leaves a file for every call."""

    folder: str

    def __call__(self, stack: Stack) -> Iterator[Event]:
        act = stack.trials[0].seed
        earlier = len(list(Path(self.folder).glob(f"{act}-*")))
        (Path(self.folder) / f"{act}-{uuid.uuid4().hex}").touch()
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
        if act == WAITS:
            _wait_for(Path(self.folder) / GO)
        yield Ended(results=tuple(_finished(trial, stack) for trial in stack.trials))


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.01)


def _finished(trial: Trial, stack: Stack) -> TrialResult:
    return TrialResult(trial_id=trial.id, status="finished", stack_size=len(stack.trials))


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
        if not any(seen_stack.id == stack.id for seen_stack, _ in self.events) and not isinstance(event, Ended):
            assert isinstance(event, Started), "Started is the first event of a stack"
        self.events.append((stack, event))
        if isinstance(event, Ended):
            assert [result.trial_id for result in event.results] == [trial.id for trial in stack.trials]
            self.ended[stack.id] = stack

    @property
    def results(self) -> dict[str, TrialResult]:
        """The results by trial id."""
        ends = (event for _, event in self.events if isinstance(event, Ended))
        return {result.trial_id: result for ended in ends for result in ended.results}

    def starts(self, stack: Stack) -> list[Started]:
        """Return the starts of a stack: one event per try."""
        return [event for seen_stack, event in self.events if seen_stack.id == stack.id and isinstance(event, Started)]


def collect(executor: Executor, stacks: Sequence[Stack] | More, train: Misbehave) -> Reported:
    """Return what a run reports."""
    seen = Reported()
    executor.run(stacks if callable(stacks) else once(stacks), train, seen.on_event)
    return seen


class ExecutorSuite:
    """Derive from it, and define the fixtures `executor` (of two workers) and `setting` (any; nothing is trained)."""

    def test_every_stack_ends_exactly_once_however_it_behaves(
        self, executor: Executor, setting: Setting, tmp_path: Path
    ) -> None:
        """In a run of well-behaved and misbehaving stacks, nothing is lost, doubled, or retried without need."""
        acts = (FINE, RAISES, BAD_INPUT, LOST_ONCE, LOST_ALWAYS, TOO_BIG, TOO_BIG_THEN_LOST, TOO_BIG_ALONE)
        stacks = [tiny_stack(setting, act, size=2) for act in acts]
        seen = collect(executor, stacks, Misbehave(str(tmp_path)))
        results = seen.results
        assert set(seen.ended) == {stack.id for stack in stacks}
        outcome = {act: {(results[t.id].status, results[t.id].error_kind) for t in stacks[act].trials} for act in acts}
        assert outcome == {
            FINE: {("finished", None)},
            RAISES: {("failed", "bug")},
            BAD_INPUT: {("failed", "input")},
            LOST_ONCE: {("finished", None)},
            LOST_ALWAYS: {("failed", "lost")},
            TOO_BIG: {("finished", None)},
            TOO_BIG_THEN_LOST: {("finished", None)},
            TOO_BIG_ALONE: {("failed", "memory")},
        }
        calls = Counter(int(path.name.partition("-")[0]) for path in tmp_path.iterdir())
        assert calls == {
            FINE: 1, RAISES: 1, BAD_INPUT: 1, LOST_ONCE: 2, LOST_ALWAYS: TRIES, TOO_BIG: 3, TOO_BIG_THEN_LOST: 6,
            TOO_BIG_ALONE: 5,  # whole, and each half once more in the way that needs the least memory
        }  # fmt: skip
        starts = {act: len(seen.starts(stacks[act])) for act in acts}
        assert starts == dict.fromkeys(acts, 1) | {LOST_ONCE: 2, LOST_ALWAYS: TRIES, TOO_BIG_THEN_LOST: 2}
        error = results[f"{RAISES}-0"].error or ""
        assert "Traceback" in error
        assert "ZeroDivisionError: a bug in the user's code" in error
        assert results[f"{BAD_INPUT}-0"].error == "the data is not on this machine"
        assert f"the worker was lost {TRIES} times" in (results[f"{LOST_ALWAYS}-0"].error or "")
        assert {results[f"{TOO_BIG}-{k}"].stack_size for k in range(2)} == {1}
        assert {results[f"{TOO_BIG}-{k}"].halvings for k in range(2)} == {1}
        assert {results[f"{FINE}-{k}"].halvings for k in range(2)} == {0}
        assert (stacks[FINE], Progress(tokens=1, step=1, losses=(2.0, 2.0))) in seen.events

    def test_idle_workers_are_fed_as_results_come(self, executor: Executor, setting: Setting, tmp_path: Path) -> None:
        """A stack that depends on the results of another is asked for after them, while a third is running."""
        held, first = (tiny_stack(setting, act, size=1) for act in (WAITS, FINE))
        second, third = (tiny_stack(setting, FINE, size=1, name=name) for name in ("b", "c"))
        seen = Reported()
        asked: list[int] = []  # the number of stacks that had ended, at each call

        def more() -> Sequence[Stack]:
            assert threading.get_ident() == seen.thread, "more must be called in the caller's thread"
            asked.append(len(seen.ended))
            if third.id in seen.ended:
                (tmp_path / GO).touch()
            return {1: (held,), 2: (first,), 3: (second, third)}.get(len(asked), ())

        executor.run(more, Misbehave(str(tmp_path)), seen.on_event)
        assert list(seen.ended) == [first.id, second.id, third.id, held.id]
        assert asked == [0, 0, 1, 3, 4]

    def test_stacks_begin_in_the_order_that_they_are_given_in(
        self, executor: Executor, setting: Setting, tmp_path: Path
    ) -> None:
        """With two workers, a stack begins when at most one of those before it has not ended."""
        stacks = [tiny_stack(setting, FINE, size=1, name=name) for name in "abcdef"]
        place = {stack.id: index for index, stack in enumerate(stacks)}
        seen, early = Reported(), []

        def take(stack: Stack, event: Event) -> None:
            if isinstance(event, Started) and place[stack.id] > len(seen.ended) + 1:
                early.append(place[stack.id])
            seen.on_event(stack, event)

        executor.run(once(stacks), Misbehave(str(tmp_path)), take)
        assert len(seen.ended) == len(stacks)
        assert early == []

    def test_a_lost_worker_is_noticed_while_others_are_idle(
        self, executor: Executor, setting: Setting, tmp_path: Path
    ) -> None:
        """The stack is tried again although nothing else happens and no stacks are left."""
        stack = tiny_stack(setting, LOST_ONCE, size=1)
        seen = collect(executor, [stack], Misbehave(str(tmp_path)))
        assert seen.results[f"{LOST_ONCE}-0"].status == "finished"
        assert len({(start.host, start.pid) for start in seen.starts(stack)}) == 2

    def test_an_exception_in_the_callback_ends_the_run_and_a_new_one_works(
        self, executor: Executor, setting: Setting, tmp_path: Path
    ) -> None:
        """Like Ctrl-C or a full disk, the exception reaches the caller, and the next run works."""
        stacks = [tiny_stack(setting, FINE, size=1)]

        def interrupt(stack: Stack, event: Event) -> None:
            raise KeyboardInterrupt

        try:
            executor.run(once(stacks), Misbehave(str(tmp_path)), interrupt)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the exception must reach the caller")
        assert set(collect(executor, stacks, Misbehave(str(tmp_path))).ended) == {stacks[0].id}

    def test_nothing_to_do_is_done_at_once(self, executor: Executor, tmp_path: Path) -> None:
        """Without stacks there are no events."""
        assert collect(executor, [], Misbehave(str(tmp_path))).events == []
