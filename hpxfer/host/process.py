"""Processes of this host: which process a number means, and whether it has ended.

Linux is asked through /proc, any other system through psutil.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpxfer.host.programs import sysctl

_PROC = Path("/proc")
# States of a process that has ended while its parent has not asked for its exit code.
_ENDED = (b"Z", b"X", b"x")


@dataclass(frozen=True, kw_only=True)
class ProcessInfo:
    """A process that can be seen from here."""

    has_ended: bool
    started: str | None  # on Linux in clock ticks since the boot, elsewhere in seconds


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
    """Return when a process started. Number and start together name one process only, as numbers are reused.

    Return None if the process has ended, or cannot be seen.
    """
    found = _info(pid)
    return None if found is None or found.has_ended else found.started


def process_is_gone(pid: int, started: str | None) -> bool:
    """Return whether the process with this number that started at this time has ended."""
    found = _info(pid)
    if found is not None:
        return found.has_ended or (started is not None and found.started != started)
    # It has ended, or the system shows each user only his own processes.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _info(pid: int) -> ProcessInfo | None:
    """Return what can be seen of a process. Return None if it cannot be seen."""
    if not (_PROC / "self").exists():
        return _info_by_psutil(pid)
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may hold anything: the fields are counted from behind it.
    state, *rest = stat.rpartition(b")")[2].split()
    return ProcessInfo(has_ended=state in _ENDED, started=rest[18].decode())


def _info_by_psutil(pid: int) -> ProcessInfo | None:
    try:
        process = psutil.Process(pid)
        return ProcessInfo(has_ended=process.status() == psutil.STATUS_ZOMBIE, started=f"{process.create_time():.6f}")
    except (psutil.Error, ValueError, OverflowError):
        return None
