"""Follow: what one attempt yields and returns, and how attempts go on from each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from trainer_jobs import Runner, to_the_end, wait_until

from hpxfer.spec.own import TimeoutsSpec
from hpxfer.trainer import follow, next_attempt
from hpxfer.trainer.lines import newest_checkpoint

RESULT = "say(type='result', status='finished', validation_loss=1.5, accuracy=0.5)"
HANG_S = 600.0  # how long programs sleep that do not end by themselves


def test_a_trial_that_finishes(runner: Runner) -> None:
    run = runner.run(f"for step in range(3): say(type='report', step=step, loss=3 - step, lr=0.1)\n{RESULT}")
    ending = run.ending
    assert (ending.status, ending.kind, ending.message) == ("finished", None, "")
    assert (ending.validation_loss, ending.metrics) == (1.5, {"accuracy": 0.5})
    assert [tuple(point) for point in ending.points] == [(step, 3.0 - step, {"lr": 0.1}) for step in range(3)]
    assert run.points == list(ending.points)
    assert (ending.attempt, ending.resumed, ending.advanced) == (1, False, False)
    assert 0 < ending.wall_s <= run.took_s


BLOW_UP = "for step, loss in enumerate({}): report(step, loss)\n"
SLEEP = "time.sleep(600)"
NAN = "report(0, 3.0)\nsys.exit('found NaN in grads')"


@pytest.mark.parametrize(
    ("program", "given", "status", "steps", "diverged"),
    [
        ("report(2, 3.0)\nos.kill(os.getpid(), 9)", {}, "failed", [2], None),  # the last line of a quick command
        (f"report(2, 3.0)\n{RESULT}\nos._exit(9)", {}, "finished", [2], None),
        (f"report(2, 3.0)\n{RESULT}\n{SLEEP}", {"grace_s": 0.5}, "finished", [2], None),
        (f"report(0, '-Infinity')\n{SLEEP}", {}, "diverged", [], 0),
        (f"report(0, 3.0)\n{RESULT}\nreport(1, float('nan'))\nprint('x', file=lines)", {}, "finished", [0], None),
        ('report(1, 3.0)\nreport(2, 2.0)\nlines.write(\'{"type": "rep\')', {}, "finished", [1, 2], None),  # torn
        (BLOW_UP.format((2.0, 1.0, 9.0)) + SLEEP, {}, "diverged", [0, 1], 2),
        (BLOW_UP.format((2.0, 8.0, 7.9)), {}, "finished", [0, 1, 2], None),
        (f"report(0, 3.0)\nsay(type='result', status='diverged', step=1)\n{SLEEP}", {}, "diverged", [0], 1),
        (NAN, {"nan_exit": (r"found NaN in \w+",)}, "diverged", [0], 1),
    ],
)
def test_how_reports_and_results_count(
    runner: Runner, program: str, given: dict[str, Any], status: str, steps: list[int], diverged: int | None
) -> None:
    run = runner.run(program, **given)
    assert (run.ending.status, run.ending.diverged_step) == (status, diverged), run.ending.message
    assert [point.step for point in run.ending.points] == steps
    assert run.points[: len(steps)] == list(run.ending.points)
    assert run.took_s < HANG_S / 2
    assert "for step" not in program or not diverged or "above 8, 4 times" in run.ending.message


def test_a_stop_gives_the_command_its_grace(runner: Runner) -> None:
    program = """
def end(*_):
    time.sleep(0.5)
    say(type="checkpoint", step=1, path=os.getcwd())
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
report(0, 3.0)
time.sleep(600)
"""
    following, asked = follow(runner.job(program, grace_s=HANG_S), stop=lambda: bool(asked)), []
    next(following)
    asked.append(True)
    _, ending = to_the_end(following)
    assert (ending.status, ending.kind, ending.advanced) == ("failed", "lost", True)
    assert "stopped" in ending.message
    program = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nreport(0, 3.0)\ntime.sleep(600)"  # it ignores the stop
    run = runner.run(program, stop=lambda: True)
    assert run.ending.kind == "lost"
    assert run.took_s < HANG_S / 2


def test_a_closed_generator_leaves_nothing(runner: Runner) -> None:
    program = "if not os.fork(): os.setsid(); time.sleep(600)\nreport(0, 3.0)\ntime.sleep(600)"
    following = follow(runner.job(program), stop=lambda: False)
    next(following)
    wait_until(lambda: len(runner.alive) == 2)
    following.close()
    assert runner.alive == []


RESUMING = """
config = json.load(open(os.environ["HPXFER_CONFIG"]))
start = 0 if config["resume"] is None else int(open(config["resume"]).read())
for step in range(start, 6):
    say(type="report", step=step, loss=10.0 * config["attempt"] + step)
    if step == 3:
        path = os.path.join(config["checkpoint_dir"], "three")
        open(path, "w").write("3")
        say(type="checkpoint", step=3, path=path)
    if step == 4 and config["attempt"] == 1: os.kill(os.getpid(), 9)
"""


def test_the_later_attempt_wins_from_its_first_step_on(runner: Runner) -> None:
    first = runner.run(RESUMING, steps=6).ending
    assert (first.kind, first.advanced, first.resumed) == ("memory", True, False)
    second = runner.run(RESUMING, steps=6)
    assert (second.ending.status, second.ending.attempt, second.ending.resumed) == ("finished", 2, True)
    assert second.ending.advanced is False  # it wrote the checkpoint of the same step again
    assert [point.loss for point in second.ending.points] == [10, 11, 12, 23, 24, 25]
    assert [point.step for point in second.points] == [3, 4, 5]


def test_the_limit_of_a_blow_up_is_that_of_the_first_attempt(runner: Runner) -> None:
    program = "attempt = int(lines.name.split('attempt-')[1][0])\nreport(attempt, {1: 1.0, 2: 5.0}[attempt])"
    assert runner.run(program).ending.kind == "bug"
    assert runner.run(program).ending.status == "diverged"


@pytest.mark.parametrize("end", [RESULT, "say(type='result', status='diverged', step=1)", "report(1, float('nan'))"])
def test_a_result_that_nobody_took_is_not_computed_again(runner: Runner, end: str) -> None:
    """The process that follows a trial may end between the last line and the store."""
    once = runner.run("report(0, 3.0)\n" + end).ending
    again = runner.run("sys.exit('must not run')")
    assert again.took_s < 1.0
    assert (again.ending.status, again.ending.points) == (once.status, once.points)
    assert (again.ending.validation_loss, again.ending.diverged_step) == (once.validation_loss, once.diverged_step)
    assert next_attempt(runner.folder) == 2
    (runner.folder / "attempt-1" / "ended.json").write_text("{}")  # now somebody has taken it
    assert runner.run("sys.exit('does run')").ending.kind == "bug"


def test_the_files_of_an_attempt(runner: Runner) -> None:
    runner.run("report(0, 3.0)", config={"hps": {"lr": 0.1}, "attempt": 99})
    config = json.loads((runner.folder / "config.json").read_text())
    assert config == {
        "hps": {"lr": 0.1},
        "contract": 1,
        "trial": "t1",
        "attempt": 1,
        "steps": 3,
        "resume": None,
        "run_dir": str(runner.folder),
        "checkpoint_dir": str(runner.folder / "ckpt"),
        "report_file": str(runner.folder / "attempt-1" / "reports.jsonl"),
    }
    assert os.stat(runner.folder / "config.json").st_mode & 0o777 == 0o600


def test_a_node_that_does_not_speak(runner: Runner) -> None:
    """Its exit code counts alone. It is silent, and its log has a folder of its own."""
    given = {"speaks": False, "node_rank": 1, "attempt": 1, "timeouts": TimeoutsSpec(start_s=0.1, silence_s=0.1)}
    run = runner.run("time.sleep(0.5); print('node 1'); report(0, float('nan'))", **given)
    assert (run.ending.status, run.seen, run.ending.points) == ("finished", [], ())
    assert (runner.folder / "attempt-1" / "node-1" / "stdout").read_text() == "node 1\n"
    assert runner.run("sys.exit(75)", **given).ending.kind == "lost"


def test_a_command_gets_declared_variables_and_no_secret(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "s3cret"
    for name, value in {"SLURM_JWT": secret, "HF_TOKEN": secret, "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    runner.run("print(json.dumps(dict(os.environ)))", env={"MINE": "1"})
    variables = json.loads((runner.folder / "attempt-1" / "stdout").read_text())
    assert secret not in variables.values()
    assert (variables["MINE"], variables["SLURM_JOB_ID"]) == ("1", "7")
    assert Path(variables["HPXFER_CONFIG"]) == runner.folder / "config.json"
    assert secret not in (runner.folder / "config.json").read_text()


def test_arguments_are_no_shell(runner: Runner) -> None:
    nasty = "$(touch hacked); `touch hacked` && touch hacked | *"
    runner.run(["printf", "%s", nasty], speaks=False)
    assert (runner.folder / "attempt-1" / "stdout").exists() is False  # a node has its own folder
    assert (runner.folder / "attempt-1" / "node-0" / "stdout").read_text() == nasty
    assert not (runner.folder.parent / "hacked").exists()


def test_an_attempt_ends_what_earlier_ones_left_and_nothing_else(runner: Runner, tmp_path: Path) -> None:
    """A worker and its supervisor were killed together: a rank in a session of its own is left."""
    runner.run("sys.exit(75)")
    files = [runner.folder / "attempt-1" / "reports.jsonl", tmp_path / "t2" / "attempt-1" / "reports.jsonl"]
    command = [sys.executable, "-S", "-c", "input()"]
    left, other = (
        subprocess.Popen(command, stdin=subprocess.PIPE, env={"HPXFER_REPORT_FILE": str(file)}) for file in files
    )
    try:
        assert runner.run("report(2, 1.0)").ending.status == "finished"
        assert left.wait(10) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.communicate()


# Checkpoints of which the last two are kept, one every 10 ms.
GOES_ON = """
import itertools, json, os, sys, time
folder = os.path.join(sys.argv[1], "ckpt")
os.makedirs(folder, exist_ok=True)
lines = open(os.environ["HPXFER_REPORT_FILE"], "a", buffering=1)
for step in itertools.count():
    path = os.path.join(folder, str(step))
    open(path, "w").close()
    lines.write(json.dumps({"type": "report", "step": step, "loss": 3.0}) + "\\n")
    lines.write(json.dumps({"type": "checkpoint", "step": step, "path": path}) + "\\n")
    if step > 1:
        os.remove(os.path.join(folder, str(step - 2)))
    time.sleep(0.01)
"""


def test_the_checkpoint_that_an_attempt_goes_on_from_is_still_there(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker and its supervisor were killed together, and the command goes on: it removes its older checkpoints."""
    runner.steps = 10**6
    runner.run("sys.exit(75)")
    reports = runner.folder / "attempt-1" / "reports.jsonl"
    left = subprocess.Popen(
        [sys.executable, "-S", "-c", GOES_ON, str(runner.folder)], env={"HPXFER_REPORT_FILE": str(reports)}
    )

    def slowly(*given: Any) -> Any:
        found = newest_checkpoint(*given)
        time.sleep(0.5)  # a busy machine
        return found

    try:
        monkeypatch.setattr(import_module("hpxfer.trainer.follow"), "newest_checkpoint", slowly)
        wait_until(lambda: reports.read_text().count("checkpoint") > 5)
        run = runner.run(f'open(json.load(open(os.environ["HPXFER_CONFIG"]))["resume"]).close()\n{RESULT}')
    finally:
        left.kill()
        left.wait()
    assert run.ending.status == "finished", run.ending.message
