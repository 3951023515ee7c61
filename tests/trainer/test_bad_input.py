"""Commands that misbehave: each ends as a named status, in time, and leaves no process behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trainer_jobs import QUICK, Run, Runner, to_the_end

from hpxfer.spec.own import TimeoutsSpec
from hpxfer.trainer import follow

HANG = "time.sleep(600)"
# Half of a hang. A time-out and the kill take seconds, and a busy machine adds what it adds.
SOON_S = 300.0


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def failed(run: Run, kind: str, *words: str) -> None:
    """Assert that a run failed so, in time, with words in its message."""
    assert (run.ending.status, run.ending.kind) == ("failed", kind), run.ending.message
    for word in words:
        assert word in run.ending.message
    assert run.took_s < SOON_S


FIRST = "report(0, 3.0)\n"
SHELL_KILLED = ["sh", "-c", "sh -c 'kill -9 $$'; exit $?"]
KILLS = "signal.signal(signal.SIGINT, signal.SIG_DFL)\nos.kill(os.getpid(), signal.SIGINT)\n" + HANG
SEGFAULT = "def train(): os.kill(os.getpid(), signal.SIGSEGV)\ntrain()"


@pytest.mark.parametrize(
    ("program", "kind", "words"),
    [
        (["no-such-program", "--lr", "1"], "input", "cannot be started|no-such-program|No such file"),
        (["sh", "-c", "no-such-program"], "input", "exit code|no-such-"),
        (["./train.sh"], "input", "cannot be started|Permission denied"),
        (["python3", "no-such-script.py"], "input", "No such file"),
        ("print('done')", "bug", "it reported no loss|done"),
        (SHELL_KILLED, "memory", "signal 9"),
        ("def train(): 1 / 0\ntrain()", "bug", "exit code 1|ZeroDivisionError|in train"),
        (SEGFAULT, "bug", "signal 11|in train"),
        (KILLS, "lost", "signal"),
    ],
)
def test_it_cannot_start_or_ends_badly(runner: Runner, program: str | list[str], kind: str, words: str) -> None:
    (runner.folder.parent / "train.sh").write_text("echo")  # which may not be run
    failed(runner.run(program), kind, *words.split("|"))


def test_a_folder_that_is_not_there(runner: Runner, tmp_path: Path) -> None:
    failed(runner.run(HANG, cwd=tmp_path / "gone"), "input", "cannot be started", "gone")


STUCK = "import faulthandler\nfaulthandler.register(signal.SIGUSR1)\ndef stuck():\n  time.sleep(600)\nstuck()"


@pytest.mark.parametrize(
    ("program", "timeouts", "words"),
    [
        (FIRST + HANG, TimeoutsSpec(start_s=300.0, silence_s=1.0), "no line for silence_s, 1 s"),
        ("while True: say(type='alive'); time.sleep(0.1)", TimeoutsSpec(wall_s=1.0), "longer than wall_s, 1 s"),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HANG, TimeoutsSpec(start_s=1.0), "start_s"),
        slow(STUCK, QUICK, "in stuck"),
        slow("while True: os.write(1, b'x' * 2**20)", QUICK, "start_s|xxx"),
    ],
)
def test_it_hangs(runner: Runner, program: str, timeouts: TimeoutsSpec, words: str) -> None:
    run = runner.run(program, timeouts=timeouts)
    failed(run, "timeout", *words.split("|"))
    assert [point.step for point in run.ending.points] == ([0] if program.startswith("report") else [])


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("print('step 1 loss 3.2', file=lines, flush=True)", ":1: must be one JSON object, got 'step 1"),
        (FIRST + FIRST, "must be greater than that of the report before, 0, got 0"),
        ("while True: lines.write('\\n' * 2**16)", "must have at most"),
    ],
)
def test_it_reports_what_is_no_report(runner: Runner, program: str, words: str) -> None:
    failed(runner.run(f"{program}\n{HANG}"), "bug", words, "reports.jsonl")


def test_it_writes_100_mb_a_second(runner: Runner) -> None:
    program = """
data = b"x" * 2**20
for pipe in (1, 2):
    for second in range(200):
        os.write(pipe, data)
    os.write(pipe, b"the end")
for step in range(3): report(step, 3.0)
"""
    run = runner.run(program, timeouts=TimeoutsSpec(start_s=SOON_S))
    assert run.ending.status == "finished", run.ending.message
    for name in ("stdout", "stderr"):
        log = (runner.folder / "attempt-1" / name).read_bytes()
        assert len(log) < 2**20 + 100
        assert log.startswith(b"xxx")
        assert log.endswith(b"the end")
        assert b"... 208666631 bytes left out ..." in log  # 200 MiB and 7 bytes, less 1 MiB


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("for _ in range(3):\n  if not os.fork(): time.sleep(600)", 3),
        ("if not os.fork():\n  os.setsid()\n  if not os.fork():\n    os.setsid(); time.sleep(600)\n  os._exit(0)\n", 0),
        ("import subprocess\nsubprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM; sleep 600 & sleep 600'])", 0),
    ],
    ids=["forks", "daemons", "sessions that ignore SIGTERM"],
)
def test_it_leaves_children(runner: Runner, program: str, code: int) -> None:
    program += f"\nfor step in range(3): report(step, 3.0)\nlines.close()\nos._exit({code})"
    run = runner.run(program)
    assert run.ending.status == ("failed" if code else "finished"), run.ending.message
    assert run.took_s < SOON_S


def test_it_forks_faster_than_it_is_killed(runner: Runner) -> None:
    program = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
report(0, 3.0)
until = time.monotonic() + 30
for generation in range(200_000):
    time.sleep(0.001)
    if os.fork(): os._exit(0)
    os.setsid()
    if time.monotonic() > until: break
"""
    failed(runner.run(program), "bug", "exit code 0 without a result line")


def test_it_cuts_its_report_file(runner: Runner) -> None:
    program = "report(0, 3.0)\nwhile not os.path.exists('go'): time.sleep(0.01)\nopen(lines.name, 'w').close()\n" + HANG
    following = follow(runner.job(program), stop=lambda: False)
    next(following)  # the line was read
    (runner.folder.parent / "go").touch()
    _, ending = to_the_end(following)
    assert (ending.status, ending.kind) == ("failed", "bug")
    assert "must only grow" in ending.message


@pytest.mark.slow
def test_its_report_file_is_a_folder_or_a_pipe(runner: Runner) -> None:
    for make in ("os.mkdir", "os.mkfifo"):
        run = runner.run(f"lines.close(); os.unlink(lines.name); {make}(lines.name)\n" + HANG, timeouts=QUICK)
        assert run.ending.status == "failed"
        assert run.ending.kind in ("bug", "timeout")
        assert run.took_s < SOON_S


def test_it_closes_its_output_and_goes_on(runner: Runner) -> None:
    program = "os.close(1); os.close(2); time.sleep(0.3)\nfor step in range(3): report(step, 3.0)"
    assert runner.run(program).ending.status == "finished"
