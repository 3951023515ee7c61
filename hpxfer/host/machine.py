"""What this machine has, looked up without importing torch."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MEMORY = Path("/proc/meminfo")
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def num_cpus(quota_file: Path = _QUOTA) -> int:
    """Return the CPUs that this process may use: its affinity, and the quota of its container (cgroup v2)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))


def cpu_name(info: Path = _CPU_INFO) -> str:
    """Return the CPU's model as the kernel names it, or the architecture where it names none."""
    try:
        lines = info.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(named, platform.processor() or 'CPU')} ({platform.machine()})"


def host_bytes(memory_file: Path = _MEMORY, limit_file: Path = _MEMORY_LIMIT) -> int | None:
    """Return the memory that this machine, or its container (cgroup v2), has; None if nobody could say."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        lines = memory_file.read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    with suppress(OSError, ValueError):
        found.append(int(limit_file.read_text(encoding="ascii")))  # `max` where there is no limit
    return min(found, default=0) or None


def has_cuda(device: str) -> bool:
    """Return whether stacks of this machine run on a GPU, as far as can be seen without torch."""
    return device == "cuda" or (device == "auto" and Path("/dev/nvidia0").exists())


def gpu_bytes() -> int | None:
    """Return the memory of this machine's smallest GPU; None if there is none, or nobody to ask."""
    try:
        return min((int(line) for line in _ask_gpus("memory.total")), default=0) * 2**20 or None
    except ValueError:
        return None


def gpu_name() -> str | None:
    """Return the name of this machine's first GPU, e.g. `NVIDIA H200`; None if there is none, or nobody to ask."""
    return next((line.strip() for line in _ask_gpus("name")), None)


def _ask_gpus(what: str) -> list[str]:
    """Return what nvidia-smi says of every GPU, a line each."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
