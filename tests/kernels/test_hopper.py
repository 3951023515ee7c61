"""The Triton kernels compile for sm_90 without a GPU, in a separate process, with warnings as errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hopper import CASES

SCRIPT = Path(__file__).with_name("hopper.py")


@pytest.fixture(scope="module")
def failures() -> str:
    """Return the failures, each with the name of its case."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error", str(SCRIPT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("case", CASES)
def test_kernels_compile(case: str, failures: str) -> None:
    assert f"{case} Traceback" not in failures, failures
