"""The peak of what torch allocates on a CPU, counted exactly."""

from __future__ import annotations

from collections.abc import Callable

from torch.autograd.profiler import profile


def allocated_peak(run: Callable[[], object]) -> int:
    """Return the most bytes that torch's CPU allocator had given out at once while `run` ran.

    Every allocation and release is an event of the profiler, those inside of operators and of the backward pass too.
    """
    # This profiler leaves its events raw. That of torch.profiler makes a tree of them, slower than the training.
    with profile(use_kineto=True, profile_memory=True) as found:
        run()
    results = found.kineto_results
    assert results is not None
    events = sorted((event for event in results.events() if event.name() == "[memory]"), key=lambda e: e.start_ns())
    held = most = 0
    for event in events:
        held += event.nbytes()
        most = max(most, held)
    return most
