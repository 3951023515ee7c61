"""macOS as far as Linux can play it: the driver of a whole run, without /proc and without CPU affinity."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny import write_tiny

pytestmark = pytest.mark.slow

# Packages are imported before the system is given another name, as they load what fits the real one.
AS_ON_MACOS = """
import os, subprocess, sys
import matplotlib.pyplot, pandas, psutil, pyarrow.fs, pyarrow.parquet, scipy.optimize, scipy.stats, torch
from pathlib import Path
sys.platform = "darwin"
del os.sched_getaffinity
from hpxfer.host import machine, process
process._PROC = machine._CPU_INFO = machine._CPU_QUOTA = machine._MEMORY_LIMIT = Path("/nowhere")
from hpxfer.cli import main
main()
"""


def test_a_whole_run(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    for arguments, word in ((("run", "tiny.yaml", "--executor", "local"), "Next: "), (("list",), "30/30")):
        command = [sys.executable, "-c", AS_ON_MACOS, *arguments]
        end = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert end.returncode == 0, end.stderr
        assert word in end.stdout
