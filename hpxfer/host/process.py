"""Processes of this host: which one a number means, and whether it has ended. Without /proc less is known."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
# The state of a process that has ended and whose parent has not looked yet.
_ENDED = (b"Z", b"X", b"x")


def machine_id() -> str | None:
    """Return what processes share that see each other by number: this boot, and the container; None if unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return None


def process_started(pid: int) -> str | None:
    """Return when a process started, in ticks since the boot: with the number, no two processes are the same.

    None if it cannot be seen, or has ended.
    """
    state, ticks = _state(pid)
    return None if state in _ENDED else ticks


def process_is_gone(pid: int, started: str | None) -> bool:
    """Return whether the process with this number that started then has ended."""
    state, ticks = _state(pid)
    if state is not None:
        return state in _ENDED or (started is not None and ticks != started)
    # No /proc, or one that shows a user's own processes only.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _state(pid: int) -> tuple[bytes | None, str | None]:
    """Return the state of a process and its start; None and None if it cannot be seen."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None, None
    # The name, in parentheses, may hold anything: fields are counted from behind it.
    state, *rest = stat.rpartition(b")")[2].split()
    return state, rest[18].decode()
