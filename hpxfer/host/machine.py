"""What this machine has: CPUs, memory, GPUs and processes. Nothing here imports torch."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from hpxfer.errors import HpxferError

_PROC = Path("/proc")
# States of a process that has ended while its parent has not asked for its exit code.
_ENDED = (b"Z", b"X", b"x")


def library(module: str, extra: str, where: str | None = None) -> Any:
    """Return the module of a library that an extra of hpxfer installs. Raise HpxferError if it is not installed.

    `where` is the key or option that asks for it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        rule = f"{extra} must be installed where hpxfer starts"
        raise HpxferError(f"{where or extra}: {rule}, got: {error}; `pip install 'hpxfer[{extra}]'`") from None


def machine_id() -> str | None:
    """Return an id that two processes share if they see each other under their numbers. Return None if unknown.

    It names the boot of the machine and, in a container, the namespace of its processes.
    """
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return sysctl("kern.bootsessionuuid")  # macOS


def process_started(pid: int) -> str | None:
    """Return when a process started: on Linux in clock ticks since the boot, elsewhere in seconds.

    Number and start together name one process only, as numbers are reused. Return None if the process has ended, or
    cannot be seen.
    """
    has_ended, started = _process(pid) or (True, None)
    return None if has_ended else started


def process_is_gone(pid: int, started: str | None) -> bool:
    """Return whether the process with this number that started at this time has ended."""
    if (found := _process(pid)) is not None:
        return found[0] or (started is not None and found[1] != started)
    # It has ended, or the system shows each user only his own processes.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False


def _process(pid: int) -> tuple[bool, str] | None:
    """Return whether a process has ended and when it started. Return None if it cannot be seen.

    On Linux psutil counts from the time of day at the boot, which moves with the clock. So /proc is asked there.
    """
    if (_PROC / "self").exists():
        try:
            stat = (_PROC / str(pid) / "stat").read_bytes()
        except OSError:
            return None
        # The name, in parentheses, may hold anything: the fields are counted from behind it.
        state, *rest = stat.rpartition(b")")[2].split()
        return state in _ENDED, rest[18].decode()
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE, f"{process.create_time():.6f}"
    except (psutil.Error, ValueError, OverflowError):
        return None


# Linux only.
_CPU_INFO = Path("/proc/cpuinfo")
_DEVICES = Path("/dev")
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_PROGRAM_S = 10


def num_cpus(quota_file: Path = _CPU_QUOTA) -> int:
    """Return the number of CPUs that this process may use.

    Its affinity counts, and so does the quota of its container (cgroup v2).
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))


def cpu_name(info: Path = _CPU_INFO) -> str:
    """Return the model of the CPU and its architecture, e.g. `AMD EPYC 9654 (x86_64)`."""
    named: str | None = None
    if sys.platform == "darwin":
        named = sysctl("machdep.cpu.brand_string")
    else:
        with suppress(OSError):
            lines = info.read_text(encoding="utf-8").splitlines()
            named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    return f"{named or platform.processor() or 'CPU'} ({platform.machine()})"


def host_bytes(limit_file: Path = _MEMORY_LIMIT) -> int | None:
    """Return the bytes of memory that this machine or its container (cgroup v2) has. Return None if unknown."""
    found = []
    with suppress(OSError, ValueError, psutil.Error):
        found.append(int(psutil.virtual_memory().total))
    with suppress(OSError, ValueError):
        found.append(int(limit_file.read_text(encoding="ascii")))  # `max` where there is no limit
    return min(found, default=0) or None


def has_cuda(device: str, devices: Path = _DEVICES) -> bool:
    """Return whether stacks train on a GPU on this machine, where the sweep names this device.

    For `auto` there must be a GPU that the environment does not hide, and a torch that was built for it. Torch is not
    imported, which takes seconds.
    """
    if device != "auto":
        return device == "cuda"
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return False
    with suppress(PackageNotFoundError):
        if version("torch").endswith("+cpu"):
            return False
    return any(devices.glob("nvidia[0-9]*"))


def gpu_bytes() -> int | None:
    """Return the bytes of memory of this machine's smallest GPU. Return None if it has none, or if that is unknown."""
    try:
        return min((int(line) for line in _gpu_lines("memory.total")), default=0) * 2**20 or None
    except ValueError:
        return None


def gpu_name() -> str | None:
    """Return the name of this machine's first GPU, e.g. `NVIDIA H200`. Return None if it has none."""
    return next((line.strip() for line in _gpu_lines("name")), None)


def _gpu_lines(query: str) -> list[str]:
    """Return what nvidia-smi prints for a query, one line per GPU."""
    return _lines("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits")


def sysctl(name: str) -> str | None:
    """Return a value of the kernel of macOS, e.g. of `machdep.cpu.brand_string`. Return None if there is none."""
    return next((line.strip() for line in _lines("sysctl", "-n", name)), None)


def _lines(*command: str) -> list[str]:
    """Return the lines that a program prints. Return no line if the program is not installed, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROGRAM_S, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()
