"""An interrupted run with a trainer of the user's own: it gets its grace, and the run says what it kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpxfer.driver import run
from hpxfer.executors import local
from hpxfer.trial.events import Event, Progress

# At SIGTERM it takes a second to write a checkpoint.
TRAIN = """
import json, os, signal, sys, time
config = json.load(open(sys.argv[1]))
out = open(config["report_file"], "a", buffering=1)
step = 0 if config["resume"] is None else 1 + int(open(config["resume"]).read())

def save(*_):
    time.sleep(1)
    path = os.path.join(config["checkpoint_dir"], "last")
    open(path, "w").write("3")
    print(json.dumps({"type": "checkpoint", "step": 3, "path": path}), file=out)
    sys.exit(75)

signal.signal(signal.SIGTERM, save)
first = step == 0
while step < config["steps"]:
    print(json.dumps({"type": "report", "step": step, "loss": 3.0}), file=out)
    step += 1
    if step == 4 and first:
        time.sleep(600)
print(json.dumps({"type": "result", "status": "finished", "validation_loss": 2.0}), file=out)
"""
SWEEP = """
name: stopped
trainer:
  command: [python3, train.py, "{config_json}"]
  files: [train.py]
  arms: {plain: {}}
  timeouts: {grace_s: 600}
model: {family: user, own: {d_model: 64}}
training: {steps: 20}
axes: {d_model: [64]}
grid: {lr: [0.015625]}
seeds: 1
resources: {executor: local, workers: 1}
"""


@pytest.mark.slow
def test_a_trainer_has_its_grace_and_goes_on_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "STOP_S", 0.0)  # what stacks of our own get is not what counts
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "sweep.yaml").write_text(SWEEP)

    def interrupt(_: object, event: Event, __: object) -> None:
        if isinstance(event, Progress):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        run(tmp_path / "sweep.yaml", results=tmp_path, on_event=interrupt)
    assert caught.value.__notes__ == ["1 trial stopped at step 4 of 20"]
    (row,) = run(tmp_path / "sweep.yaml", results=tmp_path).trials.to_dict("records")
    assert (row["status"], row["resumes"], row["attempts"]) == ("finished", 1, 2)
