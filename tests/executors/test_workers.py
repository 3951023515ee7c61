"""Workers: their queue, their memory, how they are asked to stop, and the local executor."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import until_asked
from fixture_types import Capsys, Patch
from hypothesis import given
from hypothesis import strategies as st

from hpxfer.errors import HpxferError
from hpxfer.executors.executor import STOP_S, Placement, once
from hpxfer.executors.local import LocalExecutor
from hpxfer.executors.lost_workers import TRIES, Queue
from hpxfer.executors.ray_worker import Actor
from hpxfer.executors.worker import guarded
from hpxfer.host.interrupts import Interrupted, interrupts
from hpxfer.plan.packing import GPU_SHARE
from hpxfer.testing.executor import FINE, WAITS, ExecutorSuite, Misbehave, tiny_stack
from hpxfer.trial import Setting
from hpxfer.trial.events import Ended, Event, Progress, Started
from hpxfer.trial.process import STOP, StopRequest
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack


class TestLocalExecutor(ExecutorSuite):
    @pytest.fixture
    def executor(self) -> LocalExecutor:
        return LocalExecutor(Placement(workers=2))


@pytest.fixture
def stacks(setting: Setting) -> list[Stack]:
    return [tiny_stack(setting, FINE, size=3, name=name) for name in "abc"]


def take(queue: Queue) -> Stack | None:
    return queue.take_if(lambda stack: True)


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
    out = take(queue)
    assert [queue.ask(1), queue.ask(1)] == [0, 0]
    assert num_asked == 2
    queue.done(out)
    assert queue.ask(2) == queue.num_running == 0
    assert num_asked == 3


def test_a_lost_stack_goes_first_until_its_tries_are_used_up(stacks: list[Stack]) -> None:
    queue = Queue(once(stacks))
    queue.ask(1)
    for left in reversed(range(TRIES)):
        assert take(queue) is stacks[0]
        assert queue.is_last_try(stacks[0]) is (left == 0)
        assert (queue.lost(stacks[0], "signal") is None) is (left > 0)
    assert queue.num_running == 0
    assert list(queue.waiting()) == stacks[1:]


@given(found=st.lists(st.integers(-1, 6), min_size=60, max_size=60))
def test_a_loss_costs_a_try_unless_more_was_reached_than_ever(setting: Setting, found: list[int]) -> None:
    (stack,) = only = [tiny_stack(setting, FINE, size=1)]
    left = iter(found)
    queue = Queue(once(only), lambda _: next(left))
    queue.ask(1)
    losses = 0
    while take(queue) and queue.lost(stack, "signal") is None:
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
    again, turned = (Stack(trials=tuple(trials)) for trials in (stacks[0].trials, reversed(stacks[0].trials)))
    assert stacks[0].id == again.id  # a stack is known by its trials in their order
    assert len({stacks[0].id, stacks[1].id, turned.id}) == 3


@pytest.mark.parametrize(("size", "parts"), [(3, [1, 2]), (1, [1])])
def test_the_last_try_of_a_stack_is_in_halves(setting: Setting, size: int, parts: list[int]) -> None:
    seen: list[int] = []

    def train(stack: Stack) -> Iterator[Event]:
        seen.append(len(stack.trials))
        yield Ended(results=tuple(TrialResult(trial_id=trial.id, status="finished") for trial in stack.trials))

    stack = tiny_stack(setting, FINE, size=size)
    (ended,) = guarded(train, stack, cut=True)
    assert seen == parts
    results = ended.results
    assert [result.trial_id for result in results] == [trial.id for trial in stack.trials]
    assert {result.halvings for result in results} == {len(parts) - 1}


# Fresh pages that a process takes for an array as large as one that it has freed.
FRESH_PAGES = """
import resource
import numpy as np
from hpxfer.executors.worker import keep_memory

if {kept}:
    keep_memory()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(64 * 2**20, dtype=np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


HALVED = [("finished", None, 1), ("finished", None, 2), ("finished", None, 2)]


def fresh_pages(*, kept: bool) -> int:
    """Return how many fresh pages the third array takes."""
    command = [sys.executable, "-c", FRESH_PAGES.format(kept=kept)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_a_worker_keeps_the_memory_that_it_frees() -> None:
    few = 8  # for what else Python does; the array alone has 32 of the largest usual pages
    assert fresh_pages(kept=True) < few
    assert fresh_pages(kept=False) > few  # else the first line would say nothing


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (MemoryError(), HALVED),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 2.00 GiB"), HALVED),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), HALVED),
        (RuntimeError("CUDA error: out of memory"), HALVED),
        (RuntimeError("Triton Error [CUDA]: out of memory"), HALVED),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), HALVED),
        (ValueError("CUDA error: out of memory"), [("failed", "bug", None)] * 3),  # no error of memory
    ],
)
def test_a_stack_whose_memory_runs_out_is_halved_whoever_says_so(
    error: Exception, ends: list[tuple[str, str | None, int | None]], setting: Setting
) -> None:
    def train(stack: Stack) -> Iterator[Event]:
        if len(stack.trials) > 1:
            raise error
        yield Ended(results=tuple(TrialResult(trial_id=trial.id, status="finished") for trial in stack.trials))

    *_, ended = guarded(train, tiny_stack(setting, FINE, size=3))
    assert [(result.status, result.error_kind, result.halvings) for result in ended.results] == ends


def test_a_trial_alone_that_runs_out_of_memory_is_computed_piece_by_piece(setting: Setting) -> None:
    seen: list[tuple[int, bool]] = []

    def train(stack: Stack) -> Iterator[Event]:
        seen.append((stack.pieces, stack.recompute))
        if stack.pieces > 1 or not stack.recompute or len(seen) > 2:
            raise MemoryError
        yield Ended(results=tuple(TrialResult(trial_id=trial.id, status="finished") for trial in stack.trials))

    stack = replace(tiny_stack(setting, FINE, size=1), pieces=4)
    for status in ("finished", "failed"):
        *_, ended = guarded(train, stack)
        assert [result.status for result in ended.results] == [status]
    assert seen == [(4, False), (1, True)] * 2


NAME = "CUBLAS_WORKSPACE_CONFIG"


@pytest.mark.parametrize(("share", "limits"), [(0.5, [(GPU_SHARE / 2, ":4096:8")]), (1.0, []), (0.0, [])])
def test_a_share_of_a_gpu_is_bounded_in_a_process_that_can_still_be_strict(
    share: float, limits: list[tuple[float, str]], monkeypatch: Patch
) -> None:
    """Bounding the memory starts CUDA, after which it is too late to fix cuBLAS's workspace."""
    monkeypatch.setenv(NAME, "")  # so that it is put back
    monkeypatch.setattr(STOP, "look", STOP.look)  # as well: a worker has its process to itself
    monkeypatch.setattr(STOP, "every_s", STOP.every_s)
    monkeypatch.setattr("hpxfer.executors.ray_worker.keep_memory", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    found: list[tuple[float, str]] = []
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda part: found.append((part, os.environ[NAME]))
    )
    Actor(lambda stack: iter(()), None, share)
    assert found == limits


# A worker that never looks whether it is asked to stop, as one within a very long step.
FAR_S = 600.0


def run_until(
    error: BaseException, setting: Setting, folder: Path, stop_s: float, ends_with: type[BaseException] | None = None
) -> float:
    """Return how long a run takes to end whose callback raises, while its worker waits for a file.

    If it `ends_with` another exception, the process is interrupted half a second later.
    """
    began: list[float] = []
    again = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))

    def fail(stack: Stack, event: Event) -> None:
        began.append(time.monotonic())
        if ends_with:
            again.start()
        raise error

    executor, train = LocalExecutor(Placement(workers=1)), Misbehave(str(folder), stop_s=stop_s)
    with pytest.raises(ends_with or type(error)):
        executor.run(once([tiny_stack(setting, WAITS, size=1)]), train, fail)
    return time.monotonic() - began[0]


def test_a_step_that_takes_longer_is_abandoned(setting: Setting, tmp_path: Path) -> None:
    assert 0.2 <= run_until(KeyboardInterrupt(), setting, tmp_path, 0.2) < FAR_S


def test_a_second_interrupt_ends_it_at_once(setting: Setting, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interrupts():
            assert run_until(ValueError(), setting, tmp_path, FAR_S, ends_with=Interrupted) < FAR_S / 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_that_may_not_write_waits_for_nothing(setting: Setting, tmp_path: Path) -> None:
    """Its lease is lost, or its disk is full."""
    assert run_until(HpxferError("the lease was taken over"), setting, tmp_path, FAR_S) < FAR_S / 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_ended_alone_keeps_its_steps(
    number: signal.Signals, setting: Setting, tmp_path: Path, monkeypatch: Patch, capfd: Capsys
) -> None:
    """Slurm can send either signal to every process of a job. Another worker then goes on from the checkpoint."""
    monkeypatch.setenv("PYTHONPATH", str(Path(until_asked.__file__).parent))
    events: list[Event] = []

    def end_the_first(_: Stack, event: Event) -> None:
        events.append(event)
        match events:
            case [Started(pid=pid), Progress()]:
                os.kill(pid, number)

    train = until_asked.UntilAsked(str(tmp_path))
    LocalExecutor(Placement(workers=1)).run(once([tiny_stack(setting, FINE, size=2)]), train, end_the_first)
    assert (tmp_path / until_asked.KEPT).exists()
    assert len([event for event in events if isinstance(event, Started)]) == 2
    ended = events[-1]
    assert {result.status for result in ended.results} == {"finished"}
    assert capfd.readouterr().err == ""


def test_a_worker_looks_now_and_then(monkeypatch: Patch) -> None:
    now, looks, asked = [100.0], [0], [False]
    monkeypatch.setattr("hpxfer.trial.process.time.monotonic", lambda: now[0])

    def look() -> bool:
        looks[0] += 1
        return asked[0]

    stop = StopRequest()
    stop.look = look
    assert [stop.check() for _ in range(5)] == [False] * 5
    assert looks == [1]
    now[0], asked[0] = 100.5, True
    assert stop.check()
    now[0], asked[0] = 200.0, False
    assert stop.check()  # once it was asked to stop, it was asked for good
    assert looks == [2]


def test_a_signal_while_a_worker_looks_is_not_lost() -> None:
    """The answer of a look that began before the signal is that nobody asked."""
    stop = StopRequest()

    def look() -> bool:
        stop.end()
        return False

    stop.look = look
    assert stop.check()
    stop.begin()
    assert stop.is_set, "another stack is not begun either"
    assert STOP_S <= 10.0  # Slurm and Ray jobs wait longer than that before they kill
