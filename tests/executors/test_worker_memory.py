"""The memory of a worker: what it frees, it has at once when it asks again."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

# Fresh pages that a process takes for an array as large as one that it has freed.
FRESH_PAGES = """
import resource
import numpy as np
from hpxfer.executors.worker import keep_memory

if {kept}:
    keep_memory()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(64 * 2**20, dtype=np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def fresh_pages(*, kept: bool) -> int:
    """Return how many fresh pages the third array takes."""
    command = [sys.executable, "-c", FRESH_PAGES.format(kept=kept)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_a_worker_keeps_the_memory_that_it_frees() -> None:
    few = 8  # for what else Python does; the array alone has 32 of the largest usual pages
    assert fresh_pages(kept=True) < few
    assert fresh_pages(kept=False) > few  # else the first line would say nothing
