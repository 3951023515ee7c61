"""Graphs: work that is run once to be replayed, on CUDA as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


class Recorder:
    """Captures pieces of work that run one after the other, in one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Callable[[], object], times: int) -> None:
        """Run work so often on a stream of its own: what is made at first use must be there before a capture."""
        here = torch.cuda.current_stream(self._device)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(times):
                work()
        here.wait_stream(side)

    def capture(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Return what work gave, tensors that stay where they are, and what computes them anew from its inputs.

        The work itself is not done yet, only noted down.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = work()
        return out, graph.replay
