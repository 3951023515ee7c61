"""A verdict search from the command line: worker processes train its rounds, and a killed run goes on where it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import hpxfer
from tiny import write_tiny

from hpxfer.results import load_results

EDIT = ("seeds: 2", "seeds: 2\nsearch: {kind: verdict, budget: 10}")
# Every worker is a process that imports torch, and each of three runs starts its own.
ONE_WORKER = ("workers: 2", "workers: 1")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_trials_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = write_tiny(tmp_path, EDIT, ONE_WORKER)
    code, out, _ = hpxfer(capsys, "plan", sweep, "--results", tmp_path / "whole")
    assert code == 0
    assert "search verdict: at most 10 trials for each arm" in out
    assert hpxfer(capsys, "run", sweep, "--results", tmp_path / "whole")[0] == 0
    whole = load_results(tmp_path / "whole" / "tiny")

    command = [sys.executable, "-m", "hpxfer", "run", str(sweep), "--results", str(tmp_path / "killed")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert any("round 2" in text for text in process.stdout), "it ended before its second round"
        process.kill()
    before = load_results(tmp_path / "killed" / "tiny").trials.set_index("trial_id")["finished_at"]
    assert 5 <= len(before) < len(whole.trials)
    code, out, err = hpxfer(capsys, "run", sweep, "--results", tmp_path / "killed")
    assert code == 0
    assert "lr along width, completep-moe: " in out + err

    killed = load_results(tmp_path / "killed" / "tiny")
    assert set(killed.trials["trial_id"]) == set(whole.trials["trial_id"])
    after = killed.trials.set_index("trial_id")["finished_at"]
    assert after[before.index].equals(before), "a stored trial was trained again"
    assert set(killed.cells["trial_id"]) == set(killed.trials["trial_id"])
    code, out, _ = hpxfer(capsys, "report", tmp_path / "killed" / "tiny", "--format", "text")
    assert code == 0
    assert "completep-moe" in out
