"""The memory of a worker: what it frees, it has at once when it asks again; where it runs out, stacks are halved."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hpxfer.executors.worker import guarded
from hpxfer.testing.executor import FINE, tiny_stack
from hpxfer.trial import Setting
from hpxfer.trial.events import Ended, Event
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

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
    "error",
    [
        MemoryError(),
        type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_stack_whose_memory_runs_out_is_halved_whoever_says_so(error: Exception, setting: Setting) -> None:
    def train(stack: Stack) -> Iterator[Event]:
        if len(stack.trials) > 1:
            raise error
        yield Ended(results=tuple(TrialResult(trial_id=trial.id, status="finished") for trial in stack.trials))

    *_, ended = guarded(train, tiny_stack(setting, FINE, size=3))
    assert isinstance(ended, Ended)
    results = ended.results
    assert [(result.status, result.halvings) for result in results] == [
        ("finished", 1),
        ("finished", 2),
        ("finished", 2),
    ]


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
        assert isinstance(ended, Ended)
        assert [result.status for result in ended.results] == [status]
    assert seen == [(4, False), (1, True)] * 2


def test_an_error_of_another_kind_that_speaks_of_memory_is_a_bug(setting: Setting) -> None:
    def train(stack: Stack) -> Iterator[Event]:
        raise ValueError("CUDA error: out of memory")

    *_, ended = guarded(train, tiny_stack(setting, FINE, size=2))
    assert isinstance(ended, Ended)
    results = ended.results
    assert [(result.status, result.error_kind) for result in results] == [("failed", "bug")] * 2
