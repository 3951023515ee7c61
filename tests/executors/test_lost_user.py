"""A worker that is killed costs a trial of a user's own trainer a try, unless a checkpoint has advanced."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpxfer.driver import run
from hpxfer.executors.executor import TRIES
from hpxfer.trainer.job import attempt_numbers

pytestmark = pytest.mark.slow

# It kills its worker, the parent of its supervisor, after each checkpoint, or before it writes any.
TRAIN = """
import json, os, signal, sys, time

def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])

config = json.load(open(sys.argv[1]))
out = open(config["report_file"], "a", buffering=1)
start = 0 if config["resume"] is None else 1 + int(open(config["resume"]).read())
for step in range(start, config["steps"]):
    print(json.dumps({"type": "report", "step": step, "loss": 3 - step / 100}), file=out)
    if step < config["args"]["kills"]:
        if config["args"]["saves"]:
            path = os.path.join(config["checkpoint_dir"], str(step))
            open(path, "w").write(str(step))
            print(json.dumps({"type": "checkpoint", "step": step, "path": path}), file=out)
        os.kill(parent(os.getppid()), signal.SIGKILL)
        time.sleep(60)
print(json.dumps({"type": "result", "status": "finished", "validation_loss": 2.0}), file=out)
"""
SWEEP = """
name: lost
trainer:
  command: [python3, train.py, "{config_json}"]
  files: [train.py]
  args: {kills: KILLS, saves: SAVES}
  arms: {plain: {}}
  timeouts: {grace_s: 1}
model: {family: user, own: {d_model: 64}}
training: {steps: 20}
axes: {d_model: [64]}
grid: {lr: [0.015625]}
seeds: 1
resources: {executor: EXECUTOR, workers: 1}
"""
KILLS = TRIES


@pytest.mark.parametrize(
    ("executor", "saves", "status", "attempts"),
    [
        ("local", "true", "finished", KILLS + 1),
        ("ray", "true", "finished", KILLS + 1),
        ("local", "false", "failed", TRIES),
    ],
)
def test_a_lost_worker_costs_a_try_only_if_no_checkpoint_advanced(
    executor: str, saves: str, status: str, attempts: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    text = SWEEP.replace("KILLS", str(KILLS)).replace("SAVES", saves).replace("EXECUTOR", executor)
    (tmp_path / "sweep.yaml").write_text(text)
    (row,) = run(tmp_path / "sweep.yaml", results=tmp_path).trials.to_dict("records")
    assert row["status"] == status, row["error"]
    (folder,) = (tmp_path / "lost" / "runs").iterdir()
    assert len(attempt_numbers(folder)) == attempts
    if status == "failed":
        assert row["error_kind"] == "lost"
        assert row["error"].startswith(f"the worker was lost {TRIES} times")
