"""The peak of what torch allocates on a CPU, counted exactly."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def allocated_peak(run: Callable[[], object]) -> int:
    """Return the most bytes that torch's CPU allocator had given out at once while `run` ran.

    Every allocation and release is an event of the profiler, those inside of operators and of the backward pass too.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        run()
    results = found.profiler.kineto_results  # type: ignore[union-attr]
    events = sorted((event for event in results.events() if event.name() == "[memory]"), key=lambda e: e.start_ns())
    held = most = 0
    for event in events:
        held += event.nbytes()
        most = max(most, held)
    return most
