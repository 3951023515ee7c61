"""What a stand-in for Slurm's sacct says of a job, and what a failed trial makes of it."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path

import pytest
from trainer_jobs import Runner

from hpxfer.trainer import slurm
from hpxfer.trainer.slurm import slurm_state, telling_state

NOON = datetime(2026, 11, 24, 12, 0, 0, 500)


@pytest.fixture
def sacct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that notes its arguments and prints the file `said`, as a job of Slurm sees it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "sacct"
    script.write_text(
        f"#!{sys.executable} -S\nimport sys, time\nopen({str(folder / 'asked')!r}, 'w').write(' '.join(sys.argv[1:]))\n"
        f"said = open({str(folder / 'said')!r}).read()\ntime.sleep(60 if said == 'hang' else 0)\nprint(said)\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "71_3")
    return folder


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("RUNNING|Unknown\nOUT_OF_MEMORY|Unknown", "memory"),
        ("PREEMPTED|2199-01-01T00:00:00", "lost"),
        ("NODE_FAIL|Unknown", "lost"),
        ("CANCELLED by 7|Unknown", "bug"),
        ("RUNNING|Unknown\nOUT_OF_MEMORY|2001-01-01T00:00:00", "bug"),  # a step before this attempt
    ],
)
def test_a_failed_trial_is_what_slurm_says_of_it(runner: Runner, sacct: Path, said: str, kind: str) -> None:
    (sacct / "said").write_text(said)
    ending = runner.run("report(0, 1.0); sys.exit(1)").ending
    assert (ending.status, ending.kind) == ("failed", kind)
    assert (sacct / "asked").read_text() == "--jobs 71_3 --noheader --parsable2 --format State,End"


def test_slurm_is_not_asked_of_a_trial_that_finished(runner: Runner, sacct: Path) -> None:
    (sacct / "said").write_text("NODE_FAIL|Unknown")
    assert runner.run("report(2, 1.0)").ending.status == "finished"
    assert not (sacct / "asked").exists()


@pytest.mark.parametrize("job", ["", "7; touch harm", "--help"])
def test_no_job_no_question(sacct: Path, monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    (sacct / "said").write_text("NODE_FAIL|Unknown")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    assert slurm_state(NOON) == ""
    assert not (sacct / "asked").exists()


def test_a_sacct_that_is_absent_or_hangs_is_no_matter(sacct: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_ASK_S", 0.2)
    (sacct / "said").write_text("hang")
    assert slurm_state(NOON) == ""
    monkeypatch.setenv("PATH", str(sacct / "nothing"))
    assert slurm_state(NOON) == ""


def test_ends_are_compared_to_the_second() -> None:
    assert telling_state("NODE_FAIL|2026-11-24T11:59:59", NOON) == ""
    assert telling_state("NODE_FAIL|2026-11-24T12:00:00", NOON) == "NODE_FAIL"
    assert telling_state("garbage\n|\nPREEMPTED by 3|x", NOON) == "PREEMPTED by 3"
