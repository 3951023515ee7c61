"""What a Ray worker does to its process before it trains; Ray itself is not started."""

from __future__ import annotations

import os

import pytest
import torch

from hpxfer.executors.ray_worker import Worker
from hpxfer.executors.worker import STOP
from hpxfer.plan.packing import GPU_SHARE

NAME = "CUBLAS_WORKSPACE_CONFIG"


@pytest.mark.parametrize(("share", "limits"), [(0.5, [(GPU_SHARE / 2, ":4096:8")]), (1.0, []), (0.0, [])])
def test_a_share_of_a_gpu_is_bounded_in_a_process_that_can_still_be_strict(
    share: float, limits: list[tuple[float, str]], monkeypatch: pytest.MonkeyPatch
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
    Worker(lambda stack: iter(()), None, share)
    assert found == limits
