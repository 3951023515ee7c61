"""The runner of an acceptance, with made-up items: they fail, hang, run out of memory, and print what is no number."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from hpxfer.bench.accept_runner import Ended, Item, State, run_items, states_of
from hpxfer.host.json_lines import append_line, json_lines


def item(name: str, code: str = "", **more: Any) -> Item:
    """Return an item that prints a number and then runs `code`."""
    begin = f"import json,os,signal,subprocess,sys,time\nprint(json.dumps({{'key': {name!r}, 'x': 1.5}}), flush=True)\n"
    return Item(name=name, command=(sys.executable, "-c", begin + code), **{"usual_s": 0.1, "limit_s": 10.0, **more})


def run(
    *items: Item, budget_s: float = 100.0, before: Mapping[str, State] | None = None, untested: bool = False
) -> tuple[list[Ended], list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    ended = run_items(
        items, budget_s=budget_s, before=before or {}, keep=lines.append, environment=os.environ, untested=untested
    )
    return list(ended), lines


def states(ended: list[Ended]) -> dict[str, str]:
    return {one.name: one.state for one in ended}


def gone(pid: int) -> bool:
    """Return whether a process ends within two seconds."""
    for _ in range(200):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def test_a_passing_item_keeps_its_numbers_then_its_end() -> None:
    ended, lines = run(item("a", "print('a word')\nprint(json.dumps({'key': 'b', 'y': [1, None]}))"))
    assert states(ended) == {"a": "passed"}
    assert [line.get("key") for line in lines] == ["a", "b", None]
    assert (lines[0]["of"], lines[0]["x"]) == ("a", 1.5)
    assert (lines[2]["item"], lines[2]["ok"], lines[2]["rc"]) == ("a", True, 0)


def test_a_number_is_kept_before_the_next_line_comes(tmp_path: Path) -> None:
    """The item prints its second number only once the first one is on the disk."""
    kept = tmp_path / "kept"
    code = f"while not os.path.exists({str(kept)!r}): time.sleep(0.01)\nprint(json.dumps({{'key': 'late'}}))"
    (ended,) = run_items(
        [item("a", code)], budget_s=10, before={}, keep=lambda line: kept.touch(), environment=os.environ
    )
    assert ended.state == "passed"


def test_a_failure_costs_one_item_and_says_why() -> None:
    ended, lines = run(item("a", "raise RuntimeError('the kernel is wrong')"), item("b"))
    assert states(ended) == {"a": "failed", "b": "passed"}
    (end,) = [line for line in lines if line.get("item") == "a"]
    assert (end["rc"], end["reason"]) == (1, "exit code 1")
    assert "the kernel is wrong" in end["tail"]


def test_an_item_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    """It ignores SIGTERM, and so does the process that it started, which holds its output open."""
    pids = tmp_path / "pids"
    code = f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal,time;signal.signal(15, 1);time.sleep(60)"])
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
time.sleep(60)
"""
    ended, _ = run(item("hang", code, limit_s=0.6), item("next"))
    assert states(ended) == {"hang": "failed", "next": "passed"}
    assert ended[0].reason == "killed at its limit of 0.6 s"
    assert all(gone(int(pid)) for pid in pids.read_text().split())


def test_what_an_item_leaves_behind_is_killed_and_not_waited_for(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    code = f"""
child = subprocess.Popen([sys.executable, "-c", "import time;time.sleep(60)"])
open({str(pids)!r}, "w").write(str(child.pid))
"""
    ended, _ = run(item("leaves", code, limit_s=20))
    assert states(ended) == {"leaves": "passed"}
    assert gone(int(pids.read_text()))


def test_an_item_that_closes_its_output_is_still_limited() -> None:
    ended, _ = run(item("mute", "os.close(1)\ntime.sleep(60)", limit_s=0.5))
    assert states(ended) == {"mute": "failed"}


def test_lack_of_memory_costs_one_item() -> None:
    too_much = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\nb = bytearray(2**34)"
    ended, lines = run(item("memory", too_much), item("killed", "os.kill(os.getpid(), 9)"), item("next"))
    assert states(ended) == {"memory": "failed", "killed": "failed", "next": "passed"}
    assert "MemoryError" in next(line["tail"] for line in lines if line.get("item") == "memory")
    assert ended[1].reason == "killed by SIGKILL, maybe for lack of memory"


def test_an_error_that_an_item_names_is_its_reason() -> None:
    ended, _ = run(item("a", "print(json.dumps({'error': 'OutOfMemoryError: 3 GiB'}))\nsys.exit(1)"))
    assert ended[0].reason == "OutOfMemoryError: 3 GiB"


def test_what_is_no_number_is_not_kept() -> None:
    code = r"""
print("{not json}")
print(json.dumps({"item": "a", "ok": True}))
print("[1, 2]")
sys.stdout.flush()
os.write(1, b"\xff\xfe garbage\n" + b"{" * 3000000 + b"\n")
os.write(1, b'{"key": "half", "x": 1')
"""
    ended, lines = run(item("a", code))
    assert states(ended) == {"a": "passed"}
    assert [line.get("key", line.get("item")) for line in lines] == ["a", "a"]
    assert json.loads(json.dumps(lines, allow_nan=False)) == lines


def test_a_number_that_is_not_finite_is_null_and_fails_the_item() -> None:
    code = """print('{"key": "n", "tflops": NaN, "us": {"deep": [1.0, -Infinity]}}')"""
    ended, lines = run(item("a", code))
    assert states(ended) == {"a": "failed"}
    assert ended[0].reason == "measured a number that is not finite: deep, tflops"
    assert lines[1]["tflops"] is None
    assert lines[1]["us"] == {"deep": [1.0, None]}


def test_an_item_that_measures_nothing_fails() -> None:
    silent = Item(name="a", command=(sys.executable, "-c", "print('ok')"), usual_s=0, limit_s=10)
    ended, _ = run(silent)
    assert (ended[0].state, ended[0].reason) == ("failed", "it measured nothing")


def test_a_failed_need_stops_what_depends_on_it_and_nothing_else() -> None:
    ended, lines = run(item("t", "sys.exit(1)"), item("k", needs=("t",)), item("r", needs=("k",)), item("other"))
    assert states(ended) == {"t": "failed", "k": "skipped", "r": "skipped", "other": "passed"}
    assert [line["skipped"] for line in lines if "skipped" in line] == [
        "t failed",
        "k has not passed; run it first, or give --untested",
    ]


def test_a_need_that_never_ran_stops_too_unless_the_user_says_so() -> None:
    one = item("k", needs=("t",))
    assert states(run(one)[0]) == {"k": "skipped"}
    assert states(run(one, untested=True)[0]) == {"k": "passed"}
    assert states(run(one, before={"t": "passed"})[0]) == {"k": "passed"}
    assert states(run(one, before={"t": "failed"}, untested=True)[0]) == {"k": "skipped"}


def test_an_item_that_cannot_run_here_says_why() -> None:
    ended, _ = run(item("t", missing="the tests are in a clone"), item("k", needs=("t",)))
    assert [one.reason for one in ended] == [
        "the tests are in a clone",
        "t has not passed; run it first, or give --untested",
    ]


def test_what_does_not_fit_the_budget_is_skipped_and_a_shorter_one_runs() -> None:
    ended, lines = run(item("long", usual_s=60), item("short"), budget_s=20)
    assert states(ended) == {"long": "skipped", "short": "passed"}
    assert lines[0]["skipped"] == "it usually takes 60 s, and 20 s of the budget are left"


def test_the_budget_ends_an_item_that_takes_longer_than_usual() -> None:
    """This is no failure: with more time it may pass."""
    ended, lines = run(item("slow", "time.sleep(60)"), budget_s=0.5)
    assert states(ended) == {"slow": "skipped"}
    assert ended[0].reason.startswith("the budget ended it after ")
    assert states_of(lines) == {}


def test_what_passed_before_is_not_repeated() -> None:
    ended, lines = run(item("a", "sys.exit(1)"), item("b"), before={"a": "passed", "b": "failed"})
    assert [(one.state, one.reason) for one in ended] == [("passed", "passed before"), ("passed", "")]
    assert {line.get("item", line.get("of")) for line in lines} == {"b"}


def test_the_state_of_an_item_is_that_of_its_runs() -> None:
    lines = [{"item": "a", "ok": False}, {"item": "a", "ok": True}, {"item": "a", "ok": False, "skipped": "no time"}]
    assert states_of([*lines, {"of": "b", "key": "b"}, {"item": "c", "ok": False}]) == {"a": "passed", "c": "failed"}


def test_a_killed_runner_leaves_its_numbers_and_is_resumed(tmp_path: Path) -> None:
    """Its child dies with it, and the second run repeats only what had not passed."""
    path, pid = tmp_path / "out.jsonl", tmp_path / "pid"
    hang = f"open({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"
    code = f"""
import os
from pathlib import Path
from hpxfer.bench.accept_runner import Item, run_items
from hpxfer.host.json_lines import append_line
items = {[(one.name, one.command) for one in (item("first"), item("second", hang))]!r}
items = [Item(name=name, command=command, usual_s=0.1, limit_s=50) for name, command in items]
list(run_items(items, budget_s=100, before={{}}, keep=lambda line: append_line(Path({str(path)!r}), line),
               environment=os.environ))
"""
    runner = subprocess.Popen([sys.executable, "-c", code])
    for _ in range(1000):
        if pid.exists() and pid.read_text() and path.read_text().count("\n") == 3:
            break
        time.sleep(0.02)
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    assert gone(int(pid.read_text()))
    lines = [line for _, line in json_lines(path)]
    assert [line.get("key", line.get("item")) for line in lines] == ["first", "first", "second"]
    ended = list(
        run_items(
            [item("first", "sys.exit(1)"), item("second")],
            budget_s=100,
            before=states_of(lines),
            keep=lambda line: append_line(path, line),
            environment=os.environ,
        )
    )
    assert states(ended) == {"first": "passed", "second": "passed"}
    assert states_of([line for _, line in json_lines(path)]) == {"first": "passed", "second": "passed"}
