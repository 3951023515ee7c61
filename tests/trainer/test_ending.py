"""Ending: a test per row of the table and the order of the rows, what Slurm says, and the rule of divergence."""

from __future__ import annotations

import json
import math
import os
import sys
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_jobs import Runner

from hpxfer.trainer import Ending, Job, ending
from hpxfer.trainer.ending import Exit, ending_of, slurm_state, tail
from hpxfer.trainer.lines import Point, Reports, Result
from hpxfer.trial.divergence import BLOW_UP, blow_up_limit, is_bad

TORCHRUN = """
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_10:00:00
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 11) (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 11
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_10:00:00
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 12)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def ended(code: int | None = 1, **seen: Any) -> Ending:
    """Return the ending of an attempt of 10 steps of which this was seen."""
    of_job = {name: seen.pop(name) for name in ("nan_exit", "nodes") if name in seen}
    job = Job(argv=(), folder=Path(), trial_id="t1", steps=10, config={}, cwd=Path(), **of_job)
    own = Reports(Path(), 1, trial_id="t1", steps=10)
    for name in ("result", "divergence", "fault"):
        setattr(own, name, seen.pop(name, None))
    own.points = [Point(seen.pop("last_step"), 1.0, {})] if "last_step" in seen else []
    return ending_of(job, [], own, seen.pop("exit", Exit(code=code)), **seen)


def error_file(message: str, code: int | None = None) -> str:
    """Return an error file as torch writes it. torchrun adds the exit code of the rank."""
    inner = {"message": message, "extraInfo": {"py_callstack": "", "timestamp": "0"}}
    return json.dumps({"message": inner if code is None else {**inner, "errorCode": code}})


def seen(code: int = 1, **others: Any) -> dict[str, Any]:
    return {"code": code, **others}


# (what was seen, status, kind, words of the message): what the law below does not draw, and words.
ROWS: list[tuple[dict[str, Any], str, str | None, str]] = [
    # A result line counts, whatever the exit code.
    (seen(0, result=Result(status="finished")), "failed", "bug", "reported no loss"),
    (seen(0, result=Result(status="finished", validation_loss=math.nan)), "diverged", None, "validation loss nan"),
    (seen(0, result=Result(status="diverged", step=3)), "diverged", None, "declared"),
    # What was seen or done while it ran.
    (seen(-15, divergence=(3, "loss nan at step 3")), "diverged", None, "loss nan at step 3"),
    (seen(0, stopped=True), "failed", "lost", "stopped"),
    (seen(exit=Exit(code=0, asked=True)), "failed", "lost", "SIGTERM from others, and exit code 0"),
    (seen(-15, fault="reports.jsonl:1: must"), "failed", "bug", "reports.jsonl:1: must"),
    # There was no command, or nobody knows.
    (seen(exit=Exit(not_started="x: No such file")), "failed", "input", "cannot be started: x: No such file"),
    (seen(exit=Exit(lost="the supervisor is gone")), "failed", "lost", "the supervisor is gone"),
    (seen(1, slurm="PREEMPTED"), "failed", "lost", "Slurm says PREEMPTED"),
    # Exit code 0.
    (seen(0, last_step=8), "failed", "bug", "losses up to step 8 of 10"),
    (seen(0), "failed", "bug", "it reported no loss"),
    # Other exit codes and signals, through a shell too.
    (seen(75), "failed", "lost", "exit code 75"),
    (seen(143), "failed", "lost", "signal 15"),
    (seen(137), "failed", "memory", "signal 9"),
    (seen(-9, exit=Exit(code=-9, oom_kills=2)), "failed", "memory", "killed 2 processes"),
    (seen(-9, exit=Exit(code=-9, left=(7, 8))), "failed", "memory", "did not end: 7, 8"),
    # torchrun exits with 1 whatever a rank did.
    (seen(1, stderr=TORCHRUN.format(code=75)), "failed", "lost", "exit code 75"),
    (seen(1, stderr=TORCHRUN.format(code=78)), "failed", "input", "exit code 78"),
    (seen(1, stderr=TORCHRUN.format(code=-9)), "failed", "memory", "signal 9"),
    (seen(1, stderr=TORCHRUN.format(code=1)), "failed", "bug", "exit code 1"),
    (seen(1, stderr="SignalException: Process 5 got signal: 15"), "failed", "lost", "signal 15"),
    (seen(1, error_file=error_file("x", 75), stderr=TORCHRUN.format(code=1)), "failed", "lost", "exit code 75"),
    (seen(1, error_file=error_file("OutOfMemoryError: CUDA out of memory.")), "failed", "memory", "OutOfMemory"),
    (seen(1, error_file=error_file("FileNotFoundError: data")), "failed", "input", ""),
    (seen(1, error_file=error_file("ValueError: no")), "failed", "bug", "exit code 1: ValueError: no"),
    (seen(1, error_file='{"message": "no traceback"}'), "failed", "bug", "no traceback"),
    (seen(1, error_file="{torn"), "failed", "bug", "exit code 1"),
    # What stderr says.
    (seen(1, stderr="loss is NaN, bye", nan_exit=("loss is NaN",)), "diverged", None, "loss is NaN"),
    (seen(1, stderr="torch.OutOfMemoryError: CUDA out of memory. Tried"), "failed", "memory", "out of memory"),
    (seen(1, stderr="  x = bytes(2**60)\nMemoryError"), "failed", "memory", "MemoryError"),
    (seen(1, stderr="CUDA out of memory" + "\n" * 40_000 + "ValueError"), "failed", "bug", "ValueError"),
    (seen(1, stderr="RendezvousConnectionError: x", nodes=2), "failed", "lost", "RendezvousConnectionError"),
    (seen(1, stderr="RendezvousConnectionError: x"), "failed", "bug", "RendezvousConnectionError"),
    (seen(2, stderr="python: can't open file 'x.py': [Errno 2] No such file"), "failed", "input", "x.py"),
    (seen(1, stderr="FileNotFoundError: [Errno 2] data.bin\n"), "failed", "input", "data.bin"),
    (seen(1, stderr="Traceback\nValueError: no"), "failed", "bug", "ValueError: no"),
    (seen(1, stdout="it says why on stdout"), "failed", "bug", "it says why on stdout"),
]


@pytest.mark.parametrize(("given_", "status", "kind", "words"), ROWS)
def test_rows(given_: dict[str, Any], status: str, kind: str | None, words: str) -> None:
    said = ended(**given_)
    assert (said.status, said.kind) == (status, kind)
    assert words in said.message


# What decides, in the order of the table, and the kind or status that follows.
SIGNALS: list[tuple[dict[str, Any], str]] = [
    ({"result": Result(status="finished", validation_loss=1.0)}, "finished"),
    ({"divergence": (3, "loss nan")}, "diverged"),
    ({"stopped": True}, "lost"),
    ({"fault": "must"}, "bug"),
    ({"timeout": "late"}, "timeout"),
    ({"exit": Exit(not_started="x")}, "input"),
    ({"exit": Exit(lost="gone")}, "lost"),
    ({"slurm": "OUT_OF_MEMORY"}, "memory"),
    ({"exit": Exit(code=75)}, "lost"),
    ({"stderr": "NaN", "nan_exit": ("NaN",)}, "diverged"),
    ({"stderr": "out of memory"}, "memory"),
    ({"stderr": "ncclRemoteError", "nodes": 2}, "lost"),
    ({"stderr": "No such file"}, "input"),
]


@pytest.mark.parametrize(("first", "second"), list(combinations(SIGNALS, 2)))
def test_the_first_row_that_applies_wins(first: tuple[dict[str, Any], str], second: tuple[dict[str, Any], str]) -> None:
    stderr = "\n".join(each[0].get("stderr", "") for each in (first, second))
    said = ended(**{**second[0], **first[0], "stderr": stderr})
    assert (said.kind or said.status) == first[1]


def test_a_message_ends_with_the_end_of_the_log() -> None:
    log = "".join(f"line {number}\n" for number in range(1000))
    said = ended(1, stderr=log)
    assert said.message.splitlines()[-1] == "line 999"
    assert len(said.message.splitlines()) == 41
    assert len(tail("x" * 10**6)) == 4000


def test_the_tail_is_what_the_rank_said_and_not_what_torchrun_says_of_it() -> None:
    said = "[rank0]: Traceback (most recent call last):\n[rank0]: KeyError: 'width'"
    closing = "W0101 10:00:00.1 11 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 11 SIGTERM\n"
    failed = "E0101 10:00:00.2 11 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)\n"
    own_words = closing + failed + "Traceback\n" * 60 + TORCHRUN.format(code=1)
    message = ended(1, stderr=f"{said}\n{own_words}").message
    assert message == f"exit code 1\n{said}"
    alone = ended(1, stderr=own_words).message  # a rank that said nothing
    assert "Root Cause" in alone


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
    ("said", "state"),
    [
        ("RUNNING|Unknown\nOUT_OF_MEMORY|Unknown", "OUT_OF_MEMORY"),
        ("garbage\n|\nPREEMPTED by 3|x", "PREEMPTED by 3"),
        ("NODE_FAIL|2026-11-24T12:00:00", "NODE_FAIL"),  # ends are compared to the second
        ("NODE_FAIL|2026-11-24T11:59:59", ""),  # a step before this attempt
        ("CANCELLED by 7|Unknown", ""),
    ],
)
def test_what_slurm_says_of_a_job(sacct: Path, said: str, state: str) -> None:
    (sacct / "said").write_text(said)
    assert slurm_state(NOON) == state
    assert (sacct / "asked").read_text() == "--jobs 71_3 --noheader --parsable2 --format State,End"


def test_slurm_is_asked_of_a_failed_trial_in_a_job_alone_and_need_not_answer(
    runner: Runner, sacct: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sacct / "said").write_text("NODE_FAIL|Unknown")
    assert runner.run("report(2, 1.0)").ending.status == "finished"
    for job in ("", "7; touch harm", "--help"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        assert slurm_state(NOON) == ""
    assert not (sacct / "asked").exists()
    monkeypatch.setenv("SLURM_JOB_ID", "71_3")
    assert runner.run("report(0, 1.0); sys.exit(1)").ending.kind == "lost"
    monkeypatch.setattr(ending, "_ASK_S", 0.2)
    (sacct / "said").write_text("hang")
    assert slurm_state(NOON) == ""
    monkeypatch.setenv("PATH", str(sacct / "nothing"))
    assert slurm_state(NOON) == ""


@given(st.floats(1e-6, 1e6), st.floats(0, 1e6))
def test_the_limit_is_a_multiple_of_the_larger(first: float, guess: float) -> None:
    limit = blow_up_limit(first, guess)
    assert limit == BLOW_UP * first or limit == BLOW_UP * guess
    assert limit >= BLOW_UP * first
    assert not is_bad(limit, limit)
    assert is_bad(math.nextafter(limit, math.inf), limit)
    for at in (limit, math.inf):
        assert all(is_bad(loss, at) for loss in (math.nan, math.inf, -math.inf))
        assert not is_bad(-1e9, at)
    for none in (0.0, -first, math.nan, math.inf, -math.inf):  # a first loss that is not positive has no limit
        assert blow_up_limit(none) == math.inf
