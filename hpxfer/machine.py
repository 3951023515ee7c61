"""What this machine has, looked up without importing torch."""

from __future__ import annotations

import os
import shutil
import subprocess
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


def gpu_bytes() -> int | None:
    """Return the memory of this machine's smallest GPU; None if there is none, or nobody to ask."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return min((int(line) for line in answer.split()), default=0) * 2**20 or None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
