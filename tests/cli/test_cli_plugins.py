"""`--plugin`: a table of the user's own reaches plan, run, explain and check; the report imports nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import hpxfer
from tiny import write_tiny

from hpxfer.scaling.tables import PARAMETERIZATIONS

TABLE = """
from dataclasses import replace
from hpxfer.scaling import register_parameterization
from hpxfer.scaling.tables import PARAMETERIZATIONS

print("imported", flush=True)
register_parameterization(replace(PARAMETERIZATIONS.get("completep-moe"), name="mine"))
"""
LIMIT_S = 300


def ran(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, as a plug-in is imported once per process."""
    command = [sys.executable, "-m", "hpxfer.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a plug-in, mine.py, and a sweep, tiny.yaml, that uses its table and does not name the plug-in."""
    (tmp_path / "mine.py").write_text(TABLE)
    mine = ("parameterizations: [completep-moe, sp]", "parameterizations: [mine, sp]")
    write_tiny(tmp_path, mine, ("workers: 2", "workers: 1"))  # each is a process that imports torch
    return tmp_path


@pytest.mark.slow
def test_a_table_of_a_plugin_is_planned_trained_and_reported(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    code, _, err = hpxfer(capsys, "plan", "tiny.yaml")
    assert code == 2
    assert "unknown parameterization 'mine'" in err
    end = ran(folder, "plan", "tiny.yaml", "--plugin", "mine.py")
    assert (end.returncode, "30 trials" in end.stdout) == (0, True), end.stderr
    end = ran(folder, "run", "tiny.yaml", "--plugin", "mine.py", "--executor", "local", "--json")
    assert end.returncode == 0, end.stderr
    data = json.loads(end.stdout.splitlines()[-1])
    assert (data["num_failed"], {row["parameterization"] for row in data["report"]["findings"]}) == (0, {"mine", "sp"})
    for command in (
        ("report", "results/tiny", "--format", "text"),
        ("recipe", "results/tiny"),
        ("list",),
        ("watch", "results/tiny"),
    ):
        code, out, err = hpxfer(capsys, *command)
        assert (code, "imported" in out) == (0, False), err
    assert "mine" not in PARAMETERIZATIONS


@pytest.mark.slow
def test_explain_and_check_take_a_plugin(folder: Path) -> None:
    end = ran(folder, "explain", "--list", "--json", "--plugin", "mine.py")
    assert end.returncode == 0, end.stderr
    assert "mine" in json.loads(end.stdout.splitlines()[-1])
    end = ran(folder, "explain", "--sweep", "tiny.yaml", "--plugin", folder / "mine.py")
    assert end.returncode == 0, end.stderr
    end = ran(folder, "check", "--parameterization", "nine", "--plugin", "mine.py")
    assert end.returncode == 2
    assert "did you mean 'mine'?" in end.stderr


@pytest.mark.parametrize("command", [("plan", "tiny.yaml"), ("run", "tiny.yaml"), ("explain", "--list"), ("check",)])
def test_a_plugin_that_is_not_there_is_one_message(
    command: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    code, _, err = hpxfer(capsys, *command, "--plugin", "other.py")
    assert code == 2
    assert err.startswith("hpxfer: plugins: ")
    assert "other.py: cannot be read" in err
