"""A measurement in a process of its own, which inherits no imports and no memory."""

from __future__ import annotations

import subprocess
import sys

from hpxfer.errors import HpxferError


def output_of(module: str, *arguments: str) -> str:
    """Return what `python -m module ...` prints. Raise HpxferError with its error output if it fails."""
    ended = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise HpxferError(f"the benchmark `{module} {' '.join(arguments[:1])}` failed:\n{ended.stderr}")
    return ended.stdout
