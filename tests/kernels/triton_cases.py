"""What the tests of Triton kernels share: the device, and how a kernel is checked.

With a GPU the kernels are compiled and run there, else in Triton's interpreter on the CPU, which needs tiny shapes and
cannot round to bfloat16.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TRITON = Backend(name="triton", reason="a test", strict=True)
BACKENDS = pytest.mark.parametrize("backend", [TORCH, TRITON], ids=["torch", "triton"])
HALVES = [torch.float16, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float16]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)

T = TypeVar("T")


def normal(*size: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return normal numbers on DEVICE, the same on every machine."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def integers(high: int, *size: int, seed: int = 0) -> Tensor:
    """Return integers in [0, high) on DEVICE, the same on every machine."""
    return torch.randint(high, size, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def captured(step: Callable[[], T]) -> tuple[T, torch.cuda.CUDAGraph]:
    """Return what a step returns, and the CUDA graph that computes it anew in place. A step that waits fails."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), warnings.catch_warnings():
        # The leaves belong to another stream, and the mode is a prototype: torch warns of both.
        warnings.filterwarnings("ignore", "The AccumulateGrad node's stream|Synchronization debug mode")
        step()
        try:
            torch.cuda.set_sync_debug_mode("error")
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = step()
    return replayed, graph
