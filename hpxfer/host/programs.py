"""Programs of this machine that answer questions about it."""

from __future__ import annotations

import shutil
import subprocess

_LIMIT_S = 10


def output_lines(program: str, *arguments: str) -> list[str]:
    """Return the lines that a program prints. Return no line if the program is not installed, fails or hangs."""
    path = shutil.which(program)
    if path is None:
        return []
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()


def sysctl(name: str) -> str | None:
    """Return a value of the kernel of macOS, e.g. of `machdep.cpu.brand_string`. Return None if there is none."""
    return next((line.strip() for line in output_lines("sysctl", "-n", name)), None)
