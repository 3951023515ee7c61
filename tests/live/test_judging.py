"""When the report of a live page is made anew, and what is said where it cannot be made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_runs import Clock
from report_cases import write_store

from hpxfer.live import judging as module
from hpxfer.live.judge import NICE, answer
from hpxfer.live.judging import LEAST_S, REST, Judging

POLLS = 20_000
# Answers every request with the request itself.
ECHO = "import json, sys\nfor line in sys.stdin: print(json.dumps({'contents': line}), flush=True)"
ENDS = "import sys; sys.stdin.readline(); sys.exit(3)"


def idle(judging: Judging) -> Judging:
    """Wait for the answer."""
    for _ in range(POLLS):
        if not judging.is_busy:
            return judging
        time.sleep(0.005)
    raise AssertionError("no answer came")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def made(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Judging]]:
    """Return the maker of a Judging whose process runs this code instead."""
    every: list[Judging] = []

    def make(code: str) -> Judging:
        def start() -> subprocess.Popen[str]:
            command = [sys.executable, "-c", code]
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        monkeypatch.setattr(module, "_start", start)
        every.append(Judging(tmp_path, "results/here", clock))
        return every[-1]

    yield make
    for judging in every:
        judging.close()


def change(folder: Path, number: int) -> None:
    (folder / f"trials-{number:06d}.parquet").write_text("x" * number)


def test_a_report_is_made_of_a_copy_once_per_change(made: Callable[[str], Judging], tmp_path: Path) -> None:
    judging = made(ECHO)
    change(tmp_path, 1)
    judging.look(is_running=False, is_watched=True)
    first = idle(judging).judged
    request = json.loads(first.contents)
    assert (first.number, first.why_not) == (1, "")
    assert (request["where"], request["is_running"], request["problems"]) == ("results/here", False, [])
    assert Path(request["folder"]) != tmp_path
    assert os.listdir(request["folder"]) == ["trials-000001.parquet"]
    for _ in range(3):
        judging.look(is_running=False, is_watched=True)
    assert (judging.is_busy, judging.judged.number) == (False, 1)


def test_while_a_driver_runs_it_rests_longer_than_it_worked(
    made: Callable[[str], Judging], tmp_path: Path, clock: Clock
) -> None:
    judging = made(ECHO)
    judging.look(is_running=True, is_watched=True)
    clock.now = 30.0  # the first report took half a minute, unless the answer came before the clock was set
    idle(judging)
    judging._asked_at, judging._rest_until = 0.0, 30.0 + REST * 30.0
    change(tmp_path, 1)
    for now, due in ((31.0, False), (30.0 + REST * 30.0 - 0.1, False), (30.0 + REST * 30.0, True)):
        clock.now = now
        judging.look(is_running=True, is_watched=True)
        assert (idle(judging).judged.number == 2) is due


def test_a_rest_is_a_multiple_of_the_work_and_at_least_some_seconds(
    made: Callable[[str], Judging], clock: Clock
) -> None:
    judging = made("")
    for took_s, rest_s in ((0.0, LEAST_S), (LEAST_S, REST * LEAST_S), (100.0, REST * 100.0)):
        judging._asked_at, clock.now = 1000.0, 1000.0 + took_s
        judging._end_of_answer(contents="x")
        assert judging._rest_until == clock.now + rest_s


def test_after_the_run_nothing_is_slowed_and_it_hardly_rests(made: Callable[[str], Judging], clock: Clock) -> None:
    judging = made(ECHO)
    judging.look(is_running=True, is_watched=True)
    idle(judging)
    judging._rest_until = 1e6
    clock.now = LEAST_S - 0.1
    judging.look(is_running=False, is_watched=True)
    assert idle(judging).judged.number == 1
    clock.now = LEAST_S
    judging.look(is_running=False, is_watched=True)  # the report says what a run that is over leaves open
    assert idle(judging).judged.number == 2


def test_what_nobody_sees_is_made_once(made: Callable[[str], Judging], tmp_path: Path, clock: Clock) -> None:
    judging = made(ECHO)
    judging.look(is_running=True, is_watched=False)
    assert idle(judging).judged.number == 1
    change(tmp_path, 1)
    clock.now = 1e6
    judging.look(is_running=True, is_watched=False)
    assert idle(judging).judged.number == 1
    judging.look(is_running=True, is_watched=True)
    assert idle(judging).judged.number == 2


def test_a_process_that_ends_is_said_so_and_another_takes_over(
    made: Callable[[str], Judging], tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging = made(ENDS)
    judging.look(is_running=True, is_watched=True)
    assert idle(judging).judged.why_not == "the process that makes it has ended: exit code 3"
    last = made(ECHO)  # from now on processes echo
    change(tmp_path, 1)
    clock.now = 1e6
    judging.look(is_running=True, is_watched=True)
    assert (idle(judging).judged.number, judging.judged.why_not) == (1, "")
    assert last.judged.number == 0


def test_a_process_that_is_killed_leaves_the_last_report(
    made: Callable[[str], Judging], tmp_path: Path, clock: Clock
) -> None:
    judging = made(ECHO)
    judging.look(is_running=True, is_watched=True)
    before = idle(judging).judged
    assert judging._process is not None
    judging._process.send_signal(signal.SIGSTOP)
    change(tmp_path, 1)
    clock.now = 1e6
    judging.look(is_running=True, is_watched=True)
    judging._process.kill()
    after = idle(judging).judged
    assert (after.contents, after.number) == (before.contents, 1)
    assert after.why_not == "the process that makes it has ended: signal SIGKILL"


def test_a_copy_that_cannot_be_made_is_said_so(made: Callable[[str], Judging], monkeypatch: pytest.MonkeyPatch) -> None:
    judging = made(ECHO)
    monkeypatch.setattr("hpxfer.live.snapshot.TRIES", 0)
    judging.look(is_running=True, is_watched=True)
    assert "its files keep changing" in judging.judged.why_not
    assert not judging.is_busy


def test_the_end_leaves_no_process_and_no_copy(made: Callable[[str], Judging], tmp_path: Path) -> None:
    judging = made(ECHO)
    judging.look(is_running=True, is_watched=True)
    folder = Path(json.loads(idle(judging).judged.contents)["folder"])
    process = judging._process
    assert process is not None
    assert folder.exists()
    judging.close()
    assert process.returncode == 0
    assert not folder.parent.exists()


def asking(folder: Path, **changed: Any) -> dict[str, str]:
    return answer({"folder": str(folder), "where": "results/<here>", "is_running": True, "problems": [], **changed})


def test_the_contents_are_the_reports_own_and_name_the_folder_that_was_copied(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "a&b", every=2)
    (folder / "other.parquet").write_text("x")
    found = asking(folder, problems=["one file"])["contents"]
    assert [f'<section id="{name}">' in found for name in ("verdict", "trials", "limits")] == [True] * 3
    assert "<html" not in found
    assert "are still to come" in found
    assert "Next: nothing yet. The run goes on" in found
    assert "wait for the run" in found
    assert "results/&lt;here&gt;/other.parquet: not a name that the store gives" in found
    assert "one file" in found
    assert str(tmp_path) not in found
    over = asking(folder, is_running=False)["contents"]
    assert "running the sweep again trains these and nothing else" in over
    assert "still to come" not in over


def test_without_results_it_says_so_in_words(tmp_path: Path) -> None:
    assert asking(tmp_path) == {"why_not": "no trial has a result yet"}
    folder = write_store(tmp_path / "a")
    (folder / "sweep.yaml").write_text("name: 3")
    assert asking(folder)["why_not"].startswith("results/<here>/sweep.yaml: the stored sweep is damaged")


def test_a_bug_is_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raising(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("hpxfer.live.judge.contents_of", raising)
    assert asking(tmp_path) == {"why_not": "hpxfer has a bug: ZeroDivisionError: by zero"}
    assert "Traceback" in capsys.readouterr().err


def test_the_process_has_a_low_priority_and_ends_with_its_input(tmp_path: Path) -> None:
    process = module._start()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"folder": str(tmp_path), "where": "x", "is_running": True, "problems": []}) + "\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline()) == {"why_not": "no trial has a result yet"}
    own = os.getpriority(os.PRIO_PROCESS, 0)  # these tests may run at a low priority themselves
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(own + NICE, 19)
    group = Path(f"/proc/{process.pid}/autogroup")
    if group.exists() and os.geteuid() == 0:  # of others, Linux takes one such wish in 0.1 s
        assert group.read_text().endswith(f" nice {NICE}\n")
    assert os.getsid(process.pid) == process.pid  # so that no other process is slowed with it
    process.stdin.close()
    assert process.wait(300) == 0
    process.stdout.close()
