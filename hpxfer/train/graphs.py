"""CUDA graphs: pieces of work that are captured once and replayed at each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


class GraphCapture:
    """Captures pieces of work that run one after the other, in one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Callable[[], object], times: int) -> None:
        """Run work `times` times on its own stream. What is made at first use must exist before a capture."""
        current = torch.cuda.current_stream(self._device)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(times):
                work()
        current.wait_stream(side)

    def capture(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Return what `work` returned, and a function that computes it again in place, from the same inputs.

        The work is only recorded here. Call the function to do it.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = work()
        return out, graph.replay
