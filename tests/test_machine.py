"""What this machine has, as a container sees it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpxfer.machine import gpu_bytes, has_cuda, num_cpus

MANY = 10**6


@pytest.mark.parametrize(
    ("quota", "cpus"), [("max 100000", MANY), ("200000 100000", 2), ("50000 100000", 1), ("odd", MANY), (None, MANY)]
)
def test_the_quota_of_a_container_counts(
    quota: str | None, cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(MANY), raising=False)
    path = tmp_path / "cpu.max"
    if quota is not None:
        path.write_text(quota)
    assert num_cpus(path) == cpus


def test_affinity_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert num_cpus(tmp_path / "none") == 3


def test_what_is_asked_for_wins() -> None:
    assert has_cuda("cuda")
    assert not has_cuda("cpu")


@pytest.mark.parametrize(
    ("answer", "found"), [("143771\n81559\n", 81559 * 2**20), ("", None), ("[N/A]\n", None), (None, None)]
)
def test_the_smallest_gpu_counts(
    answer: str | None, found: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if answer is not None:
        (tmp_path / "answer").write_text(answer)
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f'#!/bin/sh\nwhile read -r line; do echo "$line"; done < {tmp_path / "answer"}\n')
        tool.chmod(0o755)
    assert gpu_bytes() == found
