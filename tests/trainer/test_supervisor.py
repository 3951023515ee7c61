"""The supervisor: whoever dies, no process of the command is left. Each test looks in /proc at its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from fixture_types import Patch
from trainer_jobs import PROLOGUE, Runner, tagged, to_the_end, wait_until

from hpxfer.spec.own import TimeoutsSpec
from hpxfer.trainer import follow
from hpxfer.trainer.supervisor import HALF_BYTES, Log, descendants, signal_all

SLOW = TimeoutsSpec(start_s=300.0, silence_s=300.0)
# Two ranks. Those that train on ignore SIGTERM.
RANK = """
import json, os, signal, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
signal.signal(signal.SIGTERM, signal.SIG_DFL if sys.argv[1:] else signal.SIG_IGN)
dist.barrier()
if dist.get_rank() == 0:
    with open(os.environ["HPXFER_REPORT_FILE"], "a") as lines:
        lines.write(json.dumps({"type": "report", "step": 0, "loss": 3.0}) + "\\n")
if sys.argv[1:] == ["die"] and dist.get_rank() == 1:
    os.kill(os.getpid(), 9)
if sys.argv[1:] == ["fail"] and dist.get_rank() == 1:
    sys.exit(75)
time.sleep(600)
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture
def rank(tmp_path: Path) -> str:
    """A script that torchrun starts as two ranks on CPUs."""
    path = tmp_path / "rank.py"
    path.write_text(RANK)
    return str(path)


@pytest.mark.slow
def test_ranks_of_torchrun_are_killed(runner: Runner, rank: str) -> None:
    following = follow(runner.job([*TORCHRUN, rank], timeouts=SLOW), stop=lambda: False)
    assert next(following)[-1].step == 0
    processes = runner.alive
    sessions = {os.getsid(pid) for pid in processes}
    assert len(processes) >= 3  # torchrun and two ranks
    assert len(sessions) >= 3  # each in its own session: a kill of torchrun's group would miss the ranks
    following.close()
    assert runner.alive == []


@pytest.mark.slow
@pytest.mark.parametrize(("how", "kind"), [("die", "memory"), ("fail", "lost")])
def test_what_a_rank_did_is_seen_through_torchrun(runner: Runner, rank: str, how: str, kind: str) -> None:
    run = runner.run([*TORCHRUN, rank, how], timeouts=SLOW, grace_s=5.0)
    assert (run.ending.status, run.ending.kind) == ("failed", kind), run.ending.message


@pytest.mark.slow
def test_a_torchrun_that_others_ask_to_end_is_lost(runner: Runner, rank: str) -> None:
    following = follow(runner.job([*TORCHRUN, rank], timeouts=SLOW), stop=lambda: False)
    next(following)
    os.kill(min(runner.alive), signal.SIGTERM)
    # Its ranks ignore SIGTERM: it kills them after 30 s itself. So long nobody waits here.
    for pid in runner.alive[1:]:
        os.kill(pid, signal.SIGKILL)
    _, ending = to_the_end(following)
    assert (ending.status, ending.kind) == ("failed", "lost"), ending.message


def children_of(pid: int, *, recursive: bool = False) -> list[int]:
    return [each.pid for each in psutil.Process(pid).children(recursive=recursive)]


def supervisor_of(pids: Iterable[int]) -> int:
    (found,) = (pid for pid in pids if b"supervisor.py" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def test_a_trainer_that_others_ask_to_end_and_that_exits_with_0_is_lost(runner: Runner) -> None:
    """Slurm sends SIGTERM to every process of a job. Some trainers then save, and exit with 0."""
    program = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nreport(0, 3.0)\ntime.sleep(600)"
    following = follow(runner.job(program, timeouts=SLOW), stop=lambda: False)
    next(following)
    for pid in (supervisor_of(children_of(os.getpid())), *runner.alive):
        os.kill(pid, signal.SIGTERM)
    _, ending = to_the_end(following)
    assert (ending.status, ending.kind) == ("failed", "lost"), ending.message


# It leaves a child in a session of its own.
ORPHAN = "if not os.fork(): os.setsid(); time.sleep(600)\nreport(0, 3.0)\ntime.sleep(600)"
HOST = """
import os, sys, time
from pathlib import Path
from hpxfer.trainer import Job, follow
argv, folder, tag = sys.argv[4:], Path(sys.argv[1]), sys.argv[2]
job = Job(argv=tuple(argv), folder=folder, trial_id="t1", steps=3, config={}, cwd=folder.parent,
          env={"HPXFER_TEST_TAG": tag}, grace_s=float(sys.argv[3]))
for seen in follow(job, stop=lambda: False):
    if os.environ.get("FORKS") and not os.fork():
        time.sleep(600)
    print(seen[-1].step, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("forks", ["", "1"], ids=["its pipe closes", "a fork of the parent keeps its pipe open"])
def test_everything_goes_with_the_parent_of_the_supervisor(tmp_path: Path, forks: str) -> None:
    tag = f"host{os.getpid()}"
    command = [sys.executable, "-S", "-c", PROLOGUE + ORPHAN]
    following = [sys.executable, "-c", HOST, str(tmp_path / "t1"), tag, "60", *command]
    environment = {**os.environ, "FORKS": forks}
    children, supervisor = list[int](), 0
    with subprocess.Popen(following, stdout=subprocess.PIPE, text=True, env=environment) as host:
        try:
            assert host.stdout is not None
            assert host.stdout.readline() == "0\n"
            below = children_of(host.pid, recursive=True)
            children = children_of(host.pid)
            supervisor = supervisor_of(children)
            assert len(tagged(tag)) == 2
        finally:
            host.kill()
            for pid in set(children) - {supervisor}:
                wait_until(lambda: not tagged(tag))
                os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not tagged(tag))
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))


def test_everything_goes_if_the_supervisor_itself_is_killed(runner: Runner) -> None:
    following = follow(runner.job(ORPHAN), stop=lambda: False)
    next(following)
    wait_until(lambda: len(runner.alive) == 2)
    os.kill(supervisor_of(children_of(os.getpid())), signal.SIGKILL)
    _, ending = to_the_end(following)
    assert ending.kind == "lost"
    assert "supervisor of the command is gone" in ending.message


def test_the_command_goes_if_its_supervisor_and_its_worker_are_killed_at_once(tmp_path: Path) -> None:
    tag = f"both{os.getpid()}"
    command = [sys.executable, "-S", "-c", PROLOGUE + "report(0, 3.0)\ntime.sleep(600)"]
    following = [sys.executable, "-c", HOST, str(tmp_path / "t1"), tag, "60", *command]
    with subprocess.Popen(following, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == "0\n"
        (supervisor,) = children_of(host.pid)
        for pid in (host.pid, supervisor):
            os.kill(pid, signal.SIGSTOP)
        for pid in (host.pid, supervisor):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not tagged(tag))


def test_processes_are_found_where_proc_hides_those_of_others(monkeypatch: Patch) -> None:
    """With hidepid=1 a look at the process of another user is refused, which must not end the supervisor."""
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"]) as command:
        found = psutil.Process(command.pid)
        wait_until(lambda: len(found.children()) == 1)
        expected = {each.pid for each in descendants()}
        monkeypatch.setattr(psutil.Process, "children", Mock(side_effect=psutil.AccessDenied(1)))
        seen = [each.pid for each in descendants()]
        signal_all(descendants(), signal.SIGKILL)
    assert set(seen) == expected > {command.pid}
    assert len(seen) == len(expected)


def test_a_command_inherits_no_blocked_or_ignored_signal_and_no_file_of_the_supervisor(runner: Runner) -> None:
    program = """
print(sorted(map(int, os.listdir('/proc/self/fd'))))
status = open("/proc/self/status").read().split("\\n")
masks = {line.split(":")[0]: int(line.split()[1], 16) for line in status if line[:6] in ("SigBlk", "SigIgn")}
asked = 1 << signal.SIGTERM - 1 | 1 << signal.SIGINT - 1
print(masks["SigBlk"] & asked, masks["SigIgn"] & asked)
"""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        runner.run(program)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    files, signals = (runner.folder / "attempt-1" / "stdout").read_text().splitlines()
    assert signals == "0 0"
    assert files in ("[0, 1, 2, 3, 4]", "[0, 1, 2, 3]")  # the report file, and the folder that is listed


@pytest.mark.parametrize("sizes", [[], [10], [HALF_BYTES], [HALF_BYTES + 1], [2 * HALF_BYTES], [100_000] * 25])
def test_a_log_keeps_its_start_and_its_end(tmp_path: Path, sizes: list[int]) -> None:
    data = bytes(index % 251 for index in range(sum(sizes)))
    log, start = Log(str(tmp_path / "log")), 0
    for size in sizes:
        log.write(data[start : start + size])
        start += size
    log.flush()
    kept = (tmp_path / "log").read_bytes()
    left_out = len(data) - 2 * HALF_BYTES
    if left_out <= 0:
        assert kept == data
    else:
        assert kept == data[:HALF_BYTES] + f"\n... {left_out} bytes left out ...\n".encode() + data[-HALF_BYTES:]
