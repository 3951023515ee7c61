"""The conformance suite of executors. Derive a pytest class from `ExecutorSuite` and give it `executor`.

class TestMine(ExecutorSuite):
    @pytest.fixture
    def executor(self):
        return MyExecutor()
"""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.executors.executor import TRIES, Executor
from hpxfer.hps import HPs
from hpxfer.result import TrialResult
from hpxfer.shape import Shape
from hpxfer.stack import Stack
from hpxfer.train.event import Event, Progress
from hpxfer.trial import Setting, Trial

# What a stack of the suite does, by the seed of its trials.
FINE, RAISES, BAD_INPUT, LOST_ONCE, LOST_ALWAYS, TOO_BIG, TOO_BIG_THEN_LOST = range(7)


@dataclass(frozen=True)
class Misbehave:
    """A stand-in for training that does what the stack's seed says and leaves a file for every call."""

    folder: str

    def __call__(self, stack: Stack) -> Iterator[Event]:
        act = stack.trials[0].seed
        earlier = len(list(Path(self.folder).glob(f"{act}-*")))
        (Path(self.folder) / f"{act}-{uuid.uuid4().hex}").touch()
        yield Progress(tokens=1)
        if act == RAISES:
            raise ZeroDivisionError("a bug in the user's code")
        if act == BAD_INPUT:
            raise HpxferError("the data is not on this machine")
        if act == LOST_ALWAYS or (act == LOST_ONCE and not earlier):
            os.kill(os.getpid(), signal.SIGKILL)
        if act in (TOO_BIG, TOO_BIG_THEN_LOST) and len(stack.trials) > 1:
            raise MemoryError
        if act == TOO_BIG_THEN_LOST and earlier == 2:  # whole, first half, and now the second half
            os.kill(os.getpid(), signal.SIGKILL)
        yield tuple(_finished(trial, stack) for trial in stack.trials)


def _finished(trial: Trial, stack: Stack) -> TrialResult:
    return TrialResult(trial_id=trial.id, status="finished", stack_size=len(stack.trials))


def tiny_stack(setting: Setting, seed: int, size: int) -> Stack:
    """Return a stack of trials of the smallest shape; their ids say seed and place."""
    shape = Shape(width=8, depth=1, num_experts=2, num_active=1, expert_width=8, head_dim=8)
    trial = Trial(id="", setting=setting, shape=shape, base=shape, parameterization=None, hps=HPs(lr=0.01), seed=seed)
    return Stack(trials=tuple(replace(trial, id=f"{seed}-{k}") for k in range(size)))


def collect(executor: Executor, stacks: Sequence[Stack], train: Misbehave) -> list[Event]:
    """Return every event of a run; asserts that they come in this thread."""
    events: list[Event] = []
    here = threading.get_ident()

    def take(event: Event) -> None:
        assert threading.get_ident() == here, "on_event must be called in the caller's thread"
        events.append(event)

    executor.run(stacks, train, take)
    return events


class ExecutorSuite:
    """Derive from it, and define the fixtures `executor` and `setting` (any Setting; nothing is trained)."""

    def test_every_stack_ends_exactly_once_however_it_behaves(
        self, executor: Executor, setting: Setting, tmp_path: Path
    ) -> None:
        """One run of well-behaved and misbehaving stacks: nothing is lost, doubled, or retried without need."""
        acts = (FINE, RAISES, BAD_INPUT, LOST_ONCE, LOST_ALWAYS, TOO_BIG, TOO_BIG_THEN_LOST)
        stacks = [tiny_stack(setting, act, size=2) for act in acts]
        events = collect(executor, stacks, Misbehave(str(tmp_path)))
        results = {one.trial_id: one for event in events if isinstance(event, tuple) for one in event}
        counts = Counter(one.trial_id for event in events if isinstance(event, tuple) for one in event)
        assert counts == Counter(trial.id for stack in stacks for trial in stack.trials)
        status = {act: {results[trial.id].status for trial in stacks[act].trials} for act in acts}
        assert status == {
            FINE: {"finished"},
            RAISES: {"failed"},
            BAD_INPUT: {"failed"},
            LOST_ONCE: {"finished"},
            LOST_ALWAYS: {"failed"},
            TOO_BIG: {"finished"},
            TOO_BIG_THEN_LOST: {"finished"},
        }
        calls = Counter(int(path.name.partition("-")[0]) for path in tmp_path.iterdir())
        assert calls == {
            FINE: 1, RAISES: 1, BAD_INPUT: 1, LOST_ONCE: 2, LOST_ALWAYS: TRIES, TOO_BIG: 3, TOO_BIG_THEN_LOST: 6
        }  # fmt: skip
        error = results[f"{RAISES}-0"].error or ""
        assert "Traceback" in error
        assert "ZeroDivisionError: a bug in the user's code" in error
        assert results[f"{BAD_INPUT}-0"].error == "the data is not on this machine"
        assert f"the worker was lost {TRIES} times" in (results[f"{LOST_ALWAYS}-0"].error or "")
        assert {results[f"{TOO_BIG}-{k}"].stack_size for k in range(2)} == {1}
        assert {results[f"{TOO_BIG}-{k}"].halvings for k in range(2)} == {1}
        assert {results[f"{FINE}-{k}"].halvings for k in range(2)} == {0}
        assert any(isinstance(event, Progress) for event in events)

    def test_an_exception_in_the_callback_ends_the_run_and_a_new_one_works(
        self, executor: Executor, setting: Setting, tmp_path: Path
    ) -> None:
        """As Ctrl-C does, or a full disk: it reaches the caller, and leaves nothing that hinders the next run."""
        stacks = [tiny_stack(setting, FINE, size=1)]

        def interrupt(event: Event) -> None:
            raise KeyboardInterrupt

        try:
            executor.run(stacks, Misbehave(str(tmp_path)), interrupt)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the exception must reach the caller")
        events = collect(executor, stacks, Misbehave(str(tmp_path)))
        assert [len(event) for event in events if isinstance(event, tuple)] == [1]

    def test_nothing_to_do_is_done_at_once(self, executor: Executor, tmp_path: Path) -> None:
        """No stacks, no events."""
        assert collect(executor, [], Misbehave(str(tmp_path))) == []
