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
KILLS = "signal.signal(signal.SIGINT, signal.SIG_DFL)\nos.kill(os.getpid(), signal.{})\n" + HANG
SEGFAULT = "def train(): os.kill(os.getpid(), signal.SIGSEGV)\ntrain()"


@pytest.mark.parametrize(
    ("program", "kind", "words"),
    [
        (["no-such-program", "--lr", "1"], "input", "cannot be started|no-such-program|No such file"),
        (["./train.py"], "input", "cannot be started|./train.py|No such file"),
        *((["sh", *given], "input", "exit code|no-such-") for given in (["-c", "no-such-program"], ["no-such-script"])),
        (["./train.sh"], "input", "cannot be started|Permission denied"),
        (["python3", "no-such-script.py"], "input", "No such file"),
        *(("print('done')", "bug", "it reported no loss|done"), ("report(1, 3.0)", "bug", "losses up to step 1 of 3")),
        ("say(type='result', status='finished')", "bug", "reported no loss"),
        *((FIRST + "os.kill(os.getpid(), 9)", "memory", "signal 9"), (SHELL_KILLED, "memory", "signal 9")),
        ("def train(): 1 / 0\ntrain()", "bug", "exit code 1|ZeroDivisionError|in train"),
        (SEGFAULT, "bug", "signal 11|in train"),
        *((KILLS.format(signal), "lost", "signal") for signal in ("SIGTERM", "SIGINT")),
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
        slow("print('waiting for data', flush=True)\n" + HANG, QUICK, "no line within start_s, 5 s|waiting for data"),
        slow(STUCK, QUICK, "in stuck"),
        slow("while True: os.write(1, b'x' * 2**20)", QUICK, "start_s|xxx"),
    ],
)
def test_it_hangs(runner: Runner, program: str, timeouts: TimeoutsSpec, words: str) -> None:
    run = runner.run(program, timeouts=timeouts)
    failed(run, "timeout", *words.split("|"))
    assert [point.step for point in run.ending.points] == ([0] if program.startswith("report") else [])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("step 1 loss 3.2", ":1: must be one JSON object, got 'step 1"),
        ('{"step": 1, "loss": 3.2}', "type: must be one of report, alive"),
        ('{"type": "reprot", "step": 1, "loss": 3.2}', "did you mean 'report'?"),
        ('{"type": "report", "step": 1}', "loss: must be given"),
        ('{"type": "report", "step": 1, "loss": 1, "lr": "1e-3"}', "lr: must be a number"),
        ('{"type": "report", "step": 4, "loss": 3.2}', "must not be beyond the 3 steps"),
        ('{"type": "report", "step": 1, "loss": 3, "trial": "t2"}', "must be the trial of the config, 't1', got 't2'"),
        ('{"type": "report", "step": 1, "loss": 3.2, "attempt": 7}', "must be the attempt of the config, 1, got 7"),
        ("[" * 100_000, "must be one JSON object"),
    ],
)
def test_it_reports_what_is_no_report(runner: Runner, line: str, words: str) -> None:
    run = runner.run(f"print({line!r}, file=lines, flush=True)\n" + HANG)
    failed(run, "bug", words, "reports.jsonl")


@pytest.mark.parametrize("loss", ["float('nan')", "float('inf')", "-float('inf')", "'NaN'", "'-Infinity'"])
def test_nan_from_the_first_step(runner: Runner, loss: str) -> None:
    run = runner.run(f"report(0, {loss})\n" + HANG)
    assert (run.ending.status, run.ending.diverged_step, run.ending.points) == ("diverged", 0, ())
    assert run.took_s < SOON_S


@pytest.mark.parametrize("second", [0, 1])
def test_its_steps_go_backwards(runner: Runner, second: int) -> None:
    run = runner.run(f"report(1, 3.0)\nreport({second}, 2.0)\n" + HANG)
    failed(run, "bug", f"must be greater than that of the report before, 1, got {second}")
    assert [(point.step, point.loss) for point in run.ending.points] == [(1, 3.0)]


@pytest.mark.parametrize("pipe", [1, 2])
def test_it_writes_100_mb_a_second(runner: Runner, pipe: int) -> None:
    program = f"""
data = b"x" * 2**20
for second in range(200):
    os.write({pipe}, data)
os.write({pipe}, b"the end")
for step in range(3): report(step, 3.0)
"""
    run = runner.run(program, timeouts=TimeoutsSpec(start_s=SOON_S))
    assert run.ending.status == "finished", run.ending.message
    log = (runner.folder / "attempt-1" / {1: "stdout", 2: "stderr"}[pipe]).read_bytes()
    assert len(log) < 2**20 + 100
    assert log.startswith(b"xxx")
    assert log.endswith(b"the end")
    assert b"... 208666631 bytes left out ..." in log  # 200 MiB and 7 bytes, less 1 MiB


@pytest.mark.parametrize("text", ['{"type": "alive"}\\n', "x", "\\n"])
def test_it_fills_the_report_file(runner: Runner, text: str) -> None:
    run = runner.run(f"while True: lines.write({text!r}.encode().decode('unicode_escape') * 2**16)")
    failed(run, "bug", "must have at most")


@pytest.mark.parametrize(
    "program",
    [
        "for _ in range(3):\n  if not os.fork(): time.sleep(600)",
        "if not os.fork():\n  os.setsid()\n  if not os.fork():\n    os.setsid(); time.sleep(600)\n  os._exit(0)\n",
        "import subprocess\nsubprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM; sleep 600 & sleep 600'])",
    ],
    ids=["forks", "daemons", "sessions that ignore SIGTERM"],
)
@pytest.mark.parametrize("code", [0, 3])
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
    assert "open it for appending" in ending.message


@pytest.mark.slow
def test_its_report_file_is_a_folder_or_a_pipe(runner: Runner) -> None:
    for make in ("os.mkdir", "os.mkfifo"):
        program = f"lines.close(); os.unlink(lines.name); {make}(lines.name)\n" + HANG
        run = runner.run(program, timeouts=QUICK)
        assert run.ending.status == "failed"
        assert run.ending.kind in ("bug", "timeout")
        assert run.took_s < SOON_S


def test_it_closes_its_output_and_goes_on(runner: Runner) -> None:
    program = "os.close(1); os.close(2); time.sleep(0.3)\nfor step in range(3): report(step, 3.0)"
    assert runner.run(program).ending.status == "finished"
