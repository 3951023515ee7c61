"""What this machine has, as a container sees it."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
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


def test_what_is_asked_for_wins(tmp_path: Path) -> None:
    assert has_cuda("cuda", tmp_path)
    (tmp_path / "nvidia0").touch()
    assert not has_cuda("cpu", tmp_path)


@pytest.mark.parametrize(
    ("devices", "visible", "torch", "found"),
    [
        (["nvidia0"], None, "2.13.0", True),
        (["nvidia3", "nvidiactl"], "GPU-1", "2.13.0+cu130", True),
        (["nvidiactl", "nvidia-uvm", "null"], None, "2.13.0", False),
        ([], None, "2.13.0", False),
        (["nvidia0"], "", "2.13.0", False),
        (["nvidia0"], "-1", "2.13.0", False),
        (["nvidia0"], None, "2.13.0+cpu", False),
    ],
)
def test_a_gpu_counts_if_torch_will_see_it(
    devices: list[str], visible: str | None, torch: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in devices:
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("hpxfer.host.machine.version", lambda name: torch)
    assert has_cuda("auto", tmp_path) is found


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


@dataclass(frozen=True)
class Memory:
    total: int


def refuse() -> Memory:
    raise FileNotFoundError("/proc/meminfo")


@pytest.mark.parametrize(
    ("memory", "limit", "found"),
    [
        (2**21, "max\n", 2**21),
        (2**21, "1048576\n", 2**20),
        (2**20, str(2**40), 2**20),
        (None, "odd", None),
        (None, None, None),
        (2**21, None, 2**21),  # macOS: no cgroups
    ],
)
def test_memory_is_the_machines_or_its_containers(
    memory: int | None, limit: str | None, found: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", refuse if memory is None else partial(Memory, memory))
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    assert host_bytes(tmp_path / "memory.max") == found


def test_the_memory_of_this_machine_is_known(tmp_path: Path) -> None:
    found = host_bytes(tmp_path / "none")
    assert found is not None
    assert found > 2**28


def test_on_macos_the_cpu_is_named_by_sysctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cpu_name().endswith(" (arm64)")
    tool = tmp_path / "sysctl"
    tool.write_text('#!/bin/sh\n[ "$2" = machdep.cpu.brand_string ] && echo "Apple M4"\n')
    tool.chmod(0o755)
    assert cpu_name() == "Apple M4 (arm64)"


def test_the_gpus_name_is_the_drivers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_name() is None
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "NVIDIA H200"\necho "NVIDIA L4"\n')
    tool.chmod(0o755)
    assert gpu_name() == "NVIDIA H200"
