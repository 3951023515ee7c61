"""Windows is refused with one sentence: by the command line, and by functions that need Linux or macOS."""

from __future__ import annotations

import subprocess
import sys

import pytest

SENTENCE = "hpxfer must run on Linux or macOS, got Windows; use the Windows Subsystem for Linux (WSL 2)"


def on_windows(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code that believes to be on Windows."""
    command = [sys.executable, "-c", f"import sys\nsys.platform = 'win32'\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_command_line_is_one_message() -> None:
    end = on_windows("sys.argv = ['hpxfer', 'plan', 'x.yaml']\nfrom hpxfer.cli import main\nmain()")
    assert (end.returncode, end.stdout, end.stderr) == (2, "", f"hpxfer: {SENTENCE}\n")


@pytest.mark.parametrize("name", ["run", "load_results"])
def test_the_functions_raise_and_the_import_does_not(name: str) -> None:
    end = on_windows(f"import hpxfer\nprint(hpxfer.__version__)\nhpxfer.{name}")
    assert end.returncode == 1
    assert end.stdout
    assert end.stderr.splitlines()[-1] == f"hpxfer.errors.HpxferError: {SENTENCE}"
