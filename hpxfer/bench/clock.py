"""Clocks: several jobs are timed in turns, and compared by medians and ratios.

On a CPU, the time of a job is the CPU time of this process. With one thread that is the wall time on an idle machine,
and other processes add nothing to it. On a GPU it is the wall time between two synchronizations.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Times = dict[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is timed. `prepare` runs before every `run` and is not timed. Times are divided by `count`."""

    run: Callable[[], object]
    prepare: Callable[[], object] | None = None
    count: int = 1


def interleaved(jobs: Mapping[str, Job], *, rounds: int, device: torch.device) -> Times:
    """Return name -> seconds per round, divided by the job's count. Every round runs every job once, in turn.

    A first round is not counted: it fills caches and allocators. The order alternates, so that no job always follows
    the same other one.
    """
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds + 1):
        for name in list(jobs) if turn % 2 else list(jobs)[::-1]:
            job = jobs[name]
            if job.prepare is not None:
                job.prepare()
            start = now(device)
            job.run()
            took = now(device) - start
            if turn:
                seconds[name].append(took / job.count)
    return {name: tuple(values) for name, values in seconds.items()}


def now(device: torch.device) -> float:
    """Return seconds on the device's clock, after the GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def median(times: Times, name: str) -> float:
    """Return the median seconds of a job."""
    return statistics.median(times[name])


def ratio(times: Times, slow: str, fast: str) -> float:
    """Return the median over rounds of the time of `slow` over the time of `fast` in the same round."""
    return statistics.median(a / b for a, b in zip(times[slow], times[fast], strict=True))
