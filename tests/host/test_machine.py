"""What this machine has, as a container sees it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpxfer.host.machine import cpu_name, gpu_bytes, gpu_name, has_cuda, host_bytes, num_cpus

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


def test_the_cpus_name_is_the_kernels(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nmodel name\t: Chip 9000 @ 3GHz\nflags : a\nmodel name\t: another\n")
    assert cpu_name(path).startswith("Chip 9000 @ 3GHz (")
    assert cpu_name(tmp_path / "none") != ""


@pytest.mark.parametrize(
    ("memory", "limit", "found"),
    [
        ("MemTotal:  2048 kB\nMemFree: 1 kB\n", "max\n", 2048 * 1024),
        ("MemTotal:  2048 kB\n", "1048576\n", 2**20),
        ("MemTotal:  1024 kB\n", str(2**40), 2**20),
        ("odd", "odd", None),
        (None, None, None),
    ],
)
def test_memory_is_the_machines_or_its_containers(
    memory: str | None, limit: str | None, found: int | None, tmp_path: Path
) -> None:
    for name, text in (("meminfo", memory), ("memory.max", limit)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert host_bytes(tmp_path / "meminfo", tmp_path / "memory.max") == found


def test_the_gpus_name_is_the_drivers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_name() is None
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "NVIDIA H200"\necho "NVIDIA L4"\n')
    tool.chmod(0o755)
    assert gpu_name() == "NVIDIA H200"
