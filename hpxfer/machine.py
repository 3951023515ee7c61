"""What this machine has, looked up without importing torch."""

from __future__ import annotations

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def num_cpus(quota_file: Path = _QUOTA) -> int:
    """Return the CPUs that this process may use: its affinity, and the quota of its container (cgroup v2)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))


def has_cuda(device: str) -> bool:
    """Return whether stacks of this machine run on a GPU, as far as can be seen without torch."""
    return device == "cuda" or (device == "auto" and Path("/dev/nvidia0").exists())
