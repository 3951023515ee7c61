"""Where the output cannot go: one message, and the exit code of bad input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_below_stdout_is_one_message() -> None:
    with FULL.open("w") as full:
        command = [sys.executable, "-m", "hpxfer.cli", "explain", "--list"]
        end = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert end.returncode == 2
    assert end.stderr == (
        "hpxfer: stdout: cannot be written: No space left on device; make room, or send it elsewhere\n"
    )
