"""Trials of a user's own trainer from end to end: how each way to end is stored, and what comes after it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from fixture_types import Patch
from user_sweeps import write_user
from waiting import LONG_S, until

from hpxfer.driver import TrainingFailed, run
from hpxfer.executors.lost_workers import TRIES
from hpxfer.store import Store
from hpxfer.trainer.job import REPORTS, attempt_numbers
from hpxfer.trial.events import Event, Progress

# Trials of one shape and one HP, which differ in the seed.
ONE = (
    (", scaled: {args: {power: 1}}", ""),
    ("d_model: [128]", "d_model: [64]"),
    ("lr: [0.01, 0.02]", "lr: [0.015625]"),
    ("  control: plain\n", "  control: plain\n  timeouts: {grace_s: 1, silence_s: 300}\n"),
    ("  executor: local\n", "  executor: local\n  workers: 1\n"),
)
SILENT = ("silence_s: 300", "silence_s: 5")  # of a sweep with a program that falls silent
# A program counts its starts, and so knows its place among the trials, whatever their order is.
COUNT = """
with open("calls", "a") as calls:
    print(file=calls)
call = sum(1 for _ in open("calls"))
"""


def seeds(number: int) -> tuple[str, str]:
    return "seeds: 2", f"seeds: {number}"


def trained(folder: Path, program: str, *edits: tuple[str, str], **given: Any) -> dict[int, dict[str, Any]]:
    """Run a sweep with a small program as its trainer. Return seed -> stored row."""
    run(write_user(folder, program, *ONE, *edits), results=folder / "results", **given)
    return rows_of(folder)


def rows_of(folder: Path) -> dict[int, dict[str, Any]]:
    rows = Store.open(folder / "results" / "mine", write=False).read_trials().to_pylist()
    return {row["seed"]: row for row in rows}


def run_dir(folder: Path, row: dict[str, Any]) -> Path:
    return folder / "results" / "mine" / "runs" / str(row["trial_id"])


def loss_at(step: int, seed: int = 0) -> float:
    """Return the loss that the small programs report at an LR of 1/64 and a width of 64, where it is least."""
    return 2 + math.exp(-step / 3) + seed / 1000


# What seed does what, at its first attempt and at a later one.
PROGRAM = """
seed, attempt = config["seed"], config["attempt"]
if seed == 1:
    say(type="report", step=0, loss=loss_at(0))
    say(type="report", step=1, loss="NaN")
    time.sleep(100)
elif seed == 2 and attempt == 1:
    say(type="report", step=0, loss=loss_at(0))
    # As a worker that is killed while it writes how the attempt ended.
    from pathlib import Path
    from hpxfer.host.files import half_written
    half_written(Path(config["report_file"]).with_name("ended.json")).write_text("{")
    os.kill(os.getpid(), 9)
elif seed == 3 and attempt == 1:
    say(type="report", step=0, loss=loss_at(0))
    time.sleep(100)
elif seed == 4 and not config["resume"]:
    for step in range(10):
        say(type="report", step=step, loss=9.0 if step > 6 else loss_at(step))
    path = os.path.join(config["checkpoint_dir"], "six")
    open(path, "w").write("6")
    say(type="checkpoint", step=6, path=path)
    sys.exit(75)
elif seed == 4:
    for step in range(int(open(config["resume"]).read()) + 1, steps):
        say(type="report", step=step, loss=loss_at(step))
    say(type="result", status="finished", validation_loss=loss_at(steps))
else:
    finish()
"""


def check_endings(folder: Path, rows: dict[int, dict[str, Any]]) -> None:
    """Check what is stored of the trials of PROGRAM."""
    assert {seed: row["status"] for seed, row in rows.items()} == {
        **dict.fromkeys((0, 2, 3, 4), "finished"),
        1: "diverged",
    }
    assert {seed: row["attempts"] for seed, row in rows.items()} == {0: 1, 1: 1, 2: 2, 3: 2, 4: 2}
    assert {seed: row["resumes"] for seed, row in rows.items()} == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1}
    for seed in (0, 2, 3, 4):
        assert rows[seed]["validation_loss_nats"] == pytest.approx(loss_at(20, seed), rel=1e-12)
        # The window is the last two steps, of which the mean says too little.
        assert rows[seed]["final_window_loss_nats"] is None
        assert rows[seed]["error"] is None
    assert (rows[1]["diverged_step"], rows[1]["validation_loss_nats"]) == (1, None)
    assert rows[1]["last_finite_loss_nats"] == pytest.approx(loss_at(0, 1), rel=1e-12)
    ends = {
        seed: [
            json.loads((run_dir(folder, rows[seed]) / f"attempt-{number}" / "ended.json").read_text())["kind"]
            for number in attempt_numbers(run_dir(folder, rows[seed]))
        ]
        for seed in (2, 3, 4)
    }
    assert ends == {2: ["memory", None], 3: ["timeout", None], 4: ["lost", None]}
    assert list((folder / "results").rglob("*.tmp")) == []
    curves = Store.open(folder / "results" / "mine", write=False).read_curves().to_pandas()
    found = curves[(curves["trial_id"] == rows[4]["trial_id"]) & (curves["metric"] == "train_loss_nats")]
    # From the checkpoint on, the later attempt counts: none of the nines is left.
    assert list(found.sort_values("step")["step"]) == [*range(20)]
    assert list(found.sort_values("step")["value"]) == pytest.approx([loss_at(step, 4) for step in range(20)], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "ray"])
@pytest.mark.filterwarnings("ignore")  # Ray's own, in its own threads
def test_each_end_is_stored_and_followed_by_what_the_contract_says(tmp_path: Path, executor: str) -> None:
    check_endings(tmp_path, trained(tmp_path, PROGRAM, seeds(5), SILENT, ("executor: local", f"executor: {executor}")))


# It kills its worker, the parent of its supervisor, after each checkpoint, or before it writes any.
KILLS = """
import signal

def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])

start = 0 if config["resume"] is None else 1 + int(open(config["resume"]).read())
for step in range(start, steps):
    say(type="report", step=step, loss=loss_at(step))
    if step < TRIES:
        if SAVES:
            path = os.path.join(config["checkpoint_dir"], str(step))
            open(path, "w").write(str(step))
            say(type="checkpoint", step=step, path=path)
        os.kill(parent(os.getppid()), signal.SIGKILL)
        time.sleep(60)
say(type="result", status="finished", validation_loss=2.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("executor", "saves", "status", "attempts"),
    [("local", True, "finished", TRIES + 1), ("ray", True, "finished", TRIES + 1), ("local", False, "failed", TRIES)],
)
def test_a_lost_worker_costs_a_try_only_if_no_checkpoint_advanced(
    executor: str, saves: bool, status: str, attempts: int, tmp_path: Path
) -> None:
    program = KILLS.replace("TRIES", str(TRIES)).replace("SAVES", str(saves))
    (row,) = trained(tmp_path, program, seeds(1), ("executor: local", f"executor: {executor}")).values()
    assert row["status"] == status, row["error"]
    assert len(attempt_numbers(run_dir(tmp_path, row))) == attempts
    if status == "failed":
        assert row["error_kind"] == "lost"
        assert row["error"].startswith(f"the worker was lost {TRIES} times")


# At SIGTERM it takes a second to write a checkpoint, longer than a stack of the built-in trainer gets here.
STOPS = """
import signal
step = 0 if config["resume"] is None else 1 + int(open(config["resume"]).read())

def save(*_):
    time.sleep(1)
    path = os.path.join(config["checkpoint_dir"], "last")
    open(path, "w").write("3")
    say(type="checkpoint", step=3, path=path)
    sys.exit(75)

signal.signal(signal.SIGTERM, save)
first = step == 0
while step < steps:
    say(type="report", step=step, loss=3.0)
    step += 1
    if step == 4 and first:
        time.sleep(600)
say(type="result", status="finished", validation_loss=2.0)
"""


def test_an_interrupted_trainer_has_its_grace_and_goes_on_from_there(tmp_path: Path, monkeypatch: Patch) -> None:

    def interrupt(_: object, event: Event, __: object) -> None:
        if isinstance(event, Progress):
            raise KeyboardInterrupt

    given = (STOPS, seeds(1), ("grace_s: 1,", "grace_s: 600,"))
    with pytest.raises(KeyboardInterrupt) as caught:
        trained(tmp_path, *given, on_event=interrupt)
    assert caught.value.__notes__ == ["1 trial stopped at step 4 of 20"]
    (row,) = trained(tmp_path, *given).values()
    assert (row["status"], row["resumes"], row["attempts"]) == ("finished", 1, 2)


def test_the_columns_of_a_user_trial(tmp_path: Path) -> None:
    loss = ("  control: plain\n", "  control: plain\n  loss: {name: eval, unit: bits per byte}\n")
    (row,) = trained(tmp_path, "finish()", seeds(1), loss).values()
    unknown = ("width", "depth", "head_dim", "num_experts", "params_total", "params_active", "context", "tokenizer")
    assert {row[name] for name in unknown} == {None}
    assert row["own"] == '{"act":"gelu","d_model":64}'
    assert (row["loss_name"], row["loss_unit"]) == ("eval", "bits per byte")
    assert (row["num_nodes"], row["num_gpus"], row["device"], row["stack_size"]) == (1, None, "cpu", 1)
    assert json.loads(row["provenance"]).keys() == {"commit", "dirty", "python", "packages"}
    assert row["tokens_per_s"] == pytest.approx(512 * 20 / row["wall_s"])


@pytest.mark.parametrize(
    ("program", "stops", "failed", "finished"),
    [
        ("sys.exit(3) if call == 2 else finish()", False, 1, 3),
        ("finish() if call == 1 else sys.exit(3)", True, 2, 1),  # the same twice
        ("sys.exit(call) if call in (3, 4) else finish()", False, 2, 2),  # two that differ
    ],
)
def test_a_later_bug_stops_the_run_if_it_is_seen_twice(
    tmp_path: Path, program: str, stops: bool, failed: int, finished: int
) -> None:
    with pytest.raises(TrainingFailed) if stops else nullcontext():
        trained(tmp_path, COUNT + program, seeds(4))
    rows = rows_of(tmp_path)
    assert Counter(row["status"] for row in rows.values()) == {"failed": failed, "finished": finished}
    if failed == 1:  # the same command tries it again, and it alone
        assert {row["status"] for row in trained(tmp_path, COUNT + program, seeds(4)).values()} == {"finished"}
        assert len((tmp_path / "calls").read_text()) == 5


WINDOW = (("  steps: 20\n", "  steps: 20\n  final_window_steps: 10\n"), ("grid:", "judge: {loss: final_window}\ngrid:"))
LOSSES = "for step in {}: say(type='report', step=step, loss=loss_at(step))"


@pytest.mark.parametrize(
    ("program", "kind", "text", "edits"),
    [
        ("sys.exit(78)", "input", "78", ()),
        ('sys.exit(sys.stderr.write("no such layer\\n") and 3)', "bug", "(?s)exit code 3.*no such layer", ()),
        ("pass", "bug", "it reported no loss", ()),
        ('say(type="report", step=0, loss=1.0, extra="text")', "bug", "extra", ()),
        (LOSSES.format("range(steps)"), "bug", "judged by the validation loss, and the trainer gave none; return", ()),
        (
            LOSSES.format("(0, 5, 11, 13, 15, 19)"),
            "bug",
            "window of 10 steps, and the trainer reported 4 losses",
            WINDOW,
        ),
    ],
)
def test_what_no_other_trial_would_do_better_stops_the_run(
    tmp_path: Path, program: str, kind: str, text: str, edits: tuple[tuple[str, str], ...]
) -> None:
    with pytest.raises(TrainingFailed, match=text):
        trained(tmp_path, program, seeds(2), *edits)
    (row,) = rows_of(tmp_path).values()
    assert (row["status"], row["error_kind"]) == ("failed", kind)


@pytest.mark.parametrize("first", [0, 1])
def test_the_final_window_is_the_mean_of_its_steps_counted_from_0_or_1(tmp_path: Path, first: int) -> None:
    program = f'for step in range(steps): say(type="report", step=step + {first}, loss=loss_at(step))'
    (row,) = trained(tmp_path, program, seeds(1), *WINDOW).values()
    assert row["validation_loss_nats"] is None
    expected = math.fsum(loss_at(step) for step in range(10, 20)) / 10
    assert row["final_window_loss_nats"] == pytest.approx(expected, rel=1e-12)


FUNCTION = ('  command: [python3, train.py, "{config_json}"]\n', "  function: train:train\n")


def test_a_function_is_trained_in_a_process_of_its_own(tmp_path: Path) -> None:
    program = """
import os
def train(trial):
    assert trial.hps["readout.lr_mult"] in (1.0, 2.0)
    for step in range(trial.steps):
        trial.report(step, 2.0 + trial.seed / 10, pid=os.getpid())
    return {"validation": trial.hps["readout.lr_mult"] + trial.args["power"]}
"""
    path = write_user(
        tmp_path, "", *ONE, seeds(1), FUNCTION, ("lr: [0.015625]", "readout.lr_mult: [1, 2]\nhps: {lr: 0.01}")
    )
    (tmp_path / "train.py").write_text(program)
    run(path, results=tmp_path / "results")
    store = Store.open(tmp_path / "results" / "mine", write=False)
    rows = store.read_trials().to_pylist()
    assert sorted(row["validation_loss_nats"] for row in rows) == [1.0, 2.0]
    curves = store.read_curves().to_pandas()
    assert curves[curves["metric"] == "pid"]["value"].nunique() == 2
    assert os.getpid() not in set(curves["value"])


@pytest.mark.slow
def test_a_function_on_several_nodes_is_started_under_torchrun(tmp_path: Path) -> None:
    """The nodes are processes of this machine: torchrun runs on each, and the ranks meet at the first."""
    program = """
import torch, torch.distributed as dist
def train(trial):
    dist.init_process_group("gloo")
    there = torch.ones(1)
    dist.all_reduce(there)
    for step in range(trial.steps):
        trial.report(step, 2.0 + trial.rank, world=trial.world, there=there.item())
    dist.destroy_process_group()
    return {"validation": 2.0}
"""
    path = write_user(
        tmp_path, "", *ONE, seeds(1), FUNCTION, ("  workers: 1\n", "  workers: 1\n  nodes_per_trial: 2\n")
    )
    (tmp_path / "train.py").write_text(program)
    run(path, results=tmp_path / "results")
    (row,) = rows_of(tmp_path).values()
    assert (row["status"], row["num_nodes"], row["validation_loss_nats"]) == ("finished", 2, 2.0)
    curves = Store.open(tmp_path / "results" / "mine", write=False).read_curves().to_pandas()
    values = curves.groupby("metric", observed=True)["value"].agg(set)
    assert values["world"] == values["there"] == {2.0}
    assert values["train_loss_nats"] == {2.0}, "the second rank has spoken"


@pytest.mark.slow
def test_a_driver_that_is_killed_goes_on_from_the_checkpoint_by_the_same_command(tmp_path: Path) -> None:
    program = """
start = 0 if config["resume"] is None else 1 + int(open(config["resume"]).read())
for step in range(start, steps):
    say(type="report", step=step, loss=loss_at(step))
    path = os.path.join(config["checkpoint_dir"], "newest")
    open(path, "w").write(str(step))
    say(type="checkpoint", step=step, path=path)
    if config["attempt"] == 1 and step == 5:
        time.sleep(600)
say(type="result", status="finished", validation_loss=loss_at(steps))
"""
    path = write_user(tmp_path, program, *ONE, seeds(1))
    command = [sys.executable, "-m", "hpxfer", "run", str(path), "--results", str(tmp_path / "results"), "--yes"]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    runs = tmp_path / "results" / "mine" / "runs"
    until(lambda: any('"step": 5' in each.read_text() for each in runs.glob(f"*/attempt-1/{REPORTS}")), "no report")
    (trainer,) = [each for each in psutil.Process(driver.pid).children(recursive=True) if _runs(each, "train.py")]
    driver.send_signal(signal.SIGKILL)
    driver.wait(LONG_S)
    until(lambda: not trainer.is_running(), "the trainer goes on")  # nothing of a killed driver goes on
    assert run(path, results=tmp_path / "results").trials["status"].tolist() == ["finished"]
    (row,) = rows_of(tmp_path).values()
    assert (row["attempts"], row["resumes"]) == (2, 1)
    assert row["validation_loss_nats"] == pytest.approx(loss_at(20), rel=1e-12)
    second = (run_dir(tmp_path, row) / "attempt-2" / REPORTS).read_text().splitlines()
    assert json.loads(second[0])["step"] == 6


def _runs(process: psutil.Process, name: str) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return name in command and command[0] == sys.executable and "supervisor" not in " ".join(command)
